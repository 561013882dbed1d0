"""What the open() of a function without state is given: where it runs, and no way to state."""

from __future__ import annotations

from typing import NoReturn

from statebackend import StateDescriptor
from statebackend.api.errors import StateRegistrationError
from statebackend.api.operator_state_descriptors import OperatorStateDescriptor
from streamjobs.api.functions import RuntimeContext

__all__ = ["StatelessContext"]


class StatelessContext(RuntimeContext):
    """The context of an operator, for a function that can have no state."""

    def __init__(self, context: RuntimeContext) -> None:
        self._context = context

    @property
    def operator_uid(self) -> str:
        return self._context.operator_uid

    @property
    def subtask_index(self) -> int:
        return self._context.subtask_index

    @property
    def parallelism(self) -> int:
        return self._context.parallelism

    @property
    def epoch_id(self) -> int:
        return self._context.epoch_id

    @property
    def is_restored(self) -> bool:
        return self._context.is_restored

    def register(self, descriptor: StateDescriptor) -> NoReturn:
        raise self._refusal()

    def register_operator_state(self, descriptor: OperatorStateDescriptor) -> NoReturn:
        raise self._refusal()

    def _refusal(self) -> StateRegistrationError:
        return StateRegistrationError(
            f"operator {self.operator_uid!r}: an AsyncFunction has no state: its results come whenever they come; keep "
            f"state in a KeyedProcessFunction before or behind it"
        )
