"""The contents of windows as state: one value, one accumulator, or every record.

The namespace is the window or, for windows that merge, the state window. The state has the same name as in Flink.
Records are stored with their serializer (`ElementForm`).
"""

from __future__ import annotations

import contextlib
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import repeat
from operator import is_, is_not
from typing import Any, Final

import pyarrow as pa

from snapshots.errors import format_value
from statebackend.savepoint.column_codecs import CodecMissError, column_codec
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.folding_states import (
    AggregatingStateDescriptor,
    InternalAggregatingState,
    ReducingStateDescriptor,
)
from statebackend.state.internal_states import FoldingState, MergingState
from statebackend.state.key_batch import KeyBatch
from statebackend.state.list_state import InternalListState, ListStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import AggregateFunction
from statebackend.state.value_forms import compile_exact
from statebackend.streaming.aggregates import BoundAggregates
from statebackend.streaming.errors import AggregateOverflowError
from statebackend.streaming.operators.element_form import ElementForm
from statebackend.streaming.rows.row_reader import column_values
from statebackend.streaming.windows.evictors import Evictor, TimestampedValue
from statebackend.streaming.windows.window_definition import (
    AggregatedContents,
    CoGroupedContents,
    ListedContents,
    ReducedContents,
    WindowDefinition,
)
from statebackend.streaming.windows.windowed_stream import Count
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer

__all__ = ["CONTENTS_NAME", "ColumnAggregatedWindows", "FoldError", "FoldedWindows", "WindowState", "window_state"]

CONTENTS_NAME: Final = "window-contents"


Fire = Callable[[list[Any]], None]
"""Passes the contents of a window to its function."""


class FoldError(Exception):
    """A user function failed on ``element``; the cause is its exception."""

    def __init__(self, element: Any) -> None:
        super().__init__(element)
        self.element = element


class WindowState(ABC):
    """The contents of all windows. The key must be current."""

    def __init__(self, *states: MergingState) -> None:
        self.enter: Callable[[Any], object] = _for_each([state.set_current_namespace for state in states])
        """Sets the current window of this state."""
        self.read_ahead: Callable[[Sequence[Any], Sequence[int]], object] = _for_each(
            [state.read_ahead for state in states]
        )
        """Announces that the contents of the current window are read next, for these keys and key groups."""
        self.clear: Callable[[], object] = _for_each([state.clear for state in states])
        """Removes the contents of the current window."""
        self.merge: Callable[[Any, Sequence[Any]], object] = _for_each([state.merge_namespaces for state in states])
        """Moves the contents of the other windows to the first window."""

    def begin(self, input_index: int) -> None:  # noqa: B027
        """Set the input of the records that follow."""

    @abstractmethod
    def add(self, element: Any, timestamp_ms: int | None) -> None:
        """Add a record to the current window."""

    @abstractmethod
    def add_all(self, elements: Sequence[Any]) -> bool:
        """Add records to the current window in order; returns whether it may have been empty before."""

    @property
    def counts(self) -> bool:
        """Whether only the number of records is stored, so that `add_counted` may be used."""
        return False

    def add_counted(self, count: int) -> bool:
        """As `add_all`, for this number of records."""
        raise NotImplementedError(f"{type(self).__name__} holds records")

    @abstractmethod
    def fire(self, window: Any, fire: Fire) -> None:
        """Call ``fire`` with the contents of the current window, unless it is empty."""

    @property
    @abstractmethod
    def is_empty(self) -> bool:
        """Whether the current window is empty."""


def _for_each(calls: Sequence[Callable[..., object]]) -> Callable[..., Any]:
    """Return one function for all calls; a single call is returned unchanged."""
    if len(calls) == 1:
        return calls[0]

    def call_each(*arguments: Any) -> None:
        for call in calls:
            call(*arguments)

    return call_each


