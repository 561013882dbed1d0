"""Converts between rows (columns of bytes) and entries (columns of values), lazily in both directions.

`EntryBatch` decodes only requested columns and encodes only changed ones. The bytes of other columns are copied. A
value that does not fit is rejected with state, key and column.

Keys are written in the form that a job looks up. A datetime in any zone is converted to `datetime.timezone.utc`,
because a job would not find the bytes of another zone. A datetime without a zone is rejected, because its meaning
depends on the machine. None in a key column and a bool for a number are also rejected, because no job has such a key.

Times of last access: an unchanged value or list keeps them. All elements of a changed list get its latest time, so no
element expires early.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from snapshots.errors import SerializationError, format_value
from statebackend.savepoint.column_codecs import column_to_write, read_column, write_column
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import ColumnValueError, EntryError
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.savepoint.value_forms import stored_values
from statebackend.state.canonical import SCHEMA
from statebackend.state.clock import wall_clock
from statebackend.state.descriptors import ELEMENT_ROLE
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_columns import moment_in_utc
from statebackend.state.state_kind import StateKind
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlValue
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    DoubleSerializer,
    FixedWidthSerializer,
    IntSerializer,
    LongSerializer,
)
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer
from typeserializers.times.python_times import PythonDateTimeSerializer
from typeserializers.times.timers import Timer

__all__ = [
    "EntryBatch",
    "canonical",
    "canonical_key",
    "decoded",
    "encoded",
    "encoded_keys",
    "joined_chunks",
    "key_of",
    "latest_time",
    "rejected_key",
    "stored_keys",
    "time_or_now",
    "times_after_change",
    "times_of_elements",
]


def times_after_change(before: Sequence[Any], after: Any, times: Sequence[int]) -> tuple[int, ...]:
    """Return the times of a list after a function changed it. ``before`` is a copy of the list.

    An equal list keeps its times. Otherwise every element gets the latest time, so no element expires early.
    """
    if not isinstance(after, (list, tuple)):
        return tuple(times)
    try:
        is_same = list(after) == list(before)
    except Exception:
        # Elements may not be comparable.
        is_same = False
    return tuple(times) if is_same else (max(times, default=0),) * len(after)


def latest_time(times: int | Sequence[int]) -> int:
    """Return the latest time."""
    return times if isinstance(times, int) else max(times, default=0)


def times_of_elements(elements: Sequence[Any], times: int | Sequence[int]) -> Sequence[int]:
    """Return one time per element: its own time, or the latest time of the list if the length changed."""
    if isinstance(times, int):
        return [times] * len(elements)
    return times if len(times) == len(elements) else [max(times, default=0)] * len(elements)


def time_or_now(time_ms: int | None) -> int:
    """Return the time, or the current time for None."""
    return wall_clock() if time_ms is None else time_ms


def rejected_key(serializer: TypeSerializer[Any], keys: Sequence[Any] | pa.Array) -> tuple[int, str] | None:
    """Return index and reason of the first key that can be serialized but that no job has, or None."""
    if isinstance(keys, pa.Array):
        return _null_key(keys)
    if not isinstance(serializer, TupleSerializer):
        place = _none_or_truth(serializer, keys)
        return None if place is None else (place, _why(keys[place], "None cannot be one"))
    if not all(issubclass(kind, (tuple, list)) for kind in set(map(type, keys))):
        # The serializer rejects other values.
        return None
    for part, column in zip(serializer.field_serializers, zip(*keys, strict=False), strict=False):
        place = _none_or_truth(part, column)
        if place is not None:
            return place, _why(column[place], "a column of it is None")
    return None


def _null_key(keys: pa.Array) -> tuple[int, str] | None:
    # Unlike a list, a column of integers has no booleans.
    columns = keys.flatten() if pa.types.is_struct(keys.type) and not keys.null_count else [keys]
    nulls = next((column for column in columns if column.null_count), None)
    if nulls is None:
        return None
    return nulls.is_null().index(True).as_py(), "None cannot be one" if nulls is keys else "a column of it is None"


def _none_or_truth(serializer: TypeSerializer[Any], values: Sequence[Any]) -> int | None:
    is_number = isinstance(serializer, FixedWidthSerializer) and serializer.value_class is int
    rejected = {type(None), bool} if is_number else {type(None)}
    if rejected.isdisjoint(map(type, values)):
        return None
    return next(place for place, value in enumerate(values) if type(value) in rejected)


def _why(value: Any, if_none: str) -> str:
    return if_none if value is None else f"{format_value(value)} is a bool, and the column has numbers"


def canonical_key(serializer: TypeSerializer[Any]) -> Callable[[Any], Any] | None:
    """Return the function that converts a value to the form of the key in a job, or None if no conversion is needed.

    The function raises `ValueError` or `OverflowError` for a datetime without a zone, or outside the range in UTC.
    """
    if isinstance(serializer, TupleSerializer):
        moments = [index for index, part in enumerate(serializer.field_serializers) if _is_moment(part)]
        return partial(_with_moments, moments) if moments else None
    return _moment if _is_moment(serializer) else None


def _is_moment(serializer: TypeSerializer[Any]) -> bool:
    return isinstance(serializer, PythonDateTimeSerializer)


def _with_moments(indexes: list[int], key: Any) -> Any:
    if not isinstance(key, tuple):
        return key
    return tuple(_moment(part) if index in indexes else part for index, part in enumerate(key))


def _moment(value: Any) -> Any:
    if not isinstance(value, datetime.datetime):
        raise ValueError("is not a datetime.datetime")
    if value.utcoffset() is None:
        raise ValueError("has no time zone, so it is another moment on another machine; give it one, such as UTC")
    return moment_in_utc(value)


_TIMESTAMP_BYTES: Final = 8
_COUNT_BYTES: Final = 4


def decoded(schema: EntrySchema, rows: pa.RecordBatch, column: str) -> list[Any]:
    """Decode one column of entries. A list is one row. Raises `StateRestoreError`."""
    if schema.is_queue:
        timers = _read(schema, schema.serializers[ELEMENT_ROLE], rows.column("key"))
        return list(map(_PARTS_OF_TIMERS[column], timers))
    if column in ("value", "last_access_ms"):
        return _values(schema, rows.column("value"), column)
    return _read(schema, schema.values_of(column), rows.column(column))


def key_of(schema: EntrySchema, rows: pa.RecordBatch) -> Any:
    """Return the key of the first row, for messages."""
    return decoded(schema, rows.slice(0, 1), "key")[0]


def stored_keys(schema: EntrySchema, rows: pa.RecordBatch) -> pa.Array:
    """Return the stored keys of the rows. Raises `StateRestoreError` for a queue without timers."""
    column = rows.column("key")
    if not schema.is_queue:
        return column
    if not schema.is_timers:
        raise StateRestoreError(
            f"state {schema.name!r} is a queue of elements that are not timers, so their keys are unknown"
        )
    if not schema.has_namespaces:
        return pc.binary_slice(column, _TIMESTAMP_BYTES, -1)
    return pa.array(map(schema.key_serializer.to_bytes, decoded(schema, rows, "key")), pa.binary())


def joined_chunks(rows: pa.RecordBatch) -> bytes:
    """Join the chunks of one list."""
    chunks = rows.column("value").to_pylist()
    count = sum(int.from_bytes(chunk[:_COUNT_BYTES], "big", signed=True) for chunk in chunks)
    return count.to_bytes(_COUNT_BYTES, "big", signed=True) + b"".join(chunk[_COUNT_BYTES:] for chunk in chunks)


def _values(schema: EntrySchema, column: pa.Array, wanted: str) -> list[Any]:
    assert isinstance(schema.kind, StateKind)
    values = _read(schema, schema.kind.storage_serializer(schema.serializers), column)
    if not schema.is_timed:
        return values
    if schema.is_list:
        if wanted == "value":
            return [list(map(_value_of, elements)) for elements in values]
        return [tuple(map(_time_of, elements)) for elements in values]
    return list(map(_value_of if wanted == "value" else _time_of, values))


def _read(schema: EntrySchema, serializer: TypeSerializer[Any], column: pa.Array) -> list[Any]:
    try:
        whole = read_column(serializer, column) if _is_plain(serializer) else None
        if whole is not None:
            found: list[Any] = whole.to_pylist()
            return found
        return list(map(serializer.from_bytes, column.to_pylist()))
    except Exception as error:
        # A custom serializer may raise anything for invalid bytes.
        raise StateRestoreError(f"state {schema.name!r}: an entry cannot be read: {error}") from error


def _is_plain(serializer: TypeSerializer[Any]) -> bool:
    """Whether Arrow's Python values of a column are those of the state."""
    inner = serializer.inner if isinstance(serializer, NullableSerializer) else serializer
    return isinstance(inner, (FixedWidthSerializer, StringSerializer, BytesSerializer))


