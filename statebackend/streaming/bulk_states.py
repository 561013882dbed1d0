"""State of many keys at once, as `KeyedBatchFunction` uses it.

A bulk state reads and writes Arrow arrays. The stored bytes are those of the per-record state of the same descriptor,
so a job may change from one form to the other over a savepoint. The Arrow type of a state is that of
`statebackend.savepoint.value_forms`: a record is a struct, and null means that a key has no state.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeAlias, TypeVar, cast

import pyarrow as pa
import pyarrow.compute as pc

from snapshots.errors import SerializationError, format_value
from statebackend.savepoint.column_codecs import CodecMissError, column_codec
from statebackend.savepoint.value_forms import ColumnForm, ColumnForms, ListForm, MapForm, stored_values
from statebackend.state.folding_states import (
    AggregatingStateDescriptor,
    InternalAggregatingState,
    InternalReducingState,
    ReducingStateDescriptor,
)
from statebackend.state.key_batch import KeyBatch
from statebackend.state.list_state import InternalListState, ListStateDescriptor
from statebackend.state.map_state import InternalMapState, MapStateDescriptor
from statebackend.state.state_kind import StateKind
from statebackend.state.value_state import InternalValueState, ValueStateDescriptor
from statebackend.streaming.rows.row_writer import fitted_column
from typeserializers.containers.lists import ListSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "BULK_STATES",
    "BulkAggregatingState",
    "BulkListState",
    "BulkMapState",
    "BulkReducingState",
    "BulkValueState",
    "Keys",
]

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741

Column: TypeAlias = "pa.Array | pa.ChunkedArray | Sequence[T]"
"""An array, or a list of Python objects."""


class Keys:
    """Keys of a batch: the argument of bulk operations."""

    def __init__(self, batch: KeyBatch, form: ColumnForm, column: pa.Array | None = None) -> None:
        self.batch = batch
        """The keys as the state backend takes them."""
        self._form = form
        self._column = column

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def keys(self) -> pa.Array:
        """The keys as an array. A key of several columns is a struct of `f0`, `f1`, ..."""
        column = self._column
        return (
            column if column is not None and column.type == self._form.data_type else self._form.array(self.batch.keys)
        )

    def take(self, positions: pa.Array | Sequence[int]) -> Keys:
        """Return the keys at these positions, in this order. A position may occur more than once."""
        places: list[int] = positions.to_pylist() if isinstance(positions, pa.Array) else list(positions)
        batch = self.batch
        keys, key_groups = batch.keys, batch.key_groups

        def encode() -> list[bytes] | None:
            rows = batch.rows
            return None if rows is None else [rows[one] for one in places]

        taken = [keys[one] for one in places], [key_groups[one] for one in places]
        return Keys(KeyBatch(*taken, batch.set_key, encode), self._form)

    def filter(self, mask: pa.Array) -> Keys:
        """Return the keys that a mask of booleans selects. Null selects nothing."""
        return self.take([position for position, selected in enumerate(mask.to_pylist()) if selected])


class _ValueColumns:
    """Converts the values of a state from and to arrays."""

    def __init__(self, state_name: str, serializer: TypeSerializer[Any]) -> None:
        self.form = ColumnForms().of(serializer)
        self.where = f"state {state_name!r}"
        self._serializer = serializer

    def array(self, values: Column[Any], data_type: pa.DataType, keys: KeyBatch) -> pa.Array | None:
        """Return given values as an array of a type, or None if they are objects. An error names the key."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not isinstance(values, pa.Array):
            return None
        try:
            return fitted_column(values, data_type)
        except (pa.ArrowException, ValueError) as error:
            # A type that never fits is not the fault of a value.
            fitting = bisect_left(range(len(values) + 1), True, key=lambda n: not _fits(values[:n], data_type)) - 1
            reason = f"an array of {values.type} does not fit values of {data_type}: {error}"
            failure = SerializationError(self.where, (reason,))
            if fitting >= 0 and len(values) == len(keys):
                raise failure.within(_place(keys, fitting)) from error
            raise failure from error

    def objects(self, values: Column[Any], keys: KeyBatch) -> Sequence[Any]:
        """Return given values as objects."""
        column = self.array(values, self.form.data_type, keys)
        return values if column is None else stored_values(self._serializer, column, self.where)

    def check_count(self, keys: KeyBatch, values: Column[Any]) -> None:
        """Raise `ValueError` if there is not one value for each key."""
        if len(values) != len(keys):
            raise ValueError(f"{self.where}: {len(values)} values were given for {len(keys)} keys")

    def check_distinct(self, keys: KeyBatch) -> None:
        """Raise `ValueError` if a key occurs twice."""
        if len(set(keys.keys)) < len(keys):
            raise ValueError(f"{self.where}: a key occurs twice; use the distinct keys of context.groups(batch)")

    def write(
        self,
        keys: KeyBatch,
        values: Sequence[Any],
        put: Callable[[KeyBatch, Sequence[Any]], None],
        fits: Callable[[Any], bool] | None = None,
    ) -> None:
        """Put values; an error names the key of the value that does not fit. By default null fits."""
        self.check_count(keys, values)
        try:
            put(keys, values)
        except SerializationError as error:
            for position, value in enumerate(values):
                if not (value is None or self.fits(value) if fits is None else fits(value)):
                    raise error.within(_place(keys, position)) from error
            raise

    def fits(self, value: Any) -> bool:
        """Whether the serializer accepts a value that is not null."""
        try:
            self._serializer.to_bytes(value)
        except SerializationError:
            return False
        return value is not None


