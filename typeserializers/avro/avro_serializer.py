"""Avro: values of an Avro schema in Avro's own binary encoding, without the schema, which is in the snapshot.

    value := the binary encoding of Avro for the schema

Values are what fastavro reads: dicts for records, Python's own types for logical types. Evolution follows Avro's
schema resolution, decided on the two schemas alone (`typeserializers.evolution.avro_evolution`), so that a verdict is
known before the first value is read. The snapshot (ours; Flink's own names a Java class, which has no meaning here):

    content := i32(length) JSON of the schema, in UTF-8
"""

from __future__ import annotations

import copy
import io
import itertools
import json
from collections.abc import Hashable, Iterator
from typing import Any, Final

from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import SchemaParseException
from fastavro.validation import ValidationError, validate

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, SnapshotFormatError
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot
from snapshots.value_text import cut, shown
from typeserializers.avro.avro_bounds import check_depth, is_recursive, is_risky, may_be_free, skip
from typeserializers.avro.avro_exactness import holds_several_records, may_lose, meant_by, zero_of
from typeserializers.avro.avro_schema_check import check_schema
from typeserializers.avro.avro_schemas import layout_of, named_schemas, type_of
from typeserializers.kernel.lost_values import lost_values
from typeserializers.kernel.type_serializer import Codec, TypeSerializer