def _column(serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array) -> pa.Array | None:
    """Return the values as a column that is encoded as a whole, or None if they must be encoded one by one."""
    if not isinstance(values, pa.Array):
        known = _WHOLE.get(type(serializer))
        if known is None or set(map(type, values)) != {known[1]}:
            return None
        try:
            values = pa.array(values, known[0])
        except (pa.ArrowException, OverflowError, UnicodeError):
            return None
    column = column_to_write(serializer, values)
    is_complete = column is None or not column.null_count or isinstance(serializer, NullableSerializer)
    return column if is_complete else None


def _whole(serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array) -> pa.Array | None:
    """Encode values as a column, or return None if they must be encoded one by one."""
    column = _column(serializer, values)
    try:
        return None if column is None else write_column(serializer, column)
    except (pa.ArrowException, ColumnValueError, SerializationError, OverflowError, UnicodeError):
        return None


_WHOLE: Final[Mapping[type, tuple[pa.DataType, type]]] = {
    BooleanSerializer: (pa.bool_(), bool),
    LongSerializer: (pa.int64(), int),
    IntSerializer: (pa.int32(), int),
    DoubleSerializer: (pa.float64(), float),
    StringSerializer: (pa.string(), str),
}
"""The Arrow type and the Python type of values that are encoded as a column, by serializer."""