class FoldedWindows(WindowState):
    """One value for each window, into which its records are folded.

    ``exact`` converts a folded value to the one that a later read of state would return; it is None if that may be
    another object, because values of the type are mutable.
    """

    def __init__(self, state: FoldingState[Any], exact: Callable[[Any], Any] | None) -> None:
        super().__init__(state)
        self.get: Callable[[], Any] = state.get_internal
        """Returns the value of the current window, or None."""
        self.update: Callable[[Any], None] = state.update_internal
        """Sets the value of the current window."""
        self.exact = exact

    @abstractmethod
    def fold(self, value: Any, elements: Sequence[Any]) -> Any:
        """Return the value with the records folded into it; ``value`` is None for an empty window."""

    @abstractmethod
    def fire_value(self, value: Any, fire: Fire) -> None:
        """Call ``fire`` with a value other than None."""

    def fold_count(self, value: Any, count: int) -> Any:
        """As `fold`, for this number of records."""
        raise NotImplementedError(f"{type(self).__name__} holds more than a number")

    def add(self, element: Any, timestamp_ms: int | None) -> None:
        self.update(self.fold(self.get(), (element,)))

    def add_all(self, elements: Sequence[Any]) -> bool:
        return self._add(self.fold, elements)

    def add_counted(self, count: int) -> bool:
        return self._add(self.fold_count, count)

    def fire(self, window: Any, fire: Fire) -> None:
        value = self.get()
        if value is not None:
            self.fire_value(value, fire)

    @property
    def is_empty(self) -> bool:
        return self.get() is None

    def _add(self, fold: Callable[[Any, Any], Any], content: Any) -> bool:
        value = self.get()
        self.update(fold(value, content))
        return value is None


