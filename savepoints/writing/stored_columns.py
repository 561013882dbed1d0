"""Values as stored ones, a column at a time: the inverse of `savepoints.tabular.whole_columns`, for numbers and text.

    long, int, double    the number, big-endian: a column is turned around as a whole
    text                 the number of its characters, and one more, in front of them: a byte each in short ASCII text

A column that has anything else in it, such as a value of another class, is for its serializer to write, or to refuse.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import DoubleSerializer, IntSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer

__all__ = ["stored_column", "turned_bytes"]

_CODES: Final = {4: "I", 8: "Q"}
_LONGEST_TEXT: Final = 126
"""The most characters whose number, and one more, is a byte."""


def stored_column(serializer: TypeSerializer[Any], values: Sequence[Any] | pa.Array) -> pa.Array | None:
    """The bytes of the values; None if they are to be written one by one."""
    known = _COLUMNS.get(type(serializer))
    if known is None:
        return None
    data_type, python_class, write = known
    if isinstance(values, pa.Array):
        return write(values) if values.type == data_type and not values.null_count else None
    if set(map(type, values)) != {python_class}:
        return None
    try:
        return write(pa.array(values, data_type))
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def turned_bytes(fixed: pa.Array, width: int) -> pa.Buffer:
    """Values of four or eight bytes each, one behind the other, between big-endian and native."""
    start = fixed.offset * width
    values = array.array(_CODES[width])
    values.frombytes(memoryview(fixed.buffers()[1])[start : start + len(fixed) * width])
    if sys.byteorder == "little":
        values.byteswap()
    return pa.py_buffer(values)


def _numbers(numbers: pa.Array) -> pa.Array:
    width = numbers.type.bit_width // 8
    turned = turned_bytes(numbers.view(pa.binary(width)), width)
    return pa.Array.from_buffers(pa.binary(width), len(numbers), [None, turned]).cast(pa.binary())


def _doubles(numbers: pa.Array) -> pa.Array:
    # There is one NaN in what is stored.
    return _numbers(pc.if_else(pc.is_nan(numbers), pa.scalar(float("nan"), pa.float64()), numbers))


def _texts(texts: pa.Array) -> pa.Array | None:
    content = texts.cast(pa.binary())
    lengths = pc.binary_length(content)
    is_short = (pc.max(lengths).as_py() or 0) <= _LONGEST_TEXT
    if not is_short or not pc.all(pc.string_is_ascii(texts), min_count=0).as_py():
        return None
    counts = pc.add(lengths, 1).cast(pa.uint8()).view(pa.binary(1)).cast(pa.binary())
    return pc.binary_join_element_wise(counts, content, b"")


_COLUMNS: Final[Mapping[type, tuple[pa.DataType, type, Callable[[pa.Array], pa.Array | None]]]] = {
    LongSerializer: (pa.int64(), int, _numbers),
    IntSerializer: (pa.int32(), int, _numbers),
    DoubleSerializer: (pa.float64(), float, _doubles),
    StringSerializer: (pa.string(), str, _texts),
}
"""What values have to be, in Arrow and in Python, and what writes a column of them."""
