"""Aggregating state: one accumulator per key and namespace, into which every added value is folded.

    stored entry                       accumulator
    stored entry with a time-to-live   ttl value(accumulator)

With a time-to-live the aggregate function beneath gives its accumulator out as the result, for the handle to look at
the time and to make the user's result of it; a read that renews the life of the accumulator adds `_TOUCH`, which
changes only the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

from snapshots.value_text import shown
from statebackend.api.aggregate_function import AggregateFunction
from statebackend.api.descriptors import as_serializer
from statebackend.api.errors import StateRegistrationError
from statebackend.api.states import AggregatingState
from statebackend.kinds.folding import TtlFoldingState, folded, note_function, refusal
from statebackend.kinds.internal_states import FoldingState, HandleContext, InternalState, fold_namespaces
from statebackend.kinds.state_kind import HandleSource, StateDescriptor, StateKind, TableForm
from statebackend.kinds.timed_states import Lifetime, TtlState
from statebackend.kinds.value_kind import InternalValueState
from typeserializers.containers.ttl import TtlValue
from typeserializers.kernel.type_serializer import TypeSerializer

I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741

ACCUMULATOR_ROLE: Final = "accumulator"

_TOUCH: Final[Any] = object()


class InternalAggregatingState(FoldingState[Any], AggregatingState[I, O]):
    """Aggregating state with namespaces: merging merges the accumulators."""

    __slots__ = ()


class AggregatingKind(StateKind):
    """See the module."""

    name = "aggregating"
    getter = "get_aggregating_state"
    form = TableForm.VALUE
    handle_class = InternalAggregatingState
    timed_role = ACCUMULATOR_ROLE
    reads = MappingProxyType({"get": "", "get_internal": ""})
    writes = MappingProxyType(
        {"add": "value", "update_internal": "folded", "clear": "", "merge_namespaces": "target, sources"}
    )

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return serializers[ACCUMULATOR_ROLE]

    def create_handle(
        self, table: HandleSource, context: Any, descriptor: AggregatingStateDescriptor[Any, Any, Any]
    ) -> InternalState:
        accumulators = table.value_state(context, descriptor.accumulator_serializer, None)
        return ValueBackedAggregatingState(accumulators, descriptor)

    def timed_descriptor(
        self,
        descriptor: AggregatingStateDescriptor[Any, Any, Any],
        serializers: Mapping[str, TypeSerializer[Any]],
        lifetime: Lifetime,
    ) -> StateDescriptor:
        function: Any = TtlAggregateFunction(descriptor.aggregate_function, lifetime, descriptor.name)
        accumulator_serializer = serializers[ACCUMULATOR_ROLE]
        return evolve(descriptor, aggregate_function=function, accumulator_serializer=accumulator_serializer, ttl=None)

    def timed_handle(
        self,
        stored: InternalAggregatingState[Any, Any],
        lifetime: Lifetime,
        descriptor: AggregatingStateDescriptor[Any, Any, Any],
    ) -> TtlState:
        return TtlAggregatingState(stored, lifetime, descriptor.name, descriptor.aggregate_function)


AGGREGATING: Final = AggregatingKind()


def _check_aggregate_function(instance: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, AggregateFunction):
        raise StateRegistrationError(
            f"aggregating state {instance.name!r} needs an instance of an AggregateFunction, not {shown(function)}"
        )


@frozen
class AggregatingStateDescriptor(StateDescriptor, Generic[I, A, O]):
    """One accumulator per key, into which ``aggregate_function`` folds every value that is added.

    As with reducing state, the function may change from one run to the next; the accumulator is what is stored.
    """

    aggregate_function: AggregateFunction[I, A, O] = field(validator=_check_aggregate_function)
    accumulator_serializer: TypeSerializer[A] = field(converter=as_serializer)

    kind = AGGREGATING

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {ACCUMULATOR_ROLE: self.accumulator_serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> AggregatingStateDescriptor[I, A, O]:
        return evolve(self, accumulator_serializer=serializers[ACCUMULATOR_ROLE])


class ValueBackedAggregatingState(InternalAggregatingState[I, O]):
    """See the module."""

    __slots__ = ("_accumulators", "_function", "_name")

    def __init__(
        self, accumulators: InternalValueState[Any], descriptor: AggregatingStateDescriptor[I, Any, O]
    ) -> None:
        self._accumulators = accumulators
        self._name = descriptor.name
        self._function = descriptor.aggregate_function

    @property
    def key_context(self) -> HandleContext:
        return self._accumulators.key_context

    def get(self) -> O | None:
        accumulator = self._accumulators.value()
        if accumulator is None:
            return None
        try:
            return self._function.get_result(accumulator)
        except Exception as error:
            note_function(error, self._name, "get_result() of the aggregate function")
            raise

    def add(self, value: I) -> None:
        if value is None:
            raise refusal(self._name, "None cannot be added to an aggregating state")
        accumulator = self._accumulators.value()
        try:
            if accumulator is None:
                accumulator = self._function.create_accumulator()
            added = self._function.add(value, accumulator)
        except Exception as error:
            note_function(error, self._name, "add() of the aggregate function")
            raise
        self._accumulators.update(folded(added, self._name, "add() of the aggregate function"))

    def get_internal(self) -> Any:
        return self._accumulators.value()

    def update_internal(self, folded: Any) -> None:
        if folded is None:
            raise refusal(self._name, "None cannot be an accumulator")
        self._accumulators.update(folded)

    def clear(self) -> None:
        self._accumulators.clear()

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self._accumulators.read_ahead(keys, key_groups)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        fold_namespaces(self, target, sources, self._accumulators.value, self._fold)

    def _fold(self, accumulators: list[Any]) -> None:
        merged = self._accumulators.value()
        for accumulator in accumulators:
            if merged is None:
                merged = accumulator
            else:
                merged = folded(self._merged(merged, accumulator), self._name, "merge() of the aggregate function")
        self._accumulators.update(merged)

    def _merged(self, left: Any, right: Any) -> Any:
        try:
            return self._function.merge(left, right)
        except Exception as error:
            note_function(error, self._name, "merge() of the aggregate function")
            raise


class TtlAggregateFunction(AggregateFunction[I, "TtlValue[A]", "TtlValue[A]"]):
    """Aggregates into what is still alive."""

    def __init__(self, function: AggregateFunction[I, A, Any], lifetime: Lifetime, name: str) -> None:
        self._function = function
        self._lifetime = lifetime
        self._name = name

    def create_accumulator(self) -> TtlValue[A]:
        return self._lifetime.stamped(self._function.create_accumulator())

    def add(self, value: I, accumulator: TtlValue[A]) -> TtlValue[A]:
        if value is _TOUCH:
            return self._lifetime.stamped(accumulator.value)
        if not self._lifetime.is_visible(accumulator):
            accumulator = self.create_accumulator()
        added = self._function.add(value, accumulator.value)
        return self._lifetime.stamped(folded(added, self._name, "add() of the aggregate function"))

    def get_result(self, accumulator: TtlValue[A]) -> TtlValue[A]:
        return accumulator

    def merge(self, left: TtlValue[A], right: TtlValue[A]) -> TtlValue[A]:
        if not self._lifetime.is_visible(left):
            return right
        if not self._lifetime.is_visible(right):
            return left
        merged = self._function.merge(left.value, right.value)
        return self._lifetime.stamped(folded(merged, self._name, "merge() of the aggregate function"))


class TtlAggregatingState(TtlFoldingState, InternalAggregatingState[I, O]):
    """See the module."""

    __slots__ = ("_function",)

    def __init__(self, stored: Any, lifetime: Lifetime, name: str, function: AggregateFunction[I, Any, O]) -> None:
        super().__init__(stored, lifetime, name)
        self._function = function

    def get(self) -> O | None:
        stored = self.visible()
        if stored is None:
            return None
        try:
            return self._function.get_result(stored.value)
        except Exception as error:
            note_function(error, self.name, "get_result() of the aggregate function")
            raise

    def add(self, value: I) -> None:
        if value is None:
            raise refusal(self.name, "None cannot be added to an aggregating state")
        self._clean_up()
        self._stored.add(value)

    def get_internal(self) -> Any:
        stored = self.visible()
        return None if stored is None else stored.value

    def renew(self, stored: TtlValue[Any]) -> None:
        self._stored.add(_TOUCH)
