"""Decodes stored values of simple types a whole column at a time, about fifty times as fast as one value at a time.

Types with a fixed width (numbers, booleans, times to live, records of these) need only slicing and byte swapping. For
text and bytes, the length prefix is cut off. For a record with variable fields, one cursor per row advances field by
field: the sizes are computed for all rows at once, and the bytes of a field form a column again.

A result of None means that the values must be decoded one by one: the type or the data needs more (non-ASCII or long
text, lists), or the bytes are invalid and the serializer should report the error. Values equal those of the
serializers and have the types of `value_forms`.
"""

from __future__ import annotations

import array
import functools
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer

__all__ = ["fixed_width_bytes", "is_all_present", "whole_column", "whole_timed_columns", "without_first_bytes"]


def whole_column(serializer: TypeSerializer[Any], data: pa.BinaryArray) -> pa.Array | None:
    """Return the values of non-null bytes, or None if they must be decoded one by one."""
    width_bytes = fixed_width_bytes(serializer)
    if width_bytes is not None:
        if not pc.all(pc.equal(pc.binary_length(data), width_bytes), min_count=0).as_py():
            return None
        return _fixed(serializer, data)
    if isinstance(serializer, NullableSerializer):
        return _optional(serializer, data)
    if isinstance(serializer, AttrsSerializer) and serializer.fields:
        return _record(serializer, data)
    read = _WHOLE.get(type(serializer))
    return None if read is None else read(data)


def whole_timed_columns(serializer: TtlSerializer[Any], data: pa.BinaryArray) -> tuple[pa.Array, pa.Array] | None:
    """Return the values and their times of last access, or None if they must be decoded one by one."""
    times = whole_column(_TIMES, pc.binary_slice(data, 0, _TIME_BYTES))
    values = whole_column(serializer.value_serializer, without_first_bytes(data, _TIME_BYTES))
    return None if times is None or values is None else (values, times)


def is_all_present(data: pa.BinaryArray) -> bool:
    """Whether no value of a `NullableSerializer` is None. The values then follow the first byte."""
    first = _first_bytes(data)
    return first is not None and _all(pc.equal(first, 0))


def without_first_bytes(data: pa.BinaryArray, position: int) -> pa.BinaryArray:
    """Return each value without its first bytes."""
    # Without a stop, pyarrow (26 too) uses one that overflows its offsets.
    return pc.binary_slice(data, position, max(position, pc.max(pc.binary_length(data)).as_py() or 0))


def fixed_width_bytes(serializer: TypeSerializer[Any]) -> int | None:
    """Return the fixed width of every value, or None."""
    number = _FIXED_WIDTH.get(type(serializer))
    if number is not None:
        return number[0]
    if isinstance(serializer, AttrsSerializer) and serializer.fields:
        widths = [fixed_width_bytes(part.serializer) for part in serializer.fields]
        return None if None in widths else sum(width for width in widths if width is not None)
    return None


def _fixed(serializer: TypeSerializer[Any], data: pa.BinaryArray) -> pa.Array | None:
    number = _FIXED_WIDTH.get(type(serializer))
    if number is not None:
        width_bytes, read = number
        return read(_joined(data, width_bytes), len(data))
    assert isinstance(serializer, AttrsSerializer)
    columns: list[pa.Array] = []
    position = 0
    for part in serializer.fields:
        width_bytes = fixed_width_bytes(part.serializer) or 0
        column = _fixed(part.serializer, pc.binary_slice(data, position, position + width_bytes))
        if column is None:
            return None
        columns.append(column)
        position += width_bytes
    return pa.StructArray.from_arrays(columns, names=[part.name for part in serializer.fields])


