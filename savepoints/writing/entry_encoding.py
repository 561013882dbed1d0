"""From entries as columns of values to rows as columns of bytes, and nothing that does not fit.

What is refused is told with state, key and column. Columns that nobody changes are not encoded: their bytes go through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from savepoints.writing.access_times import latest_time, times_of_elements
from savepoints.writing.canonical_keys import canonical_key, refused_key
from savepoints.writing.entry_schema import EntrySchema
from savepoints.writing.errors import EntryError
from savepoints.writing.stored_columns import stored_column
from snapshots.errors import SerializationError
from snapshots.value_text import shown
from statebackend.api.descriptors import ELEMENT_ROLE
from statebackend.canonical.canonical_entries import SCHEMA
from statebackend.kinds.state_kind import StateKind
from typeserializers.containers.ttl import TtlValue
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer
from typeserializers.times.timers import Timer

__all__ = ["canonical", "encoded", "encoded_keys"]

Columns = Mapping[str, Sequence[Any]]
Keys = Callable[[], Sequence[Any]]

_NO_NAMESPACE: Final = VoidNamespaceSerializer().to_bytes(VOID_NAMESPACE)
_NEVER_NONE: Final = ("namespace", "user key")


def encoded(schema: EntrySchema, columns: Columns, keys: Keys) -> dict[str, pa.Array]:
    """The columns of rows that these columns of entries make, without the key groups.

    Raises `EntryError` for a value that does not fit, naming the state and the key: ``keys`` gives those.
    """
    return _Encoding(schema, keys).rows(columns)


def encoded_keys(schema: EntrySchema, keys: Sequence[Any]) -> pa.Array:
    """The bytes of keys. Raises `EntryError` for one that does not fit."""
    return _Encoding(schema, lambda: keys).keys(keys)


def canonical(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with all columns of the canonical form."""
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
    """Entries of a schema; ``given_keys`` gives their keys, to name what is refused."""

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
            stored = self._stored_values(columns["value"], columns.get("last_access_ms"))
            assert isinstance(schema.kind, StateKind)
            rows["value"] = self._written(schema.kind.storage_serializer(schema.serializers), stored, "value")
        return rows

    def keys(self, keys: Sequence[Any]) -> pa.Array:
        return self._written(self.schema.key_serializer, self._canonical_keys(keys), "key")

    def _timers(self, columns: Columns) -> pa.Array:
        schema = self.schema
        spaces = columns["namespace"] if schema.has_namespaces else [VOID_NAMESPACE] * len(columns["value"])
        self._refuse_none(spaces, "namespace", "None cannot be one")
        timers = list(map(Timer, columns["value"], self._canonical_keys(columns["key"]), spaces))
        return self._written(schema.serializers[ELEMENT_ROLE], timers, "timer")

    def _canonical_keys(self, keys: Sequence[Any]) -> Sequence[Any]:
        serializer = self.schema.key_serializer
        refused = refused_key(serializer, keys)
        if refused is not None:
            raise self._misfit("key", refused[1], refused[0])
        make = canonical_key(serializer)
        if make is None:
            return keys
        given = keys.to_pylist() if isinstance(keys, pa.Array) else keys
        made: list[Any] = []
        try:
            # What came before a refusal stays in the list, and so tells which key was refused.
            made.extend(map(make, given))
        except (ValueError, OverflowError) as error:
            raise self._misfit("key", f"{shown(given[len(made)])}: {error}", len(made)) from error
        return made

    def _stored_values(self, values: Sequence[Any], times: Sequence[Any] | None) -> Sequence[Any]:
        schema = self.schema
        if schema.is_list:
            self._check_lists(values)
        elif not schema.is_map:
            self._refuse_none(values, "value", "None means that there is no entry; leave it out")
        if not schema.is_timed:
            return values
        assert times is not None
        if not schema.is_list:
            return list(map(TtlValue, values, map(latest_time, times)))
        own_times = map(times_of_elements, values, times)
        return [list(map(TtlValue, elements, own)) for elements, own in zip(values, own_times, strict=True)]

    def _check_lists(self, values: Sequence[Any]) -> None:
        for row, elements in enumerate(values):
            if not isinstance(elements, (list, tuple)):
                raise self._misfit("value", f"{shown(elements)} is no list", row)
            if type(None) in set(map(type, elements)):
                raise self._misfit("value", "None cannot be an element of a list", row)

    def _refuse_none(self, values: Sequence[Any] | pa.Array, what: str, reason: str) -> None:
        if isinstance(values, pa.Array):
            values = values.to_pylist() if values.null_count else ()
        if type(None) in set(map(type, values)):
            raise self._misfit(what, reason, next(row for row, value in enumerate(values) if value is None))

    def _written(self, serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array, what: str) -> pa.Array:
        if what in _NEVER_NONE:
            self._refuse_none(values, what, "None cannot be one")
        whole = stored_column(serializer, values)
        if whole is not None:
            return whole
        given = values.to_pylist() if isinstance(values, pa.Array) else values
        try:
            return pa.array(list(map(serializer.codec.write, given)), pa.binary())
        except Exception as unclear:
            # The bare codec tells less of what it refuses, so that is written once more.
            for row, error in enumerate(map(partial(_refusal, serializer.to_bytes), given)):
                if error is not None:
                    raise self._misfit(what, str(error), row) from error
            raise unclear

    def _misfit(self, what: str, reason: str, row: int) -> EntryError:
        place = ""
        if what != "key":
            key = self.given_keys()[row]
            place = f", key {shown(key.as_py() if isinstance(key, pa.Scalar) else key)}"
        return EntryError(f"state {self.schema.name!r}{place}: the {what} does not fit: {reason}")


def _refusal(to_bytes: Callable[[Any], bytes], value: Any) -> SerializationError | None:
    try:
        to_bytes(value)
    except SerializationError as error:
        return error
    return None
