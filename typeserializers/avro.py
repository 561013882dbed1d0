"""Avro values in Avro's binary encoding; the schema is in the snapshot.

    value := the binary encoding of Avro for the schema

Values are what fastavro reads: dicts for records, Python types for logical types. Compatibility follows Avro's schema
resolution and is decided on the two schemas alone (`typeserializers.evolution.avro_evolution`), before the first value
is read. The snapshot has a format of this library, because Flink's names a Java class:

    content := i32(length) JSON of the schema, in UTF-8

This file also makes up for three limits of the Avro library:

* It accepts invalid schemas and fails later. `check_schema` rejects missing parts and parts of the wrong kind.
* Items without bytes (nulls, empty records) cost a hostile writer nothing, and the compiled library follows recursive
  data beyond the end of the stack. Data of schemas that allow either is first walked in Python, without creating
  values; other schemas bound themselves.
* It changes values silently: it rounds integers in a double, cuts microseconds off a `timestamp-millis`, assumes the
  time zone of the host, drops the zone of a local time and the hours of a date, turns too large floats into infinity,
  and picks the first record of a union that fits. Where a schema allows this, the value is read back and compared.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import io
import itertools
import json
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Final

from attrs import frozen
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from fastavro.schema import SchemaParseException
from fastavro.validation import ValidationError, validate

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, MalformedDataError, SnapshotFormatError, cut, format_value
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot
from typeserializers.kernel.compiled import MAX_EMPTY_ELEMENTS
from typeserializers.kernel.fixed_fields import lost_values
from typeserializers.kernel.type_serializer import Codec, TypeSerializer

_LAYOUT_FREE_KEYS: Final = ("doc", "aliases")

NAMED_KINDS: Final = ("record", "error", "enum", "fixed")


def type_of(schema: Any) -> str:
    """Returns the type of a schema; a union is a list."""
    if isinstance(schema, list):
        return "union"
    return schema["type"] if isinstance(schema, dict) else schema  # type: ignore[no-any-return]


@frozen
class NamedSchemas:
    """A parsed schema, with the named types that it refers to by name."""

    schema: Any
    names: Mapping[str, Any]

    def resolved(self, schema: Any) -> Any:
        """Returns the schema, or the definition if it is a name."""
        while isinstance(schema, str) and schema in self.names:
            schema = self.names[schema]
        return schema


def parts_of(schema: Any) -> list[Any]:
    """Returns the schemas directly inside a schema that is not a name."""
    if isinstance(schema, list):
        return list(schema)
    if not isinstance(schema, dict):
        return []
    if schema["type"] in ("record", "error"):
        return [part["type"] for part in schema["fields"]]
    return [schema[key] for key in ("items", "values") if key in schema]


def all_parts(schemas: NamedSchemas) -> Iterator[Any]:
    """Yields the schema and all nested ones, each named type once."""
    seen: set[str] = set()
    waiting = [schemas.schema]
    while waiting:
        schema = schemas.resolved(waiting.pop())
        yield schema
        if isinstance(schema, dict) and schema["type"] in NAMED_KINDS:
            if schema["name"] in seen:
                continue
            seen.add(schema["name"])
        waiting += reversed(parts_of(schema))


def named_schemas(schema: Any) -> NamedSchemas:
    """Collects the named types of a parsed schema, in which every name is a full one."""
    names: dict[str, Any] = {}
    _collect(schema, names)
    return NamedSchemas(schema, names)


def _collect(schema: Any, names: dict[str, Any]) -> None:
    if isinstance(schema, list):
        for branch in schema:
            _collect(branch, names)
        return
    if not isinstance(schema, dict):
        return
    if schema["type"] in NAMED_KINDS:
        names[schema["name"]] = schema
    for part in schema.get("fields", ()):
        _collect(part["type"], names)
    for key in ("items", "values"):
        if key in schema:
            _collect(schema[key], names)


def layout_of(schema: Any) -> Any:
    """Returns the schema without attributes that do not affect the bytes."""
    if isinstance(schema, list):
        return [layout_of(item) for item in schema]
    if isinstance(schema, dict):
        return {key: layout_of(item) for key, item in schema.items() if key not in _LAYOUT_FREE_KEYS}
    return schema


MAX_DEPTH: Final = 200
"""The maximum depth of a schema; Avro has no limit, but Python does."""


def check_schema(schema: Any, depth: int = 0) -> None:
    """Raises `SnapshotFormatError` for a parsed schema that cannot write any value."""
    if depth > MAX_DEPTH:
        raise SnapshotFormatError(f"the Avro schema is nested deeper than {MAX_DEPTH} levels")
    if isinstance(schema, list):
        _require(bool(schema), "a union without branches")
        for branch in schema:
            check_schema(branch, depth + 1)
        return
    if isinstance(schema, str):
        return
    _require(isinstance(schema, dict) and "type" in schema, f"{format_value(schema)} is not a type")
    kind = schema["type"]
    # Avro has no such form, and the inner type would not be checked.
    _require(isinstance(kind, str), f"{format_value(schema)} is a type inside a type; write the inner one alone")
    if kind == "enum":
        symbols = schema.get("symbols")
        _require(
            isinstance(symbols, list) and bool(symbols), f"the enum {format_value(schema.get('name'))} has no symbols"
        )
        _require(all(isinstance(symbol, str) for symbol in symbols), "a symbol of an enum is not text")
        _require(len(set(symbols)) == len(symbols), "an enum has a symbol twice")
    elif kind == "fixed":
        _require(_is_count(schema.get("size")), f"the fixed {format_value(schema.get('name'))} has no size")
    elif kind == "array":
        check_schema(schema.get("items"), depth + 1)
    elif kind == "map":
        check_schema(schema.get("values"), depth + 1)
    elif kind in ("record", "error"):
        fields = schema.get("fields")
        _require(isinstance(fields, list), f"the record {format_value(schema.get('name'))} has no fields")
        for part in fields:
            _require(
                isinstance(part, dict) and isinstance(part.get("name"), str), f"{format_value(part)} is not a field"
            )
            check_schema(part.get("type"), depth + 1)
    if schema.get("logicalType") == "decimal":
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        sound = _is_count(precision) and _is_count(scale) and precision > 0 and scale <= precision
        _require(sound, f"a decimal of precision {format_value(precision)} and scale {format_value(scale)}")


def _is_count(number: Any) -> bool:
    return isinstance(number, int) and not isinstance(number, bool) and number >= 0


def _require(sound: bool, what: str) -> None:
    if not sound:
        raise SnapshotFormatError(f"this is not an Avro schema: {what}")


"""The maximum depth of values of a recursive schema."""

_MAX_FREE_PARTS: Final = 1000
"""The maximum number of parts without bytes per byte of the value."""

_FIXED_WIDTHS: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def is_risky(schemas: NamedSchemas) -> bool:
    """Whether data of the schema may be deeper or larger than its bytes allow."""
    return is_recursive(schemas) or _has_free_items(schemas, FreeSizes(schemas))


def is_recursive(schemas: NamedSchemas) -> bool:
    """Whether values of the schema can be nested without limit."""
    return _is_recursive(schemas, schemas.schema, set(), set())


def check_depth(value: Any) -> None:
    """Raises `ValueError` for a value that is nested deeper than the bound."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > 2 * MAX_DEPTH:
            raise ValueError(f"the value is nested deeper than {2 * MAX_DEPTH} levels")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, (list, tuple)):
                inner += item
        level = [item for item in inner if isinstance(item, (dict, list, tuple))]


