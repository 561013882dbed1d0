"""Reducing state: one value per key and namespace, into which every added value is folded.

stored entry                       value
stored entry with a time-to-live   ttl value(value)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

from attrs import evolve, field, frozen

from snapshots.value_text import shown
from statebackend.api.aggregate_function import ReduceFunction
from statebackend.api.descriptors import VALUE_ROLE, as_serializer
from statebackend.api.errors import StateRegistrationError
from statebackend.api.states import ReducingState
from statebackend.kinds.folding import TtlFoldingState, folded, note_function, refusal
from statebackend.kinds.internal_states import FoldingState, HandleContext, InternalState, fold_namespaces
from statebackend.kinds.state_kind import HandleSource, StateDescriptor, StateKind, TableForm
from statebackend.kinds.timed_states import Lifetime, TtlState
from statebackend.kinds.value_kind import InternalValueState
from typeserializers.containers.ttl import TtlValue
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")


class InternalReducingState(FoldingState[T], ReducingState[T]):
    """Reducing state with namespaces: merging reduces the values."""

    __slots__ = ()


class ReducingKind(StateKind):
    """See the module."""

    name = "reducing"
    getter = "get_reducing_state"
    form = TableForm.VALUE
    handle_class = InternalReducingState
    timed_role = VALUE_ROLE
    reads = MappingProxyType({"get": "", "get_internal": ""})
    writes = MappingProxyType(
        {"add": "value", "update_internal": "folded", "clear": "", "merge_namespaces": "target, sources"}
    )

    def storage_serializer(self, serializers: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return serializers[VALUE_ROLE]

    def create_handle(
        self, table: HandleSource, context: Any, descriptor: ReducingStateDescriptor[Any]
    ) -> InternalState:
        return ValueBackedReducingState(table.value_state(context, descriptor.serializer, None), descriptor)

    def timed_descriptor(
        self,
        descriptor: ReducingStateDescriptor[Any],
        serializers: Mapping[str, TypeSerializer[Any]],
        lifetime: Lifetime,
    ) -> StateDescriptor:
        function: Any = TtlReduceFunction(descriptor.reduce_function, lifetime, descriptor.name)
        return evolve(descriptor, reduce_function=function, serializer=serializers[VALUE_ROLE], ttl=None)

    def timed_handle(
        self, stored: InternalReducingState[TtlValue[Any]], lifetime: Lifetime, descriptor: ReducingStateDescriptor[Any]
    ) -> TtlState:
        return TtlReducingState(stored, lifetime, descriptor.name)


REDUCING: Final = ReducingKind()


def _check_reduce_function(instance: Any, attribute: Any, function: Any) -> None:
    if not callable(function):
        raise StateRegistrationError(
            f"reducing state {instance.name!r} needs a function of two values, not {shown(function)}"
        )


@frozen
class ReducingStateDescriptor(StateDescriptor, Generic[T]):
    """One value per key, into which ``reduce_function`` folds every value that is added.

    The function is no part of what is stored: it may change from one run to the next. Descriptors are equal only if
    their functions are.
    """

    reduce_function: ReduceFunction[T] = field(validator=_check_reduce_function)
    serializer: TypeSerializer[T] = field(converter=as_serializer)

    kind = REDUCING

    @property
    def serializers(self) -> Mapping[str, TypeSerializer[Any]]:
        return {VALUE_ROLE: self.serializer}

    def with_serializers(self, serializers: Mapping[str, TypeSerializer[Any]]) -> ReducingStateDescriptor[T]:
        return evolve(self, serializer=serializers[VALUE_ROLE])


class ValueBackedReducingState(InternalReducingState[T]):
    """See the module."""

    __slots__ = ("_name", "_reduce", "_values")

    def __init__(self, values: InternalValueState[T], descriptor: ReducingStateDescriptor[T]) -> None:
        self._values = values
        self._name = descriptor.name
        self._reduce = descriptor.reduce_function

    @property
    def key_context(self) -> HandleContext:
        return self._values.key_context

    def get(self) -> T | None:
        return self._values.value()

    def add(self, value: T) -> None:
        if value is None:
            raise refusal(self._name, "None cannot be added to a reducing state")
        current = self._values.value()
        self._values.update(value if current is None else self._reduced(current, value))

    def get_internal(self) -> T | None:
        return self._values.value()

    def update_internal(self, folded: T) -> None:
        if folded is None:
            raise refusal(self._name, "None cannot be what was folded")
        self._values.update(folded)

    def clear(self) -> None:
        self._values.clear()

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self._values.read_ahead(keys, key_groups)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        fold_namespaces(self, target, sources, self._values.value, self._fold)

    def _fold(self, values: list[T]) -> None:
        current = self._values.value()
        for value in values:
            current = value if current is None else self._reduced(current, value)
        self._values.update(current)

    def _reduced(self, left: T, right: T) -> T:
        try:
            reduced = self._reduce(left, right)
        except Exception as error:
            note_function(error, self._name, "the reduce function")
            raise
        # An update with None would clear what was folded so far.
        return folded(reduced, self._name, "the reduce function")


class TtlReduceFunction(Generic[T]):
    """Reduces what is still alive."""

    def __init__(self, function: ReduceFunction[T], lifetime: Lifetime, name: str) -> None:
        self._function = function
        self._lifetime = lifetime
        self._name = name

    def __call__(self, left: TtlValue[T], right: TtlValue[T]) -> TtlValue[T]:
        if not self._lifetime.is_visible(left):
            return right
        if not self._lifetime.is_visible(right):
            return left
        result = folded(self._function(left.value, right.value), self._name, "the reduce function")
        return self._lifetime.stamped(result)


class TtlReducingState(TtlFoldingState, InternalReducingState[T]):
    """See the module."""

    __slots__ = ()

    def get(self) -> T | None:
        stored = self.visible()
        return None if stored is None else stored.value

    def add(self, value: T) -> None:
        if value is None:
            raise refusal(self.name, "None cannot be added to a reducing state")
        self._clean_up()
        self._stored.add(self.lifetime.stamped(value))

    get_internal = get

    def renew(self, stored: TtlValue[T]) -> None:
        # Reducing with itself would change it, so it is put in anew.
        self._stored.clear()
        self._stored.add(self.lifetime.stamped(stored.value))
