"""Reducing and aggregating state: one value per key and namespace, into which every added value is folded.

    kind          stored entry      stored entry with a time-to-live
    reducing      value             ttl value(value)
    aggregating   accumulator       ttl value(accumulator)

Both kinds are built on a value state, with its cache, its checks and its copies of mutable values: a user's function
may change the accumulator that it receives. A fold is a read, a call of the user's function, and an update. If one
fails, nothing is updated. An exception of the function is re-raised with a note (PEP 678) that names the state.

With a time-to-live the accessors are generated over the value state (`statebackend.state.timed_access`). Namespaces are
merged by the state below, which folds values with their times: the user's function is wrapped. An expired operand
counts as absent. The result counts as accessed now, also when namespaces are merged. The wrapped aggregate function
returns its accumulator as the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, NoReturn, TypeVar

from attrs import evolve, field, frozen

from snapshots.errors import SerializationError, StateFormatError, format_value
from statebackend.state.descriptors import VALUE_ROLE, OnClass, as_serializer
from statebackend.state.errors import StateBackendError, StateRegistrationError
from statebackend.state.internal_states import (
    FoldingState,
    HandleContext,
    InternalState,
    Lifetime,
    Timed,
    TtlState,
    fold_namespaces,
)
from statebackend.state.key_batch import KeyBatch
from statebackend.state.state_kind import HandleSource, StateDescriptor, StateKind, TableForm
from statebackend.state.states import AggregateFunction, AggregatingState, ReduceFunction, ReducingState
from statebackend.state.timed_access import TimedLines, set_timed_methods
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.code_generation import indented
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")


def folded(result: T | None, name: str, function: str) -> T:
    """Return the result of a user's function; raise `SerializationError` if it is None."""
    if result is None:
        raise rejection(name, f"{function} returned None; it must return the new accumulator")
    return result


def note_function(error: Exception, name: str, function: str) -> None:
    """Add a note with the user's function to its exception, unless the error names the state already."""
    if isinstance(error, (StateFormatError, StateBackendError)):
        return
    # Python 3.10 has no add_note().
    error.__notes__ = [*getattr(error, "__notes__", ()), f"in {function} of state {name!r}"]  # type: ignore[attr-defined]


def rejection(name: str, problem: str) -> SerializationError:
    """The error for a value that a folding state rejects."""
    return SerializationError(f"state {name!r}", (problem,))


class TtlFoldingState(TtlState):
    """The common part of both kinds: ``values`` is the value state below the inner state.

    The accessors are generated.
    """

    __slots__ = ("_serializer", "_values", "add", "get", "get_internal", "name", "update_internal")

    add: Any
    get: Any
    get_internal: Any
    update_internal: Any

    def __init__(
        self,
        stored: Any,
        values: InternalValueState[Any],
        lifetime: Lifetime,
        name: str,
        serializer: TypeSerializer[Any],
    ) -> None:
        super().__init__(stored, lifetime)
        self._values = values
        self._serializer = serializer
        self.name = name
        self.set_methods()

    def given(self) -> dict[str, Any]:
        """What the accessors of both kinds use by name."""
        return {"name": self.name, "note": note_function, "check": folded, "reject": _raise_rejection}

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        self._clean_up()
        self._stored.merge_namespaces(target, sources)

    def remove_expired(self) -> None:
        stored: Timed[Any] | None = self._values.value()
        if stored is not None and self.lifetime.is_expired(stored):
            self._values.clear()


def _raise_rejection(name: str, problem: str) -> NoReturn:
    raise rejection(name, problem)


def _timed_folding_methods(lines: TimedLines, fold: list[str], of: str) -> dict[str, tuple[str, list[str]]]:
    """The accessors, but `get`. ``fold`` sets ``value`` to the new folded value, ``stored`` is the old one or None."""
    write = [*lines.kept, "stored = (value, now_ms)", *lines.write]
    none_added = f"if value is None: reject(name, 'None cannot be added to {of} state')"
    if not lines.returns_expired:
        fold = ["if stored is not None and stored[1] <= expired_ms: stored = None", *fold]
    return {
        "add": ("value", [none_added, *lines.start, *lines.read, *fold, *write]),
        "get_internal": ("", [*lines.visible("None"), "return value"]),
        "update_internal": (
            "value",
            ["if value is None: reject(name, 'None cannot be a folded value')", *lines.start, *write],
        ),
    }


def _checked(call: str, called: str) -> list[str]:
    """Lines that set ``value`` to the result of a call of the user's function."""
    return [
        f"try: value = {call}",
        "except Exception as error:",
        f"    note(error, name, {called!r})",
        "    raise",
        f"if value is None: check(value, name, {called!r})",
    ]


