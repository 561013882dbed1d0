"""Bounds the number of items in an Avro record before fastavro decodes it.

An item of an array can take four bytes in a file and some hundred bytes in memory. The check walks the bytes with the
schema and creates nothing. It skips small records, which cannot hold many items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from statebackend.checkpoint.errors import InvariantViolationError

_SMALL_RECORD_BYTES: Final = 1 << 20
_SMALL_ITEMS: Final = 1 << 18
"""How many items a record may have whatever their size. A subtask without state takes four bytes."""

_ITEM_BYTES: Final = 32
"""One more item is allowed for so many bytes of the record. A file takes at least 41."""


class _Walk:
    """The bytes of one record, and how many more items it may have."""

    __slots__ = ("data", "items_left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.items_left = _SMALL_ITEMS + len(data) // _ITEM_BYTES

    def number(self, position: int) -> tuple[int, int]:
        """An Avro long, and the position after it."""
        byte = self.data[position]
        if byte < 0x80:
            return (byte >> 1) ^ -(byte & 1), position + 1
        number, shift = byte & 0x7F, 7
        while byte >= 0x80 and shift < 70:
            position += 1
            byte = self.data[position]
            number |= (byte & 0x7F) << shift
            shift += 7
        return (number >> 1) ^ -(number & 1), position + 1


_Skip = Callable[[_Walk, int], int]
"""Returns the position after the value at a position."""


def item_count_check(schema: Any) -> Callable[[bytes], None]:
    """A check of the bytes of records of `schema`, which is plain data.

    The check raises `InvariantViolationError` for a record with more items than its size allows. Other damage is for
    the decoder to report.
    """
    skip = _skip_of(schema, {})

    def check(data: bytes) -> None:
        if len(data) > _SMALL_RECORD_BYTES:
            try:
                skip(_Walk(data), 0)
            except IndexError as error:
                raise InvariantViolationError(f"the record of {len(data)} bytes is cut off or damaged") from error

    return check


def _skip_of(schema: Any, named: dict[str, _Skip]) -> _Skip:
    if isinstance(schema, list):
        return _union([_skip_of(branch, named) for branch in schema])
    if isinstance(schema, str):
        return named.get(schema) or _PRIMITIVES[schema]
    if schema["type"] == "record":
        named[schema["name"]] = skip = _record([_skip_of(field["type"], named) for field in schema["fields"]])
        return skip
    if schema["type"] == "array":
        return _blocks(_skip_of(schema["items"], named))
    if schema["type"] == "map":
        return _blocks(_record([_sized, _skip_of(schema["values"], named)]))
    return _PRIMITIVES[schema["type"]]


def _record(fields: Sequence[_Skip]) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        for skip_field in fields:
            position = skip_field(walk, position)
        return position

    return skip


def _union(branches: Sequence[_Skip]) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        branch, position = walk.number(position)
        if not 0 <= branch < len(branches):
            raise IndexError
        return branches[branch](walk, position)

    return skip


def _blocks(skip_item: _Skip) -> _Skip:
    def skip(walk: _Walk, position: int) -> int:
        while True:
            count, position = walk.number(position)
            if not count:
                return position
            if count < 0:
                count, position = -count, walk.number(position)[1]
            if count > walk.items_left:
                raise InvariantViolationError(
                    f"the record of {len(walk.data)} bytes has more items than a record of its size can have"
                )
            walk.items_left -= count
            for _ in range(count):
                position = skip_item(walk, position)

    return skip


def _sized(walk: _Walk, position: int) -> int:
    size, position = walk.number(position)
    if size < 0:
        raise IndexError
    return position + size


def _skip_number(walk: _Walk, position: int) -> int:
    return walk.number(position)[1]


_PRIMITIVES: Final[dict[str, _Skip]] = {
    "null": lambda walk, position: position,
    "boolean": lambda walk, position: position + 1,
    "float": lambda walk, position: position + 4,
    "double": lambda walk, position: position + 8,
    "int": _skip_number,
    "long": _skip_number,
    "enum": _skip_number,
    "string": _sized,
    "bytes": _sized,
}