def _record(serializer: AttrsSerializer[Any], data: pa.BinaryArray) -> pa.Array | None:
    """Decode a record with variable-width fields."""
    if not len(data):
        return None
    base, starts, ends = _places(data)
    columns: list[pa.Array] = []
    for part in serializer.fields:
        sizes = _sizes_at(part.serializer, base, starts)
        next_starts = None if sizes is None else pc.add(starts, sizes)
        if next_starts is None or not _all(pc.less_equal(next_starts, ends)):
            return None
        column = _column_at(part.serializer, base, starts, sizes)
        if column is None:
            return None
        columns.append(column)
        starts = next_starts
    if not _all(pc.equal(starts, ends)):
        return None
    return pa.StructArray.from_arrays(columns, names=[part.name for part in serializer.fields])


def _column_at(serializer: TypeSerializer[Any], base: pa.Array, starts: pa.Array, sizes: pa.Array) -> pa.Array | None:
    """Return the values at these consecutive offsets."""
    read_at = _READ_AT.get(type(serializer))
    if read_at is not None:
        return read_at(serializer, base, starts, sizes)
    return whole_column(serializer, _cut_out(base, starts, sizes))


def _text_at(serializer: StringSerializer, base: pa.Array, starts: pa.Array, sizes: pa.Array) -> pa.Array | None:
    return _ascii(_cut_out(base, pc.add(starts, _ONE), pc.subtract(sizes, _ONE)))


def _optional_at(
    serializer: NullableSerializer[Any], base: pa.Array, starts: pa.Array, sizes: pa.Array
) -> pa.Array | None:
    if type(serializer.inner) is not StringSerializer:
        return _optional(serializer, _cut_out(base, starts, sizes))
    flags = base.take(starts)
    if not _all(pc.less_equal(flags, 1)):
        return None
    is_null = pc.equal(flags, 1)
    # A null has no bytes, so it is decoded as an empty text first.
    starts = pc.add(starts, pc.if_else(is_null, _ZERO, _TWO))
    texts = _ascii(_cut_out(base, starts, pc.if_else(is_null, _ZERO, pc.subtract(sizes, _TWO))))
    return None if texts is None else pc.if_else(is_null, pa.scalar(None, pa.string()), texts)


def _sizes_at(serializer: TypeSerializer[Any], base: pa.Array, starts: pa.Array) -> pa.Array | None:
    """Return the sizes of the values at these offsets, or None. A size may exceed the row; the caller checks that."""
    width_bytes = fixed_width_bytes(serializer)
    if width_bytes is not None:
        return pa.repeat(pa.scalar(width_bytes, pa.int32()), len(starts))
    sizes_at = _SIZES_AT.get(type(serializer))
    if sizes_at is None or (pc.max(starts).as_py() or 0) >= len(base):
        return None
    return sizes_at(serializer, base, starts)


def _text_sizes(serializer: StringSerializer, base: pa.Array, starts: pa.Array) -> pa.Array | None:
    """Return sizes of short ASCII text from its first byte. Nulls and other text are not handled."""
    first = base.take(starts)
    is_short = pc.and_(pc.greater_equal(first, 1), pc.less(first, 0x80))
    return first.cast(pa.int32()) if _all(is_short) else None


def _byte_sizes(serializer: BytesSerializer, base: pa.Array, starts: pa.Array) -> pa.Array | None:
    if (pc.max(starts).as_py() or 0) + 4 > len(base):
        return None
    lengths = pa.repeat(pa.scalar(0, pa.uint32()), len(starts))
    for place in range(4):
        byte = base.take(pc.add(starts, pa.scalar(place, pa.int32()))).cast(pa.uint32())
        lengths = pc.bit_wise_or(lengths, pc.shift_left(byte, pa.scalar(24 - 8 * place, pa.uint32())))
    # A length beyond the data could overflow an offset. Negative lengths are very large unsigned numbers.
    return pc.add(lengths.cast(pa.int32()), _FOUR) if _all(pc.less_equal(lengths, len(base))) else None


def _optional_sizes(serializer: NullableSerializer[Any], base: pa.Array, starts: pa.Array) -> pa.Array | None:
    is_null = pc.equal(base.take(starts), 1)
    null_size = pa.scalar(1 + serializer.padding_length, pa.int32())
    first_present = pc.index(is_null, False).as_py()
    if first_present < 0:
        return pa.repeat(null_size, len(starts))
    # For a null, read the size of any other value.
    sizes = _sizes_at(serializer.inner, base, pc.add(pc.if_else(is_null, starts[first_present], starts), _ONE))
    return None if sizes is None else pc.if_else(is_null, null_size, pc.add(sizes, _ONE))


