"""State of many keys at once, as `KeyedBatchFunction` uses it.

A bulk state reads and writes Arrow arrays. The stored bytes are those of the per-record state of the same descriptor,
so a job may change from one form to the other over a savepoint. The Arrow type of a state is that of
`statebackend.savepoint.value_forms`: a record is a struct, and null means that a key has no state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar

import pyarrow as pa

from snapshots.errors import SerializationError
from statebackend.savepoint.value_forms import ColumnForm, ColumnForms, stored_values
from statebackend.state.key_batch import KeyBatch
from statebackend.state.value_state import InternalValueState, ValueStateDescriptor
from statebackend.streaming.errors import format_value
from statebackend.streaming.rows.row_writer import fitted_column
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["BulkValueState", "Keys"]

T = TypeVar("T")


class Keys:
    """Keys of a batch: the argument of bulk operations."""

    def __init__(self, batch: KeyBatch, form: ColumnForm) -> None:
        self.batch = batch
        """The keys as the state backend takes them."""
        self._form = form

    def __len__(self) -> int:
        return len(self.batch)

    @cached_property
    def keys(self) -> pa.Array:
        """The keys as an array. A key of several columns is a struct of `f0`, `f1`, ..."""
        return self._form.array(self.batch.keys)

    def take(self, positions: pa.Array | Sequence[int]) -> Keys:
        """Return the keys at these positions, in this order. A position may occur more than once."""
        places: list[int] = positions.to_pylist() if isinstance(positions, pa.Array) else list(positions)
        keys, key_groups = self.batch.keys, self.batch.key_groups
        taken = KeyBatch([keys[one] for one in places], [key_groups[one] for one in places], self.batch.set_key)
        return Keys(taken, self._form)

    def filter(self, mask: pa.Array) -> Keys:
        """Return the keys that a mask of booleans selects. Null selects nothing."""
        return self.take([position for position, selected in enumerate(mask.to_pylist()) if selected])


class _ValueColumns:
    """Converts the values of a state from and to arrays."""

    def __init__(self, state_name: str, serializer: TypeSerializer[Any]) -> None:
        self.form = ColumnForms().of(serializer)
        self._where = f"state {state_name!r}"
        self._serializer = serializer

    def objects(self, values: pa.Array | pa.ChunkedArray | Sequence[Any]) -> Sequence[Any]:
        """Return the values as objects."""
        if isinstance(values, pa.ChunkedArray):
            values = values.combine_chunks()
        if not isinstance(values, pa.Array):
            return values
        try:
            column = fitted_column(values, self.form.data_type)
        except (pa.ArrowException, ValueError) as error:
            raise SerializationError(
                self._where, (f"an array of {values.type} does not fit values of {self.form.data_type}: {error}",)
            ) from error
        return stored_values(self._serializer, column, self._where)

    def write(self, keys: KeyBatch, values: Sequence[Any], put: Callable[[KeyBatch, Sequence[Any]], None]) -> None:
        """Put values; an error names the key of the value that does not fit."""
        if len(values) != len(keys):
            raise ValueError(f"{self._where}: {len(values)} values were given for {len(keys)} keys")
        try:
            put(keys, values)
        except SerializationError as error:
            for position, value in enumerate(values):
                if value is not None and not self._fits(value):
                    key = format_value(keys.keys[position], 80)
                    raise error.within(f"key {key}, value {position} of {len(values)}") from error
            raise

    def _fits(self, value: Any) -> bool:
        try:
            self._serializer.to_bytes(value)
        except SerializationError:
            return False
        return True


class BulkValueState(Generic[T]):
    """One value per key."""

    def __init__(self, state: InternalValueState[T], descriptor: ValueStateDescriptor[T]) -> None:
        self._state = state
        self._columns = _ValueColumns(descriptor.name, descriptor.serializer)

    @property
    def type(self) -> pa.DataType:
        """The Arrow type of the values."""
        return self._columns.form.data_type

    def get_many(self, keys: Keys) -> pa.Array:
        """Return the value of each key: null, or the default of the descriptor, if there is none."""
        return self._columns.form.array(self._state.get_many(keys.batch))

    def get_objects(self, keys: Keys) -> list[T | None]:
        """Return the values as Python objects, for types that no Arrow type holds."""
        return self._state.get_many(keys.batch)

    def put_many(self, keys: Keys, values: pa.Array | Sequence[T | None]) -> None:
        """Set the value of each key; null clears it. If a key occurs twice, its last value counts.

        Args:
            keys: The keys.
            values: An array of `type`, or of a type that casts to it without a change, or a list of objects.

        Raises:
            SerializationError: A value does not fit. The error names its key.
        """
        self._columns.write(keys.batch, self._columns.objects(values), self._state.put_many)

    def clear_many(self, keys: Keys) -> None:
        """Remove the value of each key."""
        self._state.put_many(keys.batch, [None] * len(keys))
