"""Bounds on Avro data before a library reads it: counts, lengths and depth.

A count of items that take no bytes (nulls, empty records) costs a hostile writer nothing and the reader everything; and
the compiled library follows a recursive schema as deep as the data says, beyond the end of the stack. Data of schemas
that allow either is walked here first, in plain Python: nothing is made, only skipped. Other schemas bound themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from snapshots.errors import EndOfDataError, MalformedDataError
from typeserializers.avro.avro_schemas import NamedSchemas, all_parts, parts_of, type_of
from typeserializers.kernel.counts import MAX_EMPTY_ELEMENTS

MAX_DEPTH: Final = 200
"""How deep values of a recursive schema may be nested."""

_MAX_FREE_PARTS: Final = 1000
"""How many parts without bytes a value may have for each byte."""

_FIXED_WIDTHS: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def is_risky(schemas: NamedSchemas) -> bool:
    """Whether data of the schema may be deeper, or hold more, than its bytes can pay for."""
    return is_recursive(schemas) or _has_free_items(schemas, FreeSizes(schemas))


def is_recursive(schemas: NamedSchemas) -> bool:
    """Whether values of the schema can be nested without end."""
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
    """The position behind the value; raises `EndOfDataError` or `MalformedDataError` for hostile or cut-off data."""
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
    """``around`` are the records that the schema is inside, ``finished`` those that were looked into."""
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
    """Whether a value without bytes is the item of an array, or has more than a few parts."""
    for schema in all_parts(schemas):
        if type_of(schema) == "array" and sizes.of(schema["items"]) is not None:
            return True
        size = sizes.of(schema)
        if size is not None and size > _MAX_FREE_PARTS:
            return True
    return False


class FreeSizes:
    """How many parts a value has that takes no bytes: None for a schema whose values take some."""

    def __init__(self, schemas: NamedSchemas) -> None:
        self._schemas = schemas
        self._of_records: dict[str, int | None] = {}

    def of(self, schema: Any) -> int | None:
        """The number of parts, with the value itself."""
        schema = self._schemas.resolved(schema)
        kind = type_of(schema)
        if kind == "fixed":
            return 1 if schema["size"] == 0 else None
        if kind not in ("record", "error"):
            return 1 if kind == "null" else None
        name = schema["name"]
        if name not in self._of_records:
            # A record that holds itself without an end has no values.
            self._of_records[name] = None
            sizes = [self.of(part) for part in parts_of(schema)]
            self._of_records[name] = None if None in sizes else 1 + sum(size for size in sizes if size is not None)
        return self._of_records[name]


def may_be_free(schemas: NamedSchemas, schema: Any) -> bool:
    """Whether values of the schema take no bytes at all."""
    return FreeSizes(schemas).of(schema) is not None
