"""Bounds on Avro data before a library reads it: counts, lengths and depth.

A count of items that take no bytes (nulls, empty records) costs a hostile writer nothing and the reader everything; and
the compiled library follows a recursive schema as deep as the data says, beyond the end of the stack. Data of schemas
that allow either is walked here first, in plain Python: nothing is made, only skipped. Other schemas bound themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from snapshots.errors import EndOfDataError, MalformedDataError
from typeserializers.avro.avro_schemas import NamedSchemas, type_of
from typeserializers.kernel.counts import MAX_EMPTY_ELEMENTS

MAX_DEPTH: Final = 200
"""How deep values of a recursive schema may be nested."""

_FIXED_WIDTHS: Final[Mapping[str, int]] = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def is_risky(schemas: NamedSchemas) -> bool:
    """Whether data of the schema may be deeper, or hold more, than its bytes can pay for."""
    return _is_recursive(schemas, schemas.schema, ()) or _has_free_items(schemas, schemas.schema, set())


def is_recursive(schemas: NamedSchemas) -> bool:
    """Whether values of the schema can be nested without end."""
    return _is_recursive(schemas, schemas.schema, ())


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
    return _Skipper(schemas, data).skip(schemas.schema, position, 0)


class _Skipper:
    def __init__(self, schemas: NamedSchemas, data: bytes) -> None:
        self.schemas = schemas
        self.data = data
        self.free_items = 0

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
        for part in schema["fields"]:
            position = self.skip(part["type"], position, depth + 1)
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


def _is_recursive(schemas: NamedSchemas, schema: Any, above: tuple[str, ...]) -> bool:
    schema = schemas.resolved(schema)
    kind = type_of(schema)
    if kind == "union":
        return any(_is_recursive(schemas, branch, above) for branch in schema)
    if kind == "array":
        return _is_recursive(schemas, schema["items"], above)
    if kind == "map":
        return _is_recursive(schemas, schema["values"], above)
    if kind in ("record", "error"):
        if schema["name"] in above:
            return True
        inside = (*above, schema["name"])
        return any(_is_recursive(schemas, part["type"], inside) for part in schema["fields"])
    return False


def _has_free_items(schemas: NamedSchemas, schema: Any, seen: set[str]) -> bool:
    schema = schemas.resolved(schema)
    kind = type_of(schema)
    if kind == "union":
        return any(_has_free_items(schemas, branch, seen) for branch in schema)
    if kind == "array":
        return may_be_free(schemas, schema["items"]) or _has_free_items(schemas, schema["items"], seen)
    if kind == "map":
        return _has_free_items(schemas, schema["values"], seen)
    if kind in ("record", "error") and schema["name"] not in seen:
        seen.add(schema["name"])
        return any(_has_free_items(schemas, part["type"], seen) for part in schema["fields"])
    return False


def may_be_free(schemas: NamedSchemas, schema: Any) -> bool:
    """Whether values of the schema take no bytes at all."""
    schema = schemas.resolved(schema)
    kind = type_of(schema)
    if kind == "fixed":
        return bool(schema["size"] == 0)
    if kind in ("record", "error"):
        return all(may_be_free(schemas, part["type"]) for part in schema["fields"])
    return kind == "null"