def skip(schemas: NamedSchemas, data: bytes, position: int) -> int:
    """Returns the position after the value; raises `EndOfDataError` or `MalformedDataError`."""
    return _Skipper(schemas, data, position).skip(schemas.schema, position, 0)


class _Skipper:
    def __init__(self, schemas: NamedSchemas, data: bytes, start: int) -> None:
        self.schemas = schemas
        self.data = data
        self.start = start
        self.free_items = 0
        self.free_records = 0

    def skip(self, schema: Any, position: int, depth: int) -> int:
        if depth > MAX_DEPTH:
            raise MalformedDataError(f"values nested deeper than {MAX_DEPTH} levels at byte {position}")
        schema = self.schemas.resolved(schema)
        kind = type_of(schema)
        width = _FIXED_WIDTHS.get(kind)
        if width is not None:
            return self._checked(position + width)
        if kind in ("int", "long", "enum"):
            return self._long(position)[1]
        if kind in ("string", "bytes"):
            size, position = self._long(position)
            if size < 0:
                raise MalformedDataError(f"negative length {size} before byte {position}")
            return self._checked(position + size)
        if kind == "fixed":
            return self._checked(position + schema["size"])
        if kind == "union":
            branch, position = self._long(position)
            if not 0 <= branch < len(schema):
                raise MalformedDataError(f"branch {branch} of a union of {len(schema)} before byte {position}")
            return self.skip(schema[branch], position, depth + 1)
        if kind == "array":
            return self._blocks(position, lambda place: self.skip(schema["items"], place, depth + 1))
        if kind == "map":
            return self._blocks(position, lambda place: self.skip(schema["values"], self._string(place), depth + 1))
        before = position
        for part in schema["fields"]:
            position = self.skip(part["type"], position, depth + 1)
        if before == position:
            self.free_records += 1
            limit = _MAX_FREE_PARTS * (1 + position - self.start)
            if self.free_records > limit:
                raise MalformedDataError(f"more than {limit} records without bytes at {position}")
        return position

    def _blocks(self, position: int, skip_item: Callable[[int], int]) -> int:
        while True:
            count, position = self._long(position)
            if count == 0:
                return position
            if count < 0:
                count, position = -count, self._long(position)[1]
            for _ in range(count):
                before, position = position, skip_item(position)
                if before == position:
                    self.free_items += 1
                    if self.free_items > MAX_EMPTY_ELEMENTS:
                        raise MalformedDataError(f"more than {MAX_EMPTY_ELEMENTS} items without bytes at {position}")

    def _string(self, position: int) -> int:
        size, position = self._long(position)
        if size < 0:
            raise MalformedDataError(f"negative length {size} before byte {position}")
        return self._checked(position + size)

    def _long(self, position: int) -> tuple[int, int]:
        number = shift = 0
        while True:
            if position >= len(self.data) or shift > 63:
                raise EndOfDataError(f"a number at byte {position} does not end: the data is truncated or damaged")
            byte = self.data[position]
            position += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return (number >> 1) ^ -(number & 1), position

    def _checked(self, position: int) -> int:
        if position > len(self.data):
            raise EndOfDataError(f"{position - len(self.data)} bytes are missing: the data is truncated")
        return position