def _listed(serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array) -> Sequence[Any]:
    if not isinstance(values, pa.Array):
        return values
    found: list[Any] = stored_values(serializer, values, "") if pa.types.is_nested(values.type) else values.to_pylist()
    return found


_value_of, _time_of = operator.itemgetter(0), operator.itemgetter(1)
"""The parts of a `TtlValue`."""


_PARTS_OF_TIMERS: Final[Mapping[str, Callable[[Timer[Any, Any]], Any]]] = {
    "key": lambda timer: timer.key,
    "namespace": lambda timer: timer.namespace,
    "value": lambda timer: timer.timestamp,
}


Columns = Mapping[str, Sequence[Any]]
Keys = Callable[[], Sequence[Any]]

_NO_NAMESPACE: Final = VoidNamespaceSerializer().to_bytes(VOID_NAMESPACE)
_NEVER_NONE: Final = ("namespace", "user key")
_SIGN: Final = pa.scalar(-(1 << 63), pa.int64())


def encoded(schema: EntrySchema, columns: Columns, keys: Keys) -> dict[str, pa.Array]:
    """Encode columns of entries as columns of rows, without key groups. ``keys`` returns the keys for messages.

    Raises:
        EntryError: A value does not fit. The message names state and key.
    """
    return _Encoding(schema, keys).rows(columns)


def encoded_keys(schema: EntrySchema, keys: Sequence[Any]) -> pa.Array:
    """Encode keys. Raises `EntryError` for a key that does not fit."""
    return _Encoding(schema, lambda: keys).keys(keys)