def _record_sizes(serializer: AttrsSerializer[Any], base: pa.Array, starts: pa.Array) -> pa.Array | None:
    places = starts
    for part in serializer.fields:
        sizes = _sizes_at(part.serializer, base, places)
        if sizes is None:
            return None
        places = pc.add(places, sizes)
        if (pc.max(places).as_py() or 0) > len(base):
            return None
    return pc.subtract(places, starts)


def _places(data: pa.BinaryArray) -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the concatenated bytes of all values, and the start and end offset of each."""
    _, bounds, stored = data.buffers()
    base = pa.Array.from_buffers(pa.uint8(), 0 if stored is None else stored.size, [None, stored])
    starts = pa.Array.from_buffers(pa.int32(), len(data), [None, bounds], offset=data.offset)
    return base, starts, pa.Array.from_buffers(pa.int32(), len(data), [None, bounds], offset=data.offset + 1)


def _first_bytes(data: pa.BinaryArray) -> pa.Array | None:
    """Return the first byte of each value, or None if a value is empty."""
    if not _all(pc.greater_equal(pc.binary_length(data), 1)):
        return None
    base, starts, _ = _places(data)
    return base.take(starts)


def _cut_out(base: pa.Array, starts: pa.Array, sizes: pa.Array) -> pa.BinaryArray:
    """Return the slices at these non-overlapping offsets."""
    # Together with the gaps they form one column of bytes; keep every other value.
    first, second = (starts, pc.add(starts, sizes))[:: 1 if sys.byteorder == "little" else -1]
    bounds = pc.bit_wise_or(first.cast(pa.int64()), pc.shift_left(second.cast(pa.int64()), _OFFSET_BITS))
    pieces = pa.Array.from_buffers(
        pa.binary(), 2 * len(starts) - 1, [None, bounds.buffers()[1], base.buffers()[1] or _NO_BYTES]
    )
    return pieces.take(_numbered(len(starts), 2))


@functools.lru_cache(maxsize=8)
def _numbered(count: int, step: int = 1) -> pa.Array:
    """Return the numbers from zero on. Cached, since batches mostly have the same length."""
    return pc.subtract(pc.cumulative_sum(pa.repeat(pa.scalar(step, pa.int32()), count)), pa.scalar(step, pa.int32()))


def _all(condition: pa.Array) -> bool:
    return bool(pc.all(condition, min_count=0).as_py())


def _joined(data: pa.BinaryArray, width_bytes: int) -> memoryview:
    """Return the concatenated bytes of values with a fixed width."""
    _, bounds, stored = data.buffers()
    if stored is None or not len(data):
        return memoryview(b"")
    start = memoryview(bounds).cast("i")[data.offset]
    return memoryview(stored)[start : start + len(data) * width_bytes]


def _numbers(type_code: str, arrow_type: pa.DataType) -> tuple[int, Callable[[memoryview, int], pa.Array | None]]:
    width_bytes = array.array(type_code).itemsize

    def read(data: memoryview, rows: int) -> pa.Array:
        values = array.array(type_code)
        values.frombytes(data)
        if sys.byteorder == "little":
            values.byteswap()
        return pa.Array.from_buffers(arrow_type, rows, [None, pa.py_buffer(values)])

    return width_bytes, read


def _booleans(data: memoryview, rows: int) -> pa.Array | None:
    values = pa.Array.from_buffers(pa.uint8(), rows, [None, pa.py_buffer(bytes(data))])
    return values.cast(pa.bool_()) if (pc.max(values).as_py() or 0) <= 1 else None


def _texts(data: pa.BinaryArray) -> pa.Array | None:
    """Decode text: the number of code units plus one, then the code units. All take one byte in short ASCII text."""
    first = _first_bytes(data)
    if first is None or not _all(pc.equal(first.cast(pa.int32()), pc.binary_length(data))):
        return None
    return _ascii(without_first_bytes(data, 1))


def _ascii(content: pa.BinaryArray) -> pa.Array | None:
    """Return the texts, or None unless all are ASCII."""
    _, bounds, stored = content.buffers()
    if stored is not None and not stored.to_pybytes().isascii():
        return None
    return pa.Array.from_buffers(pa.string(), len(content), [None, bounds, stored or _NO_BYTES], offset=content.offset)


def _optional(serializer: NullableSerializer[Any], data: pa.BinaryArray) -> pa.Array | None:
    """Decode optional values. A null is one byte and is replaced by any value while the column is decoded."""
    if is_all_present(data):
        return whole_column(serializer.inner, without_first_bytes(data, 1))
    width_bytes = fixed_width_bytes(serializer.inner)
    stand_in = _STAND_INS.get(type(serializer.inner)) if width_bytes is None else bytes(width_bytes)
    is_null = pc.equal(data, _NULL)
    if stand_in is None or not is_all_present(data.filter(pc.invert(is_null))):
        return None
    values = whole_column(
        serializer.inner, pc.if_else(is_null, pa.scalar(stand_in, pa.binary()), without_first_bytes(data, 1))
    )
    if values is None:
        return None
    return pc.if_else(is_null, pa.scalar(None, values.type), values)


def _bytes(data: pa.BinaryArray) -> pa.Array | None:
    if not pc.all(pc.greater_equal(pc.binary_length(data), 4), min_count=0).as_py():
        return None
    lengths = _numbers("i", pa.int32())[1](_joined(pc.binary_slice(data, 0, 4), 4), len(data))
    content = without_first_bytes(data, 4)
    return content if pc.all(pc.equal(lengths, pc.binary_length(content)), min_count=0).as_py() else None


_FIXED_WIDTH: Final[Mapping[type, tuple[int, Callable[[memoryview, int], pa.Array | None]]]] = {
    BooleanSerializer: (1, _booleans),
    ByteSerializer: _numbers("b", pa.int8()),
    ShortSerializer: _numbers("h", pa.int16()),
    IntSerializer: _numbers("i", pa.int32()),
    LongSerializer: _numbers("q", pa.int64()),
    FloatSerializer: _numbers("f", pa.float32()),
    DoubleSerializer: _numbers("d", pa.float64()),
}
"""By serializer: the width of a value in bytes, and the function that decodes concatenated values."""

_SIZES_AT: Final[Mapping[type, Callable[[Any, pa.Array, pa.Array], pa.Array | None]]] = {
    StringSerializer: _text_sizes,
    BytesSerializer: _byte_sizes,
    NullableSerializer: _optional_sizes,
    AttrsSerializer: _record_sizes,
}
"""By serializer: the function that reads the sizes of variable-width values."""

_READ_AT: Final[Mapping[type, Callable[[Any, pa.Array, pa.Array, pa.Array], pa.Array | None]]] = {
    StringSerializer: _text_at,
    NullableSerializer: _optional_at,
}
"""By serializer: the function that decodes values of known sizes without slicing them first."""

_ZERO, _ONE, _TWO, _FOUR = (pa.scalar(number, pa.int32()) for number in (0, 1, 2, 4))
"""Offsets are int32. Python numbers would widen them to int64."""

_TIMES: Final = LongSerializer()
_TIME_BYTES: Final = 8
_OFFSET_BITS: Final = pa.scalar(32, pa.int64())
_NO_BYTES: Final = pa.py_buffer(b"")
_NULL: Final = pa.scalar(b"\1", pa.binary())

_STAND_INS: Final[Mapping[type, bytes]] = {StringSerializer: b"\1", BytesSerializer: bytes(4)}
"""The shortest value of each type: empty text, and no bytes."""

_WHOLE: Final[Mapping[type, Callable[[pa.BinaryArray], pa.Array | None]]] = {
    StringSerializer: _texts,
    BytesSerializer: _bytes,
}
"""By serializer: the function that decodes variable-width values."""