def _is_recursive(schemas: NamedSchemas, schema: Any, around: set[str], finished: set[str]) -> bool:
    """``around`` are the enclosing records, ``finished`` those that were checked."""
    schema = schemas.resolved(schema)
    kind = type_of(schema)
    if kind not in ("record", "error"):
        return any(_is_recursive(schemas, part, around, finished) for part in parts_of(schema))
    name = schema["name"]
    if name in around or name in finished:
        return name in around
    around.add(name)
    found = any(_is_recursive(schemas, part, around, finished) for part in parts_of(schema))
    around.discard(name)
    finished.add(name)
    return found


def _has_free_items(schemas: NamedSchemas, sizes: FreeSizes) -> bool:
    """Whether array items take no bytes, or an item without bytes has many parts."""
    for schema in all_parts(schemas):
        if type_of(schema) == "array" and sizes.of(schema["items"]) is not None:
            return True
        size = sizes.of(schema)
        if size is not None and size > _MAX_FREE_PARTS:
            return True
    return False


class FreeSizes:
    """The number of parts of a value without bytes; None if values of the schema take bytes."""

    def __init__(self, schemas: NamedSchemas) -> None:
        self._schemas = schemas
        self._of_records: dict[str, int | None] = {}

    def of(self, schema: Any) -> int | None:
        """Returns the number of parts, including the value itself."""
        schema = self._schemas.resolved(schema)
        kind = type_of(schema)
        if kind == "fixed":
            return 1 if schema["size"] == 0 else None
        if kind not in ("record", "error"):
            return 1 if kind == "null" else None
        name = schema["name"]
        if name not in self._of_records:
            # A record that always contains itself has no values.
            self._of_records[name] = None
            sizes = [self.of(part) for part in parts_of(schema)]
            self._of_records[name] = None if None in sizes else 1 + sum(size for size in sizes if size is not None)
        return self._of_records[name]


def may_be_free(schemas: NamedSchemas, schema: Any) -> bool:
    """Whether values of the schema may take no bytes."""
    return FreeSizes(schemas).of(schema) is not None


EPOCH: Final = datetime.datetime(1970, 1, 1)

_LOGICAL_ZEROS: Final[Mapping[str, Any]] = {
    "date": EPOCH.date(),
    "time-millis": EPOCH.time(),
    "time-micros": EPOCH.time(),
    "timestamp-millis": EPOCH.replace(tzinfo=datetime.timezone.utc),
    "timestamp-micros": EPOCH.replace(tzinfo=datetime.timezone.utc),
    "local-timestamp-millis": EPOCH,
    "local-timestamp-micros": EPOCH,
    "decimal": decimal.Decimal(0),
    "uuid": uuid.UUID(int=0),
}
"""The logical types that the library supports, each with a value."""