_ZEROS = {"null": None, "boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}

_MAX_PARTS: Final = 10_000
"""How many parts an empty value may have: records that contain others twice double it at every level."""


class AvroSerializer(TypeSerializer[Any]):
    """Values of an Avro schema, given as JSON text or as the data that it stands for.

    Raises `SnapshotFormatError` for what is no Avro schema.
    """

    def __init__(self, schema: Any) -> None:
        data = json.loads(schema) if isinstance(schema, str) and schema.lstrip()[:1] in ("{", "[", '"') else schema
        self.schema = _parsed(data)
        """The schema as plain data, with full names."""
        self._parsed = parse_schema(copy.deepcopy(self.schema))
        self.named = named_schemas(self.schema)
        self._is_risky = is_risky(self.named)
        self._is_recursive = is_recursive(self.named)
        self._may_lose = may_lose(self.named)
        self._holds_several_records = holds_several_records(self.named)

    def configuration(self) -> Hashable:
        return json.dumps(layout_of(self.schema), sort_keys=True)

    @property
    def accepts_none(self) -> bool:
        return self.is_optional_type or type_of(self.named.resolved(self.schema)) == "null"

    @property
    def is_optional_type(self) -> bool:
        schema = self.named.resolved(self.schema)
        return isinstance(schema, list) and any(type_of(self.named.resolved(branch)) == "null" for branch in schema)

    @property
    def minimum_length(self) -> int:
        return 0 if may_be_free(self.named, self.schema) else 1

    @property
    def python_type(self) -> type:
        schema = self.named.resolved(self.schema)
        if type_of(schema) == "union" and not self.is_optional_type:
            schema = self.named.resolved(schema[0])
        # An empty value may be far larger than its schema, and its class is known without its parts.
        kind = type_of(schema)
        if kind in ("record", "error"):
            return dict
        return bytes if kind == "fixed" and zero_of(schema) is None else type(self._zero(schema))

    def create_instance(self) -> Any:
        try:
            return self._zero(self.schema)
        except RecursionError as error:
            raise SnapshotFormatError(f"{self!r} holds itself without an end, so that it has no values") from error

    def copy(self, value: Any) -> Any:
        return copy.deepcopy(value)

    def serialize(self, value: Any, out: DataOutputView) -> None:
        try:
            out.write(self._encode(value))
        except Exception as error:
            raise self.serialization_error(value, error) from error

    def deserialize(self, source: DataInputView) -> Any:
        try:
            value, source.position = self._decode(source.data, source.position)
        except Exception as error:
            raise self.deserialization_error(source.data, error) from error
        return value

    def create_codec(self) -> Codec[Any]:
        return Codec(self._encode, self._decode)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if self._is_recursive:
            check_depth(value)
        try:
            validate(value, self._parsed, strict=True, raise_errors=True)
        except ValidationError as error:
            for problem in error.errors:
                yield cut(f"{path or 'value'}: {problem}", 500)
            return
        if self._may_lose:
            yield from lost_values(value, self._decode(self._written(value), 0)[0], path, meant_by)

    def resolved_from(self, writer: AvroSerializer, data: bytes, position: int) -> tuple[Any, int]:
        """The value of bytes of another schema, resolved to this one, and the position behind them.

        Raises `SerializationError` for a default that is no value of its field.
        """
        if writer._is_risky:
            skip(writer.named, data, position)
        stream = io.BytesIO(data)
        stream.seek(position)
        value = schemaless_reader(stream, writer._parsed, self._parsed)
        if self._may_lose:
            # Defaults are as the schema says them: a number for a date.
            try:
                value = self._decode(self._written(value), 0)[0]
            except Exception as error:
                raise self.serialization_error(value, error) from error
        return value, stream.tell()

    def _encode(self, value: Any) -> bytes:
        if self._is_recursive:
            check_depth(value)
        # The writer of the library truncates what is too wide and takes defaults for what is missing.
        validate(value, self._parsed, strict=True, raise_errors=True)
        encoded = self._written(value)
        if self._may_lose:
            self._check_that_it_comes_back(value, encoded)
        if self._is_risky:
            # What is deeper, or holds more, than a reader takes must not be written either.
            skip(self.named, encoded, 0)
        return encoded

    def _written(self, value: Any) -> bytes:
        stream = io.BytesIO()
        schemaless_writer(stream, self._parsed, value, strict=True)
        return stream.getvalue()

    def _check_that_it_comes_back(self, value: Any, encoded: bytes) -> None:
        read = self._decode(encoded, 0)[0]
        if read != value:
            lost = next(lost_values(value, read, "", meant_by), None)
            if lost is not None:
                raise ValueError(lost)
        if self._holds_several_records and self._written(read) != encoded:
            raise ValueError(
                f"{shown(value)} is written as one record of a union, and what comes back would be written as another "
                f"that it fits too: give the records fields by which they differ"
            )

    def _decode(self, data: bytes, position: int) -> tuple[Any, int]:
        if self._is_risky:
            skip(self.named, data, position)
        stream = io.BytesIO(data)
        stream.seek(position)
        try:
            value = schemaless_reader(stream, self._parsed, None)
        except (EOFError, IndexError) as error:
            raise EndOfDataError(f"{self!r}: the value at byte {position} is cut off or damaged: {error}") from error
        return value, stream.tell()

    def _zero(self, schema: Any, parts: Iterator[int] | None = None) -> Any:
        parts = itertools.count() if parts is None else parts
        if next(parts) > _MAX_PARTS:
            raise SnapshotFormatError(f"{self!r}: an empty value has more than {_MAX_PARTS} parts")
        schema = self.named.resolved(schema)
        kind = type_of(schema)
        if kind == "union":
            return None if self.is_optional_type else self._zero(schema[0], parts)
        zero = zero_of(schema)
        if zero is not None:
            return zero
        if kind in ("array", "map"):
            return [] if kind == "array" else {}
        if kind == "enum":
            return schema["symbols"][0]
        if kind == "fixed":
            return bytes(schema["size"])
        if kind in ("record", "error"):
            return {part["name"]: self._zero(part["type"], parts) for part in schema["fields"]}
        return _ZEROS[kind]

    def snapshot_configuration(self) -> AvroSerializerSnapshot:
        return AvroSerializerSnapshot(self)

    def __repr__(self) -> str:
        resolved = self.named.resolved(self.schema)
        return f"AvroSerializer({resolved['name'] if isinstance(resolved, dict) and 'name' in resolved else resolved})"

    def __reduce__(self) -> tuple[type[AvroSerializer], tuple[Any]]:
        return type(self), (self.schema,)


@register_snapshot("statebackend.AvroSerializerSnapshot")
class AvroSerializerSnapshot(RuledTypeSerializerSnapshot[Any]):
    """The schema that the values were written with."""

    def __init__(self, serializer: AvroSerializer | None = None) -> None:
        self.schema: Any = serializer.schema if serializer is not None else "null"

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_sized_bytes(json.dumps(self.schema, separators=(",", ":")).encode())

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        try:
            self.schema = _parsed(json.loads(source.read_sized_bytes()))
        except (ValueError, RecursionError) as error:
            raise SnapshotFormatError(f"the Avro schema in the snapshot is no JSON: {error}") from error

    def restore_serializer(self) -> AvroSerializer:
        return AvroSerializer(self.schema)


def _parsed(schema: Any) -> Any:
    try:
        plain = _plain(parse_schema(schema))
        check_schema(plain)
        return plain
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SnapshotFormatError(f"this is no Avro schema: {type(error).__name__}: {error}") from error


def _plain(schema: Any) -> Any:
    """The schema without what the library adds to it."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _plain(item) for key, item in schema.items() if not key.startswith("__")}
    return schema
