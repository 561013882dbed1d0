"""From rows as columns of bytes to entries as columns of values: what `EntryReader` reads, many at a time.

Only the column that is asked for is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from savepoints.tabular.whole_columns import whole_column
from savepoints.writing.entry_schema import EntrySchema
from statebackend.api.descriptors import ELEMENT_ROLE
from statebackend.api.errors import StateRestoreError
from statebackend.kinds.state_kind import StateKind
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlValue
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.records import AttrsSerializer
from typeserializers.times.timers import Timer

__all__ = ["decoded", "joined_chunks", "key_of", "stored_keys"]

_TIMESTAMP_BYTES: Final = 8
_COUNT_BYTES: Final = 4


def decoded(schema: EntrySchema, rows: pa.RecordBatch, column: str) -> list[Any]:
    """A column of the entries of these rows, of which a list is one row. Raises `StateRestoreError`."""
    if schema.is_queue:
        timers = _read(schema, schema.serializers[ELEMENT_ROLE], rows.column("key"))
        return list(map(_PARTS_OF_TIMERS[column], timers))
    if column in ("value", "last_access_ms"):
        return _values(schema, rows.column("value"), column)
    return _read(schema, schema.values_of(column), rows.column(column))


def key_of(schema: EntrySchema, rows: pa.RecordBatch) -> Any:
    """The key of the first of these rows, for messages."""
    return decoded(schema, rows.slice(0, 1), "key")[0]


def stored_keys(schema: EntrySchema, rows: pa.RecordBatch) -> pa.Array:
    """The bytes of the keys of these rows. Raises `StateRestoreError` for a queue of what are no timers."""
    column = rows.column("key")
    if not schema.is_queue:
        return column
    if not schema.is_timers:
        raise StateRestoreError(
            f"state {schema.name!r} is a queue of elements that are no timers: which keys they are of is not known"
        )
    if not schema.has_namespaces:
        return pc.binary_slice(column, _TIMESTAMP_BYTES, -1)
    return pa.array(map(schema.key_serializer.to_bytes, decoded(schema, rows, "key")), pa.binary())


def joined_chunks(rows: pa.RecordBatch) -> bytes:
    """The chunks of one list as one."""
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
        whole = None if _makes_records(serializer) else whole_column(serializer, column)
        if whole is not None:
            found: list[Any] = whole.to_pylist()
            return found
        return list(map(serializer.from_bytes, column.to_pylist()))
    except Exception as error:
        # A serializer may be anybody's: whatever it makes of bytes that do not fit, one kind of error comes out.
        raise StateRestoreError(f"state {schema.name!r}: an entry cannot be read: {error}") from error


def _makes_records(serializer: TypeSerializer[Any]) -> bool:
    """Whether a column of its values has something else in the place of them."""
    inner = serializer.inner if isinstance(serializer, NullableSerializer) else serializer
    return isinstance(inner, AttrsSerializer)


def _value_of(stored: TtlValue[Any]) -> Any:
    return stored.value


def _time_of(stored: TtlValue[Any]) -> int:
    return stored.last_access_timestamp


_PARTS_OF_TIMERS: Final[Mapping[str, Callable[[Timer[Any, Any]], Any]]] = {
    "key": lambda timer: timer.key,
    "namespace": lambda timer: timer.namespace,
    "value": lambda timer: timer.timestamp,
}