def zero_of(schema: Any) -> Any:
    """Returns the empty value of a supported logical type; None for all other schemas."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    return _LOGICAL_ZEROS.get(logical) if isinstance(logical, str) else None


def may_lose(schemas: NamedSchemas) -> bool:
    """Whether the library may change a value of the schema when it writes it."""
    return any(_loses_by_itself(part, schemas) for part in all_parts(schemas))


def holds_several_records(schemas: NamedSchemas) -> bool:
    """Whether a union in the schema has several records, so that a value may fit more than one."""
    return any(type_of(part) == "union" and _records(part, schemas) > 1 for part in all_parts(schemas))


def meant_by(value: Any, read: Any) -> Any:
    """Returns the value without the record name that selects a branch of a union (a tuple in the library)."""
    names_its_record = isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], str)
    return value[1] if names_its_record and not isinstance(read, list) else value


def _loses_by_itself(schema: Any, schemas: NamedSchemas) -> bool:
    kind = type_of(schema)
    return (
        zero_of(schema) is not None
        or kind in ("float", "double")
        or (kind == "union" and _records(schema, schemas) > 1)
    )


def _records(union: Any, schemas: NamedSchemas) -> int:
    return sum(type_of(schemas.resolved(branch)) in ("record", "error") for branch in union)


_ZEROS = {"null": None, "boolean": False, "int": 0, "long": 0, "float": 0.0, "double": 0.0, "bytes": b"", "string": ""}

_MAX_PARTS: Final = 10_000
"""The maximum number of parts of an empty value; records that contain others twice double it at each level."""


class AvroSerializer(TypeSerializer[Any]):
    """Values of an Avro schema, given as JSON text or as parsed JSON.

    Raises `SnapshotFormatError` for an invalid Avro schema.
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
        # An empty value may be far larger than its schema; its class is known without its parts.
        kind = type_of(schema)
        if kind in ("record", "error"):
            return dict
        return bytes if kind == "fixed" and zero_of(schema) is None else type(self._zero(schema))

    def create_instance(self) -> Any:
        try:
            return self._zero(self.schema)
        except RecursionError as error:
            raise SnapshotFormatError(f"{self!r} contains itself without an end, so no value exists") from error

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
        """Reads bytes of another schema, resolved to this one; returns the value and the position after it.

        Raises `SerializationError` for a default that does not fit its field.
        """
        if writer._is_risky:
            skip(writer.named, data, position)
        stream = io.BytesIO(data)
        stream.seek(position)
        value = schemaless_reader(stream, writer._parsed, self._parsed)
        if self._may_lose:
            # Defaults are plain schema values: a number for a date.
            try:
                value = self._decode(self._written(value), 0)[0]
            except Exception as error:
                raise self.serialization_error(value, error) from error
        return value, stream.tell()

    def _encode(self, value: Any) -> bytes:
        if self._is_recursive:
            check_depth(value)
        # The library truncates values that are too wide and fills missing fields with defaults.
        validate(value, self._parsed, strict=True, raise_errors=True)
        encoded = self._written(value)
        if self._may_lose:
            self._check_that_it_comes_back(value, encoded)
        if self._is_risky:
            # A value that is too deep or too large to read must not be written.
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
                f"{format_value(value)} matches more than one record of the union, so it would be written as another "
                "record after it was read: give each record a field that the others do not have"
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
    """The schema of the values."""

    current_version = 1

    def __init__(self, serializer: AvroSerializer | None = None) -> None:
        self.schema: Any = serializer.schema if serializer is not None else "null"

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_sized_bytes(json.dumps(self.schema, separators=(",", ":")).encode())

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        try:
            self.schema = _parsed(json.loads(source.read_sized_bytes()))
        except (ValueError, RecursionError) as error:
            raise SnapshotFormatError(f"the Avro schema in the snapshot is not JSON: {error}") from error

    def restore_serializer(self) -> AvroSerializer:
        return AvroSerializer(self.schema)


def _parsed(schema: Any) -> Any:
    try:
        plain = _plain(parse_schema(schema))
        check_schema(plain)
        return plain
    except (SchemaParseException, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SnapshotFormatError(f"this is not an Avro schema: {type(error).__name__}: {error}") from error


def _plain(schema: Any) -> Any:
    """Returns the schema without the attributes that the library adds."""
    if isinstance(schema, list):
        return [_plain(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _plain(item) for key, item in schema.items() if not key.startswith("__")}
    return schema
