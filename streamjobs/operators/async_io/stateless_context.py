"""What the open() of a function without state is given: where it runs, and no way to state."""

from __future__ import annotations

from typing import NoReturn

from statebackend import StateDescriptor
from statebackend.api.errors import StateRegistrationError
from statebackend.api.operator_state_descriptors import OperatorStateDescriptor
from streamjobs.operators.delegating_context import DelegatingContext

__all__ = ["StatelessContext"]


class StatelessContext(DelegatingContext):
    """The context of an operator, for a function that can have no state."""

    def register(self, descriptor: StateDescriptor) -> NoReturn:
        raise self._refusal()

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> StateRegistrationError:
        return StateRegistrationError(
            f"operator {self.operator_uid!r}: an AsyncFunction has no state: its results come whenever they come; keep "
            f"state in a KeyedProcessFunction before or behind it"
        )