class InternalReducingState(FoldingState[T], ReducingState[T]):
    """Reducing state with namespaces: merging reduces the values."""

    __slots__ = ()

    @property
    def stored_values(self) -> InternalValueState[T] | None:
        """The value state of the folded values, for access to their stored bytes; None if there is none."""
        return None


class ReducingKind(StateKind):
    """Reducing state: one value per key, into which added values are folded."""

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
        self, stored: ValueBackedReducingState[Any], lifetime: Lifetime, descriptor: ReducingStateDescriptor[Any]
    ) -> TtlState:
        return TtlReducingState(stored, lifetime, descriptor)


REDUCING: Final = ReducingKind()


def _check_reduce_function(instance: Any, attribute: Any, function: Any) -> None:
    if not callable(function):
        raise StateRegistrationError(
            f"reducing state {instance.name!r} needs a function of two values, not {format_value(function)}"
        )


@frozen
class ReducingStateDescriptor(StateDescriptor, OnClass[ReducingState[T]]):
    """One value per key. ``reduce_function`` folds every added value into it.

    The function is not stored, so it may change from one run to the next. Descriptors are equal only if their
    functions are.
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
    """Reducing state over a value state."""

    __slots__ = ("_name", "_reduce", "values")

    def __init__(self, values: InternalValueState[T], descriptor: ReducingStateDescriptor[T]) -> None:
        self.values = values
        self._name = descriptor.name
        self._reduce = descriptor.reduce_function

    @property
    def key_context(self) -> HandleContext:
        return self.values.key_context

    @property
    def stored_values(self) -> InternalValueState[T]:
        return self.values

    def get(self) -> T | None:
        return self.values.value()

    def add(self, value: T) -> None:
        if value is None:
            raise rejection(self._name, "None cannot be added to a reducing state")
        current = self.values.value()
        self.values.update(value if current is None else self._reduced(current, value))

    def get_internal(self) -> T | None:
        return self.values.value()

    def update_internal(self, folded: T) -> None:
        if folded is None:
            raise rejection(self._name, "None cannot be a folded value")
        self.values.update(folded)

    def clear(self) -> None:
        self.values.clear()

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self.values.read_ahead(keys, key_groups)

    def merge_namespaces(self, target: Any, sources: Iterable[Any]) -> None:
        fold_namespaces(self, target, sources, self.values.value, self._fold)

    def _fold(self, values: list[T]) -> None:
        current = self.values.value()
        for value in values:
            current = value if current is None else self._reduced(current, value)
        self.values.update(current)

    def _reduced(self, left: T, right: T) -> T:
        try:
            reduced = self._reduce(left, right)
        except Exception as error:
            note_function(error, self._name, "the reduce function")
            raise
        # An update with None would clear the value folded so far.
        return folded(reduced, self._name, "the reduce function")


class TtlReduceFunction(Generic[T]):
    """Reduces values that have not expired."""

    def __init__(self, function: ReduceFunction[T], lifetime: Lifetime, name: str) -> None:
        self._function = function
        self._lifetime = lifetime
        self._name = name

    def __call__(self, left: Timed[T], right: Timed[T]) -> Timed[T]:
        if not self._lifetime.is_visible(left):
            return right
        if not self._lifetime.is_visible(right):
            return left
        result = folded(self._function(left[0], right[0]), self._name, "the reduce function")
        return self._lifetime.stamped(result)


def _timed_reducing_methods(lines: TimedLines) -> dict[str, tuple[str, list[str]]]:
    called = _checked("reduce(stored[0], value)", "the reduce function")
    methods = _timed_folding_methods(lines, ["if stored is not None:", *indented(called)], "a reducing")
    return {**methods, "get": methods["get_internal"]}


class TtlReducingState(TtlFoldingState, InternalReducingState[T]):
    """Reducing state with a time-to-live."""

    __slots__ = ("_function",)

    def __init__(
        self, stored: ValueBackedReducingState[Any], lifetime: Lifetime, descriptor: ReducingStateDescriptor[T]
    ) -> None:
        self._function = descriptor.reduce_function
        super().__init__(stored, stored.values, lifetime, descriptor.name, descriptor.serializer)

    def set_methods(self) -> None:
        set_timed_methods(
            self, self._values, self._serializer, _timed_reducing_methods, reduce=self._function, **self.given()
        )


I = TypeVar("I")  # noqa: E741
A = TypeVar("A")
O = TypeVar("O")  # noqa: E741

ACCUMULATOR_ROLE: Final = "accumulator"


class InternalAggregatingState(FoldingState[Any], AggregatingState[I, O]):
    """Aggregating state with namespaces: merging merges the accumulators."""

    __slots__ = ()

    @property
    def stored_values(self) -> InternalValueState[Any] | None:
        """The value state of the accumulators, for access to their stored bytes; None if there is none."""
        return None


class AggregatingKind(StateKind):
    """Aggregating state: one accumulator per key, into which added values are folded."""

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
        stored: ValueBackedAggregatingState[Any, Any],
        lifetime: Lifetime,
        descriptor: AggregatingStateDescriptor[Any, Any, Any],
    ) -> TtlState:
        return TtlAggregatingState(stored, lifetime, descriptor)


AGGREGATING: Final = AggregatingKind()


def _check_aggregate_function(instance: Any, attribute: Any, function: Any) -> None:
    if not isinstance(function, AggregateFunction):
        raise StateRegistrationError(
            f"aggregating state {instance.name!r} needs an instance of an AggregateFunction, not "
            f"{format_value(function)}"
        )


@frozen
class AggregatingStateDescriptor(StateDescriptor, OnClass[AggregatingState[I, O]], Generic[I, A, O]):
    """One accumulator per key. ``aggregate_function`` folds every added value into it.

    As for reducing state, the function may change from one run to the next. The accumulator is stored.
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
    """Aggregating state over a value state."""

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
            raise rejection(self._name, "None cannot be added to an aggregating state")
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
            raise rejection(self._name, "None cannot be an accumulator")
        self._accumulators.update(folded)

    @property
    def stored_values(self) -> InternalValueState[Any]:
        return self._accumulators

    def get_internal_many(self, keys: KeyBatch) -> list[Any]:
        return self._accumulators.get_many(keys)

    def update_internal_many(self, keys: KeyBatch, folded: Sequence[Any]) -> None:
        self._accumulators.put_many(keys, folded)

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