def canonical(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with all columns of the canonical form."""
    count = rows.num_rows
    columns = []
    for field in SCHEMA:
        if field.name in rows.schema.names:
            columns.append(rows.column(field.name))
        elif field.name == "namespace":
            columns.append(pa.repeat(pa.scalar(_NO_NAMESPACE, pa.binary()), count))
        elif field.name == "value":
            columns.append(pa.repeat(pa.scalar(b"", pa.binary()), count))
        else:
            columns.append(pa.nulls(count, field.type))
    return pa.record_batch(columns, schema=SCHEMA)


@frozen
class _Encoding:
    """Encodes entries of a schema. ``given_keys`` returns the keys for messages."""

    schema: EntrySchema
    given_keys: Keys

    def rows(self, columns: Columns) -> dict[str, pa.Array]:
        schema = self.schema
        if schema.is_queue:
            return {"key": self._timers(columns)}
        rows = {"key": self.keys(columns["key"])} if "key" in columns else {}
        for name in ("namespace", "user_key"):
            if name in columns:
                rows[name] = self._written(schema.values_of(name), columns[name], name.replace("_", " "))
        if "value" in columns:
            rows["value"] = self._values(columns["value"], columns.get("last_access_ms"))
        return rows

    def keys(self, keys: Sequence[Any]) -> pa.Array:
        return self._written(self.schema.key_serializer, self._canonical_keys(keys), "key")

    def _timers(self, columns: Columns) -> pa.Array:
        schema = self.schema
        spaces = columns["namespace"] if schema.has_namespaces else [VOID_NAMESPACE] * len(columns["value"])
        self._reject_none(spaces, "namespace", "None cannot be one")
        times, keys = columns["value"], self._canonical_keys(columns["key"])
        serializer: Any = schema.serializers[ELEMENT_ROLE]
        if schema.is_timers:
            time_column, written_keys = _column(LongSerializer(), times), _whole(serializer.key_serializer, keys)
            written_spaces = _whole(serializer.namespace_serializer, spaces) if schema.has_namespaces else _NO_NAMESPACE
            if time_column is not None and written_keys is not None and written_spaces is not None:
                flipped = write_column(LongSerializer(), pc.bit_wise_xor(time_column, _SIGN))
                return pc.binary_join_element_wise(flipped, written_keys, written_spaces, b"")
            times, keys, spaces = (
                _listed(schema.values_of(name), column)
                for name, column in (("value", times), ("key", keys), ("namespace", spaces))
            )
        return self._written(serializer, list(map(Timer, times, keys, spaces)), "timer")

    def _canonical_keys(self, keys: Sequence[Any]) -> Sequence[Any]:
        serializer = self.schema.key_serializer
        rejected = rejected_key(serializer, keys)
        if rejected is not None:
            raise self._misfit("key", rejected[1], rejected[0])
        make = canonical_key(serializer)
        if make is None:
            return keys
        given = keys.to_pylist() if isinstance(keys, pa.Array) else keys
        made: list[Any] = []
        try:
            # The length of the list shows which key was rejected.
            made.extend(map(make, given))
        except (ValueError, OverflowError) as error:
            raise self._misfit("key", f"{format_value(given[len(made)])}: {error}", len(made)) from error
        return made

    def _values(self, values: Sequence[Any] | pa.Array, times: Sequence[Any] | pa.Array | None) -> pa.Array:
        schema = self.schema
        assert isinstance(schema.kind, StateKind)
        if schema.is_timed and isinstance(values, pa.Array) and not schema.is_list:
            stored = None if values.null_count else _whole(schema.values_of("value"), values)
            written_times = _whole(LongSerializer(), times)
            if stored is not None and written_times is not None:
                return pc.binary_join_element_wise(b"\0" if schema.is_map else b"", written_times, stored, b"")
        if schema.is_timed:
            values, times = _listed(schema.values_of("value"), values), _listed(LongSerializer(), times)
        return self._written(
            schema.kind.storage_serializer(schema.serializers), self._stored_values(values, times), "value"
        )

    def _stored_values(self, values: Sequence[Any], times: Sequence[Any] | None) -> Sequence[Any]:
        schema = self.schema
        if schema.is_list:
            self._check_lists(values)
        elif not schema.is_map:
            self._reject_none(values, "value", "None means that there is no entry; leave it out")
        if not schema.is_timed:
            return values
        assert times is not None
        if not schema.is_list:
            return list(map(TtlValue, values, map(latest_time, times)))
        own_times = map(times_of_elements, values, times)
        return [list(map(TtlValue, elements, own)) for elements, own in zip(values, own_times, strict=True)]

    def _check_lists(self, values: Sequence[Any]) -> None:
        if isinstance(values, pa.Array):
            values = values.to_pylist() if values.null_count or values.flatten().null_count else ()
        for row, elements in enumerate(values):
            if not isinstance(elements, (list, tuple)):
                raise self._misfit("value", f"{format_value(elements)} is not a list", row)
            if type(None) in set(map(type, elements)):
                raise self._misfit("value", "None cannot be an element of a list", row)

    def _reject_none(self, values: Sequence[Any] | pa.Array, what: str, reason: str) -> None:
        if isinstance(values, pa.Array):
            values = values.to_pylist() if values.null_count else ()
        if type(None) in set(map(type, values)):
            raise self._misfit(what, reason, next(row for row, value in enumerate(values) if value is None))

    def _written(self, serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array, what: str) -> pa.Array:
        if what in _NEVER_NONE:
            self._reject_none(values, what, "None cannot be one")
        whole = _whole(serializer, values)
        if whole is not None:
            return whole
        given = _listed(serializer, values)
        try:
            return pa.array(list(map(serializer.codec.write, given)), pa.binary())
        except Exception as unclear:
            # Errors of the compiled codec have no details, so encode again to get them.
            for row, error in enumerate(map(partial(_rejection, serializer.to_bytes), given)):
                if error is not None:
                    raise self._misfit(what, str(error), row) from error
            raise unclear

    def _misfit(self, what: str, reason: str, row: int) -> EntryError:
        place = ""
        if what != "key":
            key = self.given_keys()[row]
            if isinstance(key, pa.Scalar):
                key = tuple(key.as_py().values()) if isinstance(key, pa.StructScalar) else key.as_py()
            place = f", key {format_value(key)}"
        return EntryError(f"state {self.schema.name!r}{place}: the {what} does not fit: {reason}")


def _rejection(to_bytes: Callable[[Any], bytes], value: Any) -> SerializationError | None:
    try:
        to_bytes(value)
    except SerializationError as error:
        return error
    return None


class EntryBatch:
    """Entries of one state. ``rows`` are the rows that they were read from, ``changed`` the changed columns.

    Entries that were not read from rows have all columns in ``changed``.
    """

    def __init__(
        self,
        schema: EntrySchema,
        rows: pa.RecordBatch | None,
        changed: Mapping[str, Sequence[Any]],
        read: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.schema = schema
        self._rows = rows
        self._changed = dict(changed)
        self._read = dict(read or {})

    def __len__(self) -> int:
        return self._rows.num_rows if self._rows is not None else len(next(iter(self._changed.values())))

    def column(self, name: str) -> Sequence[Any]:
        """Return a column of the entries: ``key``, ``namespace``, ``user_key``, ``value`` or ``last_access_ms``."""
        if name in self._changed:
            return self._changed[name]
        if name not in self._read:
            self._read[name] = decoded(self.schema, self._stored, name)
        return self._read[name]

    def entries(self) -> list[StateEntry]:
        """Return the entries in the form of `Savepoint.read`."""
        schema, groups = self.schema, self._stored.column("key_group").to_pylist()
        nothing = [None] * len(groups)
        spaces = self.column("namespace") if schema.has_namespaces else nothing
        user_keys = self.column("user_key") if schema.is_map else nothing
        times = self.column("last_access_ms") if schema.is_timed else nothing
        return list(map(StateEntry, groups, self.column("key"), spaces, user_keys, self.column("value"), times))

    def changed(self, name: str, values: Sequence[Any]) -> EntryBatch:
        """Return the entries with another column."""
        return EntryBatch(self.schema, self._rows, {**self._changed, name: values}, self._read)

    def kept(self, is_kept: Sequence[bool]) -> EntryBatch:
        """Return the entries with a flag that is True."""
        if all(is_kept):
            return self
        rows = self._stored.filter(pa.array(is_kept, pa.bool_()))
        changed, read = (
            {name: [value for value, keep in zip(values, is_kept, strict=True) if keep] for name, values in one.items()}
            for one in (self._changed, self._read)
        )
        return EntryBatch(self.schema, rows, changed, read)

    def written(self, target: EntrySchema, placement: KeyPlacement | None) -> pa.RecordBatch:
        """Return the rows in the target schema, with key groups from the placement if there is one.

        Raises:
            EntryError: A value does not fit.
            KeyHashError: A key does not fit the placement.
        """
        needed = self._columns_to_encode(target)
        written = (
            encoded(target, {name: self.column(name) for name in needed}, partial(self.column, "key")) if needed else {}
        )
        rest = target.row_columns[1:]
        arrays = {name: written[name] if name in written else self._stored.column(name) for name in rest}
        if placement is not None:
            groups = placement.of_stored(self._keys_for(target, placement, arrays))
        else:
            groups = self._stored.column("key_group")
        columns = [groups, *arrays.values()]
        return pa.RecordBatch.from_arrays(columns, names=["key_group", *arrays])

    def _columns_to_encode(self, target: EntrySchema) -> tuple[str, ...]:
        every = (*target.entry_columns, *(("last_access_ms",) if target.is_timed else ()))
        if self._rows is None:
            return every
        if target.is_queue:
            # A timer is one value and is written as a whole.
            is_other = not target.has_values_of(self.schema)
            return every if is_other or self._changed else ()
        fixed: tuple[str, ...] = ("key", "namespace", "user_key")
        needed = [name for name in fixed if name in every and name in self._changed]
        if not target.has_keys_of(self.schema) and "key" not in needed:
            needed.append("key")
        if not target.has_user_keys_of(self.schema) and "user_key" not in needed:
            needed.append("user_key")
        is_other = not target.has_values_of(self.schema)
        if is_other or "value" in self._changed or "last_access_ms" in self._changed:
            needed += [name for name in ("value", "last_access_ms") if name in every]
        return tuple(needed)

    def _keys_for(self, target: EntrySchema, placement: KeyPlacement, arrays: Mapping[str, pa.Array]) -> pa.Array:
        if not target.is_queue:
            return arrays["key"]
        if "key" in self._changed or self._rows is None:
            return encoded_keys(target, self.column("key"))
        return stored_keys(self.schema, self._stored)

    @property
    def _stored(self) -> pa.RecordBatch:
        assert self._rows is not None
        return self._rows