def _fits(values: pa.Array, data_type: pa.DataType) -> bool:
    try:
        fitted_column(values, data_type)
    except (pa.ArrowException, ValueError):
        return False
    return True


def _place(keys: KeyBatch, position: int) -> str:
    return f"key {format_value(keys.keys[position], 80)}, value {position} of {len(keys)}"


class _ValueRows:
    """Converts a value state from and to arrays without Python objects, if its stored bytes have a codec."""

    def __init__(self, values: InternalValueState[Any] | None) -> None:
        self._values: Any = values
        serializer = None if values is None else values.row_serializer
        self.codec = None if serializer is None else column_codec(serializer)

    def get(self, keys: KeyBatch) -> pa.Array | None:
        """Return the values, or None if they need objects."""
        if self.codec is not None:
            with contextlib.suppress(CodecMissError):
                return self.codec.decode(self._values.get_rows(keys))
        return None

    def put(self, keys: KeyBatch, column: pa.Array | None) -> bool:
        """Set the values. Returns False, without changes, if that needs objects."""
        if column is None or self.codec is None or len(column) != len(keys):
            return False
        try:
            rows = self.codec.encode(column)
        except CodecMissError:
            return False
        self._values.put_rows(keys, rows)
        return True


def _batch(keys: Keys) -> KeyBatch:
    if not isinstance(keys, Keys):
        given: object = keys
        raise TypeError(f"keys are {format_value(type(given).__name__)}; pass context.groups(batch), or its of_rows")
    return keys.batch


class BulkState:
    """The base of bulk states."""

    def __init__(self, state: Any) -> None:
        self._state = state

    @property
    def is_vectorised(self) -> bool:
        """Whether values are converted from and to stored bytes without Python objects."""
        return False

    def clear_many(self, keys: Keys) -> None:
        """Remove the state of each key."""
        clear = self._state.clear
        for _ in _batch(keys).each():
            clear()


class BulkValueState(BulkState, Generic[T]):
    """One value per key."""

    def __init__(self, state: InternalValueState[T], descriptor: ValueStateDescriptor[T]) -> None:
        super().__init__(state)
        self._columns = _ValueColumns(descriptor.name, descriptor.serializer)
        self._rows = _ValueRows(state)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        return self._columns.form.data_type

    @property
    def is_vectorised(self) -> bool:
        return self._rows.codec is not None

    def get_many(self, keys: Keys) -> pa.Array:
        """Return the value of each key: null, or the default of the descriptor, if there is none."""
        batch = _batch(keys)
        found = self._rows.get(batch)
        return self._columns.form.array(self._state.get_many(batch)) if found is None else found

    def get_objects(self, keys: Keys) -> list[T | None]:
        """Return the values as Python objects, for types that no Arrow type holds."""
        values: list[T | None] = self._state.get_many(_batch(keys))
        return values

    def put_many(self, keys: Keys, values: Column[T | None]) -> None:
        """Set the value of each key; null clears it. If a key occurs twice, its last value counts.

        Args:
            keys: The keys.
            values: An array of `type`, or of a type that casts to it without a change, or a list of objects.

        Raises:
            SerializationError: A value does not fit. The error names its key.
        """
        batch = _batch(keys)
        self._columns.check_count(batch, values)
        if not self._rows.put(batch, self._columns.array(values, self.type, batch)):
            self._columns.write(batch, self._columns.objects(values, batch), self._state.put_many)

    def clear_many(self, keys: Keys) -> None:
        self._state.put_many(_batch(keys), [None] * len(keys))