class ReducedWindows(FoldedWindows):
    """One record for each window: the fold of its records."""

    def __init__(
        self,
        state: FoldingState[Any],
        exact: Callable[[Any], Any] | None,
        form: ElementForm,
        reduce: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(state, exact)
        self._form = form
        self._reduce = reduce

    def fold(self, value: Any, elements: Sequence[Any]) -> Any:
        reduce, record = self._reduce, self._form.record
        value = None if value is None else self._form.given(value)
        element: Any = None
        try:
            for element in elements:
                if value is None:
                    value = element
                    continue
                value = reduce(value, element)
                if value is None:
                    raise TypeError("the reduce function returned None; it must return the new accumulator")
                value = record(value)
        except Exception as error:
            raise FoldError(element) from error
        return self._form.stored(value)

    def fire_value(self, value: Any, fire: Fire) -> None:
        fire([self._form.given(value)])


class AggregatedWindows(FoldedWindows):
    """One accumulator for each window."""

    def __init__(
        self,
        state: FoldingState[Any],
        exact: Callable[[Any], Any] | None,
        function: AggregateFunction[Any, Any, Any],
    ) -> None:
        super().__init__(state, exact)
        self._function = function

    def fold(self, value: Any, elements: Sequence[Any]) -> Any:
        add, accumulator = self._function.add, value
        element: Any = None
        try:
            if accumulator is None:
                accumulator = self._function.create_accumulator()
            for element in elements:
                accumulator = add(element, accumulator)
                if accumulator is None:
                    raise TypeError("add() of the aggregate function returned None; it must return the accumulator")
        except Exception as error:
            raise FoldError(element) from error
        return accumulator

    @property
    def counts(self) -> bool:
        return type(self._function) is Count

    def fold_count(self, value: Any, count: int) -> Any:
        return count if value is None else value + count

    def fire_value(self, value: Any, fire: Fire) -> None:
        result = self._function.get_result(value)
        if result is not None:
            fire([result])


class ColumnAggregatedWindows(AggregatedWindows):
    """The accumulators of built-in aggregates for each window.

    Methods with a `KeyBatch` access the current window of many distinct keys. With a codec, accumulators are columns
    between the stored bytes and the results.
    """

    def __init__(
        self,
        state: InternalAggregatingState[Any, Any],
        exact: Callable[[Any], Any] | None,
        aggregates: BoundAggregates,
    ) -> None:
        super().__init__(state, exact, aggregates)
        self.aggregates = aggregates
        self._get_many, self._put_many = state.get_internal_many, state.update_internal_many
        self._values: Any = state.stored_values
        serializer = None if state.stored_values is None else state.stored_values.row_serializer
        self._form = ColumnForms().of(aggregates.serializer)
        self._codec = None if serializer is None or not aggregates.has_columns else column_codec(serializer)

    def fold(self, value: Any, elements: Sequence[Any]) -> Any:
        held = self.aggregates.unpack(self.aggregates.create_accumulator() if value is None else value)
        no_keys = (None,) * len(elements)
        self.aggregates.fold({None: held}, None, no_keys, no_keys, *self.aggregates.columns_of(elements))
        return self.aggregates.pack(held)

    def add_partials(self, keys: KeyBatch, partials: Sequence[pa.Array]) -> list[bool]:
        """Fold a partial result for each key; returns whether its window was empty. Raises `AggregateOverflowError`."""
        if self._codec is not None:
            with contextlib.suppress(CodecMissError, pa.ArrowInvalid):
                rows = self._values.get_rows(keys)
                merged = self.aggregates.merge_columns(self._codec.decode(rows), partials)
                self._values.put_rows(keys, self._codec.encode(merged))
                return list(map(is_, rows, repeat(None)))
        return self.add_rows(self.aggregates.combine, keys, keys.keys, list(map(column_values, partials)))

    def add_rows(
        self, fold: Callable[..., None], keys: KeyBatch, row_keys: Sequence[Any], columns: Sequence[Sequence[Any]]
    ) -> list[bool]:
        """As `add_partials`, for a function of `BoundAggregates` and the keys and columns of rows."""
        records, unpack, new = self._get_many(keys), self.aggregates.unpack, self.aggregates.create_accumulator()
        held = {key: unpack(new if record is None else record) for key, record in zip(keys.keys, records, strict=True)}
        fold(held, None, row_keys, row_keys, *columns)
        try:
            folded = list(map(self.aggregates.pack, held.values()))
        except AggregateOverflowError as error:
            wrong = next(key for key, one in held.items() if not self.aggregates.fits(one))
            raise AggregateOverflowError(f"key {format_value(wrong, 80)}: {error}") from None
        self._put_many(keys, folded)
        return list(map(is_, records, repeat(None)))

    def take_columns(self, keys: KeyBatch) -> tuple[pa.Array, dict[str, pa.Array]] | None:
        """Clear the windows; returns which keys had one, and the results of these keys as columns by name.

        None, without changes, if that needs objects.
        """
        if not self.aggregates.has_columns:
            return None
        try:
            stored = self._get_many(keys) if self._codec is None else self._values.get_rows(keys)
            present = [one for one in stored if one is not None]
            accumulators = self._form.array(present) if self._codec is None else self._codec.decode(present)
            results = self.aggregates.result_columns(accumulators)
        except (CodecMissError, ColumnValueError, pa.ArrowInvalid):
            return None
        self._put_many(keys, [None] * len(keys))
        return pa.array(map(is_not, stored, repeat(None)), pa.bool_()), results

    def take_rows(self, keys: KeyBatch, is_composite: bool, window: Any) -> list[Any]:
        """Clear the windows; returns a row of key, window and results for each key that had one."""
        records, unpack = self._get_many(keys), self.aggregates.unpack
        held = {key: unpack(record) for key, record in zip(keys.keys, records, strict=True) if record is not None}
        self._put_many(keys, [None] * len(keys))
        rows, _ = self.aggregates.rows_and_records(held, is_composite, window)
        return rows


class ListedWindows(WindowState):
    """Every record of each window."""

    def __init__(self, state: InternalListState[Any], form: ElementForm) -> None:
        super().__init__(state)
        self._state = state
        self._form = form

    def add(self, element: Any, timestamp_ms: int | None) -> None:
        self._state.add(self._form.stored(element))

    def add_all(self, elements: Sequence[Any]) -> bool:
        self._state.add_all(list(map(self._form.stored, elements)))
        # A check would read the whole list.
        return True

    def fire(self, window: Any, fire: Fire) -> None:
        elements = self.elements()
        if elements:
            fire(elements)

    def elements(self) -> list[Any]:
        """The contents of the current window."""
        return list(map(self._form.given, self._state.get()))

    @property
    def is_empty(self) -> bool:
        return not self._state.get()


class CoGroupedWindows(WindowState):
    """Every record of two inputs, in one list each. Fires with both lists as one element."""

    def __init__(self, states: Sequence[InternalListState[Any]], forms: Sequence[ElementForm]) -> None:
        super().__init__(*states)
        self._sides = [ListedWindows(state, form) for state, form in zip(states, forms, strict=True)]
        self._current = self._sides[0]

    def begin(self, input_index: int) -> None:
        self._current = self._sides[input_index]

    def add(self, element: Any, timestamp_ms: int | None) -> None:
        self._current.add(element, timestamp_ms)

    def add_all(self, elements: Sequence[Any]) -> bool:
        return self._current.add_all(elements)

    def fire(self, window: Any, fire: Fire) -> None:
        both = tuple(side.elements() for side in self._sides)
        if any(both):
            fire([both])

    @property
    def is_empty(self) -> bool:
        return all(side.is_empty for side in self._sides)


class EvictingWindows(WindowState):
    """Every record of each window with its timestamp; an evictor removes some at each firing.

    ``folded`` converts the remaining records to the elements that the function receives.
    """

    def __init__(
        self,
        state: InternalListState[Any],
        form: ElementForm,
        evictor: Evictor[Any, Any],
        folded: Callable[[list[Any]], list[Any]],
    ) -> None:
        super().__init__(state)
        self._state = state
        self._form = form
        self._evictor = evictor
        self._folded = folded

    def add(self, element: Any, timestamp_ms: int | None) -> None:
        self._state.add((self._form.stored(element), timestamp_ms))

    def add_all(self, elements: Sequence[Any]) -> bool:
        raise NotImplementedError("records of windows with an evictor have timestamps")

    def fire(self, window: Any, fire: Fire) -> None:
        held = self._state.get()
        if not held:
            return
        given = self._form.given
        elements: Sequence[TimestampedValue[Any]] = [TimestampedValue(given(value), time) for value, time in held]
        elements = self._evictor.evict_before(elements, window)
        fire(self._folded([element.value for element in elements]))
        elements = self._evictor.evict_after(elements, window)
        if len(elements) < len(held):
            stored = self._form.stored
            self._state.update([(stored(element.value), element.timestamp_ms) for element in elements])

    @property
    def is_empty(self) -> bool:
        return not self._state.get()


def _reduced(contents: ReducedContents, form: ElementForm, elements: list[Any]) -> list[Any]:
    """Return the elements for the function: the fold of all stored records."""
    if not elements:
        return []
    return [functools.reduce(lambda left, right: form.record(contents.function(left, right)), elements)]


def _aggregated(contents: AggregatedContents, form: ElementForm, elements: list[Any]) -> list[Any]:
    function = contents.function
    accumulator = function.create_accumulator()
    for element in elements:
        accumulator = function.add(element, accumulator)
    result = function.get_result(accumulator)
    return [] if result is None else [result]


def _listed(contents: ListedContents, form: ElementForm, elements: list[Any]) -> list[Any]:
    return elements


_OF_ALL: Final[Mapping[type, Callable[[Any, ElementForm, list[Any]], list[Any]]]] = {
    ReducedContents: _reduced,
    AggregatedContents: _aggregated,
    ListedContents: _listed,
}

Register = Callable[[StateDescriptor], Any]
"""Registers a state with windows as namespaces, and returns its handle."""


def _reduced_windows(contents: ReducedContents, forms: Sequence[ElementForm], register: Register) -> WindowState:
    [form] = forms
    reduce, given, record, stored = contents.function, form.given, form.record, form.stored

    def reduce_stored(left: Any, right: Any) -> Any:
        return stored(record(reduce(given(left), given(right))))

    descriptor = ReducingStateDescriptor(CONTENTS_NAME, reduce_stored, form.serializer)
    return ReducedWindows(register(descriptor), _exact(form.serializer), form, reduce)


def _aggregated_windows(contents: AggregatedContents, forms: Sequence[ElementForm], register: Register) -> WindowState:
    serializer = contents.accumulator_serializer
    assert serializer is not None
    state = register(AggregatingStateDescriptor(CONTENTS_NAME, contents.function, serializer))
    if isinstance(contents.function, BoundAggregates):
        return ColumnAggregatedWindows(state, _exact(serializer), contents.function)
    return AggregatedWindows(state, _exact(serializer), contents.function)


def _exact(serializer: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
    if not serializer.is_immutable_type:
        return None
    return compile_exact(serializer, lambda: f"state {CONTENTS_NAME!r}", reject_none=True)


def _co_grouped_windows(contents: CoGroupedContents, forms: Sequence[ElementForm], register: Register) -> WindowState:
    names = (f"{CONTENTS_NAME}-{side}" for side in ("left", "right"))
    states = [register(ListStateDescriptor(name, form.serializer)) for name, form in zip(names, forms, strict=True)]
    return CoGroupedWindows(states, forms)


def _listed_windows(contents: ListedContents, forms: Sequence[ElementForm], register: Register) -> WindowState:
    [form] = forms
    return ListedWindows(register(ListStateDescriptor(CONTENTS_NAME, form.serializer)), form)


_KINDS: Final[Mapping[type, Callable[[Any, Sequence[ElementForm], Register], WindowState]]] = {
    ReducedContents: _reduced_windows,
    AggregatedContents: _aggregated_windows,
    ListedContents: _listed_windows,
    CoGroupedContents: _co_grouped_windows,
}


def window_state(definition: WindowDefinition, forms: Sequence[ElementForm], register: Register) -> WindowState:
    """Register the contents of windows. ``forms`` are the stored forms of the records, by input."""
    contents = definition.contents
    evictor = definition.evictor
    if evictor is None:
        return _KINDS[type(contents)](contents, forms, register)
    [form] = forms
    timed: TupleSerializer = TupleSerializer((form.serializer, NullableSerializer(LongSerializer())))
    state = register(ListStateDescriptor(CONTENTS_NAME, timed))
    return EvictingWindows(state, form, evictor, functools.partial(_OF_ALL[type(contents)], contents, form))