class TtlAggregateFunction(AggregateFunction[I, "Timed[A]", "Timed[A]"]):
    """Aggregates into an accumulator that has not expired."""

    def __init__(self, function: AggregateFunction[I, A, Any], lifetime: Lifetime, name: str) -> None:
        self._function = function
        self._lifetime = lifetime
        self._name = name

    def create_accumulator(self) -> Timed[A]:
        return self._lifetime.stamped(self._function.create_accumulator())

    def add(self, value: I, accumulator: Timed[A]) -> Timed[A]:
        if not self._lifetime.is_visible(accumulator):
            accumulator = self.create_accumulator()
        added = self._function.add(value, accumulator[0])
        return self._lifetime.stamped(folded(added, self._name, "add() of the aggregate function"))

    def get_result(self, accumulator: Timed[A]) -> Timed[A]:
        return accumulator

    def merge(self, left: Timed[A], right: Timed[A]) -> Timed[A]:
        if not self._lifetime.is_visible(left):
            return right
        if not self._lifetime.is_visible(right):
            return left
        merged = self._function.merge(left[0], right[0])
        return self._lifetime.stamped(folded(merged, self._name, "merge() of the aggregate function"))


def _timed_aggregating_methods(lines: TimedLines) -> dict[str, tuple[str, list[str]]]:
    fold = _checked("add_to(value, create() if stored is None else stored[0])", "add() of the aggregate function")
    result = [
        "try: return result_of(value)",
        "except Exception as error:",
        "    note(error, name, 'get_result() of the aggregate function')",
        "    raise",
    ]
    methods = _timed_folding_methods(lines, fold, "an aggregating")
    return {**methods, "get": ("", [*lines.visible("None"), *result])}


class TtlAggregatingState(TtlFoldingState, InternalAggregatingState[I, O]):
    """Aggregating state with a time-to-live."""

    __slots__ = ("_function",)

    def __init__(
        self,
        stored: ValueBackedAggregatingState[Any, Any],
        lifetime: Lifetime,
        descriptor: AggregatingStateDescriptor[I, Any, O],
    ) -> None:
        self._function = descriptor.aggregate_function
        super().__init__(stored, stored.stored_values, lifetime, descriptor.name, descriptor.accumulator_serializer)

    def set_methods(self) -> None:
        function = self._function
        set_timed_methods(
            self,
            self._values,
            self._serializer,
            _timed_aggregating_methods,
            add_to=function.add,
            create=function.create_accumulator,
            result_of=function.get_result,
            **self.given(),
        )