class BulkListState(BulkState, Generic[T]):
    """A list per key."""

    def __init__(self, state: InternalListState[T], descriptor: ListStateDescriptor[T]) -> None:
        super().__init__(state)
        self._elements = _ValueColumns(descriptor.name, descriptor.element_serializer)
        self._form = ListForm(self._elements.form)
        element = state.row_serializer
        self._codec = None if element is None else column_codec(ListSerializer(element))
        self._element_codec = None if element is None or self._codec is None else column_codec(element)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the lists."""
        return self._form.data_type

    @property
    def is_vectorised(self) -> bool:
        return self._codec is not None

    def get_many(self, keys: Keys) -> pa.Array:
        """Return the list of each key, empty if there is none."""
        batch = _batch(keys)
        if self._codec is not None:
            with contextlib.suppress(CodecMissError):
                return self._codec.decode(self._state.get_rows(batch))
        return self._form.array(self._state.get_many(batch))

    def add_many(self, keys: Keys, elements: Column[T]) -> None:
        """Append one element to the list of each key, in order. A key may occur more than once.

        ``add_many(groups.of_rows, batch["amount"])`` appends a column of the batch. Null is rejected. Raises as
        `BulkValueState.put_many`.
        """
        batch = _batch(keys)
        self._elements.check_count(batch, elements)
        column = self._elements.array(elements, self._elements.form.data_type, batch)
        if self._element_codec is not None and column is not None and not column.null_count:
            with contextlib.suppress(CodecMissError):
                self._state.add_rows(batch, self._element_codec.encode(column))
                return
        given = self._elements.objects(elements, batch)
        self._elements.write(batch, given, self._state.add_many, self._elements.fits)

    def put_many(self, keys: Keys, lists: Column[Sequence[T] | None]) -> None:
        """Replace the list of each key. Null and an empty list clear it. Raises as `BulkValueState.put_many`."""
        batch = _batch(keys)
        self._elements.check_count(batch, lists)
        column, given = self._elements.array(lists, self.type, batch), lists
        if column is not None:
            elements, offsets = self._elements.objects(column.flatten(), batch), _offsets(column)
            given = [elements[start:end] for start, end in pairwise(offsets)]

        def fits(one: Any) -> bool:
            return one is None or all(map(self._elements.fits, one))

        self._elements.write(batch, given, self._state.put_many, fits)


class BulkMapState(BulkState, Generic[K, V]):
    """A map per key. Its methods take pairs: a key, and the user key at the same position."""

    def __init__(self, state: InternalMapState[K, V], descriptor: MapStateDescriptor[K, V]) -> None:
        super().__init__(state)
        self._user_keys = _ValueColumns(descriptor.name, descriptor.key_serializer)
        self._values = _ValueColumns(descriptor.name, descriptor.value_serializer)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        return self._values.form.data_type

    def get_many(self, keys: Keys, user_keys: Column[K]) -> pa.Array:
        """Return the value of each pair, null if it is null or absent."""
        return self._values.form.array(self._state.get_many(_batch(keys), self._checked(keys, user_keys)))

    def contains_many(self, keys: Keys, user_keys: Column[K]) -> pa.Array:
        """Return whether each pair has an entry, whose value may be null."""
        return pa.array(self._state.contains_many(_batch(keys), self._checked(keys, user_keys)), pa.bool_())

    def get_maps(self, keys: Keys) -> pa.Array:
        """Return all entries of each key as an array of maps."""
        form = MapForm(self._user_keys.form, self._values.form)
        return form.array([dict(self._state.items()) for _ in _batch(keys).each()])

    def put_many(self, keys: Keys, user_keys: Column[K], values: Column[V | None]) -> None:
        """Set the entry of each pair. A null value is stored. The last value of a pair that occurs twice counts.

        Raises as `BulkValueState.put_many`.
        """
        batch = _batch(keys)
        given, put = self._checked(keys, user_keys), self._state.put_many
        taken = self._values.objects(values, batch)

        def put_values(batch: KeyBatch, _: Any) -> None:
            self._values.write(batch, taken, lambda batch, values: put(batch, given, values))

        self._user_keys.write(batch, given, put_values, self._user_keys.fits)

    def remove_many(self, keys: Keys, user_keys: Column[K]) -> None:
        """Remove the entry of each pair. A missing one is not an error."""
        self._state.remove_many(_batch(keys), self._checked(keys, user_keys))

    def _checked(self, keys: Keys, user_keys: Column[K]) -> Sequence[K]:
        batch = _batch(keys)
        self._user_keys.check_count(batch, user_keys)
        return self._user_keys.objects(user_keys, batch)


Kernel: TypeAlias = Callable[[pa.Array, pa.Array], pa.Array]
"""Combines two arrays of the same length, as ``pyarrow.compute.add`` or ``pyarrow.compute.max_element_wise``."""


class BulkReducingState(BulkState, Generic[T]):
    """One value per key, into which values are folded."""

    def __init__(self, state: InternalReducingState[T], descriptor: ReducingStateDescriptor[T]) -> None:
        super().__init__(state)
        self._columns = _ValueColumns(descriptor.name, descriptor.serializer)
        self._rows = _ValueRows(state.stored_values)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        return self._columns.form.data_type

    @property
    def is_vectorised(self) -> bool:
        return self._rows.codec is not None

    def get_many(self, keys: Keys) -> pa.Array:
        """Return the folded value of each key, null if there is none."""
        batch = _batch(keys)
        found = self._rows.get(batch)
        return self._columns.form.array(self._state.get_internal_many(batch)) if found is None else found

    def add_many(self, keys: Keys, values: Column[T]) -> None:
        """Fold one value into that of each key by the function of the descriptor, in order. A key may occur more than
        once.
        """
        batch = _batch(keys)
        self._columns.write(batch, self._columns.objects(values, batch), partial(_add_each, self._state.add))

    def merge_many(self, keys: Keys, values: Column[T], kernel: Kernel) -> None:
        """Fold one value into that of each key by a kernel, which must compute what the descriptor's function does.

        Raises:
            ValueError: A key occurs twice.
            SerializationError: A value is null or does not fit.
        """
        batch = _batch(keys)
        self._columns.check_distinct(batch)
        self._columns.check_count(batch, values)
        added = self._columns.array(values, self.type, batch)
        if added is None:
            added = self._columns.form.array(cast("Sequence[T]", values))
        if added.null_count:
            raise SerializationError(self._columns.where, ("null cannot be folded into reducing state",))
        before = self.get_many(keys)
        merged = pc.if_else(before.is_null(), added, fitted_column(kernel(before, added), self.type))
        if not self._rows.put(batch, merged):
            given = self._columns.objects(merged, batch)
            self._columns.write(batch, given, self._state.update_internal_many)


class BulkAggregatingState(BulkState, Generic[I, O]):
    """One accumulator per key, into which values are folded."""

    def __init__(
        self, state: InternalAggregatingState[I, O], descriptor: AggregatingStateDescriptor[I, Any, O]
    ) -> None:
        super().__init__(state)
        self._columns = _ValueColumns(descriptor.name, descriptor.accumulator_serializer)
        self._rows = _ValueRows(state.stored_values)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the accumulators."""
        return self._columns.form.data_type

    @property
    def is_vectorised(self) -> bool:
        return self._rows.codec is not None

    def get_results(self, keys: Keys) -> list[O | None]:
        """Return the result of the descriptor's function for each key, None if nothing was added."""
        get = self._state.get
        return [get() for _ in _batch(keys).each()]

    def add_many(self, keys: Keys, values: Sequence[I]) -> None:
        """Fold one value into the accumulator of each key, in order. A key may occur more than once."""
        batch = _batch(keys)
        self._columns.check_count(batch, values)
        _add_each(self._state.add, batch, values)

    def get_accumulators(self, keys: Keys) -> pa.Array:
        """Return the accumulator of each key, null if nothing was added."""
        batch = _batch(keys)
        found = self._rows.get(batch)
        return self._columns.form.array(self._state.get_internal_many(batch)) if found is None else found

    def put_accumulators(self, keys: Keys, accumulators: Column[Any]) -> None:
        """Set the accumulator of each key, as an Arrow kernel computed it. Null clears it.

        Raises as `BulkValueState.put_many`.
        """
        batch = _batch(keys)
        if not self._rows.put(batch, self._columns.array(accumulators, self.type, batch)):
            given = self._columns.objects(accumulators, batch)
            self._columns.write(batch, given, self._state.update_internal_many)


def _add_each(add: Callable[[Any], None], keys: KeyBatch, values: Sequence[Any]) -> None:
    for _, value in zip(keys.each(), values, strict=True):
        add(value)


def _offsets(column: pa.Array) -> list[int]:
    """The start of each list in the flattened column, and its end. A null list has no elements."""
    lengths = column.value_lengths().fill_null(0).to_pylist()
    return list(accumulate(lengths, initial=0))


BULK_STATES: dict[StateKind, Callable[[Any, Any], BulkState]] = {
    ValueStateDescriptor.kind: BulkValueState,
    ListStateDescriptor.kind: BulkListState,
    MapStateDescriptor.kind: BulkMapState,
    ReducingStateDescriptor.kind: BulkReducingState,
    AggregatingStateDescriptor.kind: BulkAggregatingState,
}
"""The bulk state of each kind, from a handle and its descriptor."""
