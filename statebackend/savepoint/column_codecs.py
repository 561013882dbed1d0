"""Converts Arrow columns to stored bytes and back, many values at a time, with numpy.

A part of a value is encoded as an array of bytes, and Arrow joins the parts of a record. To decode, a part reads at an
array of positions and returns the positions after it. The bytes are the same as those of the serializers:

| Vectorised | Converted one by one |
|---|---|
| booleans and numbers of fixed width, bytes, optional values | |
| lists | lists of optional values, and columns with a list of more than 256 elements that are no numbers |
| unbounded integers of 64 bits | a column with a larger integer |
| ASCII strings of at most 126 characters | a column with any other string |
| tuples, and records with a constructor that only sets fields | a field of another type |

Other types have no codec and are converted as objects (`statebackend.savepoint.value_forms`). If a codec does not
accept a column, it raises `CodecMissError`; the column is then converted as objects, which reports invalid values.
`read_column` and `write_column` do this for columns of canonical rows.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

import typeserializers as ts
from statebackend.savepoint.value_forms import ColumnForms, stored_values
from statebackend.state.key_hashes import gathered
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import settable_twin

if TYPE_CHECKING:
    import numpy as np
else:
    try:
        import numpy as np
    except ImportError:
        np = None

__all__ = [
    "CodecMissError",
    "ColumnCodec",
    "WindowTimers",
    "column_codec",
    "column_to_write",
    "key_rows",
    "read_column",
    "window_timers",
    "write_column",
]

_LARGEST_COLUMN: Final = (1 << 31) - 1
_NO_SEPARATOR: Final = pa.scalar(b"", pa.binary())


class CodecMissError(Exception):
    """The vectorised code does not support a column or its bytes."""


class _Part(Protocol):
    """The vectorised code of one serializer. Columns have no nulls, positions are 64-bit numbers."""

    @property
    def width(self) -> int | None:
        """The size of each value in bytes; None if it varies."""

    def encode(self, column: pa.Array) -> pa.Array:
        """Return the bytes of each value as a binary array."""

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        """Return the values at these positions of the bytes, and the positions after them."""


@frozen
class _Fixed:
    """Numbers and booleans."""

    dtype: str
    data_type: pa.DataType
    width: int

    def matrix(self, column: pa.Array) -> Any:
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype.kind == "f":
            # All NaN values are stored as the canonical NaN.
            values = np.where(np.isnan(values), values.dtype.type("nan"), values)
        return np.ascontiguousarray(values.astype(self.dtype)).view(np.uint8).reshape(len(column), self.width)

    def encode(self, column: pa.Array) -> pa.Array:
        return _binary_of_matrix(self.matrix(column))

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        values = gathered(data, positions, self.width).view(self.dtype).ravel()
        if self.dtype == "?":
            if values.view(np.uint8).max(initial=0) > 1:
                raise CodecMissError
        else:
            values = values.astype(values.dtype.newbyteorder("="))
        return pa.array(values, self.data_type), positions + self.width


class _Objects:
    """Any other type inside a record or an optional value: one value at a time."""

    width = None

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        self._serializer = serializer
        self._form = ColumnForms().of(serializer)

    def encode(self, column: pa.Array) -> pa.Array:
        to_bytes = self._serializer.to_bytes
        return pa.array([to_bytes(value) for value in stored_values(self._serializer, column, "")], pa.binary())

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        read, whole = self._serializer.codec.read, data.tobytes()
        found = [read(whole, position) for position in positions.tolist()]
        values = [value for value, _ in found]
        if None in values:
            raise CodecMissError
        return self._form.array(values), np.array([end for _, end in found], np.int64)


class _Text(_Objects):
    """ASCII strings of up to 126 characters: one byte of length, and the characters."""

    def encode(self, column: pa.Array) -> pa.Array:
        lengths = pc.binary_length(column)
        if len(column) and (pc.max(lengths).as_py() > 126 or not pc.all(pc.string_is_ascii(column)).as_py()):
            return super().encode(column)
        heads = (lengths.to_numpy(zero_copy_only=False) + 1).astype(np.uint8).reshape(-1, 1)
        return pc.binary_join_element_wise(_binary_of_matrix(heads), column.cast(pa.binary()), _NO_SEPARATOR)

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        heads = gathered(data, positions, 1).ravel().astype(np.int64)
        if heads.min(initial=1) < 1:
            raise CodecMissError
        lengths = heads - 1
        if heads.max(initial=0) > 127:
            return super().decode(data, positions)
        characters, offsets = _gathered_parts(data, positions + 1, lengths)
        if characters.max(initial=0) > 127:
            return super().decode(data, positions)
        column = pa.StringArray.from_buffers(len(lengths), pa.py_buffer(offsets), pa.py_buffer(characters))
        return column, positions + heads


class _BigInteger(_Objects):
    """Unbounded integers: a 32-bit number, 1 to 3 for zero, one and ten, else the size and 4, and the bytes."""

    def encode(self, column: pa.Array) -> pa.Array:
        try:
            values = column.cast(pa.int64()).to_numpy(zero_copy_only=False)
        except pa.ArrowInvalid:
            return super().encode(column)
        magnitudes = values ^ (values >> 63)
        sizes = 1 + sum((magnitudes >> bits > 0).astype(np.int64) for bits in range(7, 63, 8))
        heads = sizes + 4
        for number, shortcut in _SHORTCUTS:
            heads[values == number], sizes[values == number] = shortcut, 0
        matrix = np.empty((len(values), 12), np.uint8)
        matrix[:, :4] = heads.astype(">i4").view(np.uint8).reshape(-1, 4)
        matrix[:, 4:] = values.astype(">i8").view(np.uint8).reshape(-1, 8)
        places = np.arange(12)
        content = matrix[(places < 4) | (places >= 12 - sizes[:, None])]
        return _binary(content.tobytes(), sizes + 4)

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        heads = gathered(data, positions, 4).view(">i4").ravel().astype(np.int64)
        if heads.max(initial=1) > 12:
            return super().decode(data, positions)
        if heads.min(initial=1) < 1 or (heads == 4).any():
            raise CodecMissError
        sizes = np.maximum(heads - 4, 0)
        ends = positions + 4 + sizes
        if ends.max(initial=0) > len(data):
            raise CodecMissError
        # The last eight bytes of a value; bytes before its start are shifted out.
        padded = np.concatenate([np.zeros(8, np.uint8), data])
        values = padded[ends[:, None] + np.arange(8)].view(">i8").ravel().astype(np.int64)
        unused = 8 * (8 - sizes)
        values = np.where(sizes > 0, values << np.minimum(unused, 63) >> np.minimum(unused, 63), 0)
        for number, shortcut in _SHORTCUTS:
            values[heads == shortcut] = number
        return pa.array(values).cast(self._form.data_type), ends


_SHORTCUTS: Final = ((0, 1), (1, 2), (10, 3))


class _Bytes:
    """Bytes: a 32-bit length, and the bytes."""

    width = None

    def encode(self, column: pa.Array) -> pa.Array:
        heads = _LENGTH.encode(pc.binary_length(column))
        return pc.binary_join_element_wise(heads, column, _NO_SEPARATOR)

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        lengths = _lengths(data, positions)
        content, offsets = _gathered_parts(data, positions + 4, lengths)
        column = pa.Array.from_buffers(pa.binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(content)])
        return column, positions + 4 + lengths


_LONGEST_LIST: Final = 256


@frozen
class _List:
    """Lists: a 32-bit count, and the elements."""

    element: _Part
    data_type: pa.DataType
    width: None = None

    def encode(self, column: pa.Array) -> pa.Array:
        elements = column.flatten()
        if elements.null_count:
            raise CodecMissError
        lengths = column.value_lengths()
        places = np.zeros(len(column) + 1, np.int64)
        np.cumsum(lengths.to_numpy(zero_copy_only=False), out=places[1:])
        content, ends = _bytes_and_ends(self.element.encode(elements))
        joined = _binary(content[ends[0] : ends[-1]], np.diff(ends[places].astype(np.int64)))
        return pc.binary_join_element_wise(_LENGTH.encode(lengths), joined, _NO_SEPARATOR)

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        lengths = _lengths(data, positions)
        read = self._decode_numbers if isinstance(self.element, _Fixed) else self._decode_in_turn
        elements, after = read(data, positions + 4, lengths)
        offsets = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        return pa.ListArray.from_arrays(pa.array(offsets), elements, type=self.data_type), after

    def _decode_numbers(self, data: Any, starts: Any, lengths: Any) -> tuple[pa.Array, Any]:
        width = self.element.width
        assert width is not None
        content, _ = _gathered_parts(data, starts, lengths * width)
        elements, _ = self.element.decode(content, np.arange(0, len(content), width, dtype=np.int64))
        return elements, starts + lengths * width

    def _decode_in_turn(self, data: Any, after: Any, lengths: Any) -> tuple[pa.Array, Any]:
        longest = int(lengths.max(initial=0))
        if longest > _LONGEST_LIST:
            raise CodecMissError
        parts, places = [], []
        # An element starts at the end of the one before, so the first ones of all lists come first.
        for number in range(longest):
            active = np.flatnonzero(lengths > number)
            elements, after[active] = self.element.decode(data, after[active])
            parts.append(elements)
            places.append(active)
        order = np.argsort(np.concatenate(places), kind="stable") if parts else np.zeros(0, np.int64)
        elements = pa.concat_arrays(parts).take(pa.array(order)) if parts else pa.array([], self.data_type.value_type)
        return elements, after


@frozen
class _Optional:
    """Optional values: 00 and the value, or 01 and the padding."""

    inner: _Part
    data_type: pa.DataType
    padding: int
    width: None = None

    def encode(self, column: pa.Array) -> pa.Array:
        present = column.drop_null()
        flags = _binary_of_matrix(np.zeros((len(present), 1), np.uint8))
        encoded = pc.binary_join_element_wise(flags, self.inner.encode(present), _NO_SEPARATOR)
        if len(present) == len(column):
            return encoded
        null = pa.scalar(b"\x01" + bytes(self.padding), pa.binary())
        return _spread(encoded, column.is_valid().to_numpy(zero_copy_only=False)).fill_null(null)

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        flags = gathered(data, positions, 1).ravel()
        if flags.max(initial=0) > 1:
            raise CodecMissError
        present = flags == 0
        values, ends = self.inner.decode(data, positions[present] + 1)
        after = positions + 1 + self.padding
        after[present] = ends
        return (values if present.all() else _spread(values, present)), after


@frozen
class _Timed:
    """Values with their time of last access, which comes first. Only read."""

    value: _Part
    data_type: pa.DataType

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        times, positions = _TIME.decode(data, positions)
        values, positions = self.value.decode(data, positions)
        return pa.StructArray.from_arrays([values, times], fields=list(self.data_type)), positions


class _Record:
    """Records and tuples: the fields in order."""

    def __init__(self, parts: Sequence[_Part], accepts_null: Sequence[bool], data_type: pa.DataType) -> None:
        self._parts = parts
        self._accepts_null = accepts_null
        self._data_type = data_type
        widths = [part.width for part in parts]
        self.width = None if None in widths else sum(width for width in widths if width is not None)

    def matrix(self, column: pa.Array) -> Any:
        parts: Sequence[Any] = self._parts
        return np.hstack([part.matrix(one) for part, one in zip(parts, self._columns(column), strict=True)])

    def encode(self, column: pa.Array) -> pa.Array:
        if self.width is not None:
            return _binary_of_matrix(self.matrix(column))
        parts = [part.encode(one) for part, one in zip(self._parts, self._columns(column), strict=True)]
        return pc.binary_join_element_wise(*parts, _NO_SEPARATOR)

    def decode(self, data: Any, positions: Any) -> tuple[pa.Array, Any]:
        columns = []
        for part in self._parts:
            column, positions = part.decode(data, positions)
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(self._data_type)), positions

    def _columns(self, column: pa.Array) -> list[pa.Array]:
        columns: list[pa.Array] = column.flatten()
        for one, accepts_null in zip(columns, self._accepts_null, strict=True):
            if one.null_count and not accepts_null:
                raise CodecMissError
        return columns


def _binary(content: bytes, sizes: Any) -> pa.Array:
    if len(content) > _LARGEST_COLUMN:
        raise CodecMissError
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(content)])


def _bytes_and_ends(encoded: pa.BinaryArray) -> tuple[bytes, Any]:
    """Return the bytes of all values, and where each begins; the last place is the end."""
    _, offsets, data = encoded.buffers()
    places = np.frombuffer(offsets, np.int32)[encoded.offset : encoded.offset + len(encoded) + 1]
    return b"" if data is None else data.to_pybytes(), places


def _binary_of_matrix(matrix: Any) -> pa.Array:
    count, width = matrix.shape
    return _binary(matrix.tobytes(), np.full(count, width, np.int64))


def _gathered_parts(data: Any, positions: Any, lengths: Any) -> tuple[Any, Any]:
    """Return the concatenated bytes of all positions and lengths, and the offset of each as a 32-bit number."""
    if not len(lengths):
        return np.zeros(0, np.uint8), np.zeros(1, np.int32)
    ends = positions + lengths
    if ends.max() > len(data) or len(data) > _LARGEST_COLUMN:
        raise CodecMissError
    # Together with the gaps they form one column of bytes. Arrow takes every other value faster than numpy.
    bounds = np.empty(2 * len(positions), np.int32)
    bounds[::2], bounds[1::2] = positions, ends
    pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(data)])
    _, offsets, content = pieces.take(pa.array(np.arange(0, len(bounds), 2, dtype=np.int32))).buffers()
    return np.frombuffer(content, np.uint8), np.frombuffer(offsets, np.int32)


def _lengths(data: Any, positions: Any) -> Any:
    lengths = gathered(data, positions, 4).view(">i4").ravel().astype(np.int64)
    if lengths.min(initial=0) < 0:
        raise CodecMissError
    return lengths


def _spread(column: pa.Array, present: Any) -> pa.Array:
    """Put the values where ``present`` is true, and null elsewhere."""
    return column.take(pa.array(np.cumsum(present) - 1, pa.int64(), mask=~present))


_FIXED: Final[dict[type, _Fixed]] = {
    ts.BooleanSerializer: _Fixed("?", pa.bool_(), 1),
    ts.ByteSerializer: _Fixed(">i1", pa.int8(), 1),
    ts.ShortSerializer: _Fixed(">i2", pa.int16(), 2),
    ts.IntSerializer: _Fixed(">i4", pa.int32(), 4),
    ts.LongSerializer: _Fixed(">i8", pa.int64(), 8),
    ts.FloatSerializer: _Fixed(">f4", pa.float32(), 4),
    ts.DoubleSerializer: _Fixed(">f8", pa.float64(), 8),
}
_LENGTH: Final = _FIXED[ts.IntSerializer]
_TIME: Final = _FIXED[ts.LongSerializer]


def _part(serializer: Any, *, for_reading: bool = False) -> Any:
    """Return the vectorised code of a serializer, or None. Reading makes no records, so any record class will do."""
    kind = type(serializer)
    fixed = _FIXED.get(kind)
    if fixed is not None:
        return fixed
    if kind is ts.StringSerializer:
        return _Text(serializer)
    if kind is ts.BigIntSerializer:
        return _BigInteger(serializer)
    if kind is ts.BytesSerializer:
        return _Bytes()
    form = ColumnForms().of(serializer).data_type if kind in _COMPOSITES else None
    if kind is ts.NullableSerializer:
        inner = _part(serializer.inner, for_reading=for_reading)
        return None if inner is None else _Optional(inner, form, serializer.padding_length)
    if kind is ts.TtlSerializer and for_reading:
        value = _part(serializer.value_serializer, for_reading=True)
        return None if value is None else _Timed(value, form)
    if kind in (ts.ListSerializer, ts.ArrayListSerializer):
        element = _part(serializer.element_serializer, for_reading=for_reading)
        if element is None or isinstance(element, _Optional):
            return None
        return _List(element, form)
    if kind is ts.TupleSerializer:
        return _record(serializer.field_serializers, form, for_reading)
    if kind is ts.TimeWindowSerializer:
        return _record([ts.LongSerializer()] * 2, form, for_reading)
    if kind is ts.AttrsSerializer and (for_reading or settable_twin(serializer.record_class) is not None):
        return _record([part.serializer for part in serializer.fields], form, for_reading)
    return None


def _record(serializers: Sequence[TypeSerializer[Any]], form: pa.DataType, for_reading: bool) -> _Part | None:
    parts = [_part(serializer, for_reading=for_reading) for serializer in serializers]
    if not any(parts):
        return None
    return _Record(
        [part or _Objects(serializer) for part, serializer in zip(parts, serializers, strict=True)],
        [isinstance(part, _Optional) for part in parts],
        form,
    )


_COMPOSITES: Final = (
    ts.NullableSerializer, ts.ListSerializer, ts.ArrayListSerializer, ts.AttrsSerializer, ts.TupleSerializer,
    ts.TtlSerializer, ts.TimeWindowSerializer,
)  # fmt: skip


@frozen
class ColumnCodec:
    """Converts columns of one serializer to stored rows and back. A missing row (None) is a null in the column."""

    _part: Any

    def encode(self, column: pa.Array) -> list[bytes | None]:
        """Return the bytes of each value. Raises `CodecMissError` for a column that needs the object path."""
        try:
            return self._encoded(column)
        except CodecMissError:
            raise
        except Exception as error:
            raise CodecMissError from error

    def decode(self, rows: Sequence[bytes | None]) -> pa.Array:
        """Return the values of stored rows. Raises `CodecMissError` for bytes that need the object path."""
        try:
            return self._decoded(rows)
        except CodecMissError:
            raise
        except Exception as error:
            raise CodecMissError from error

    def _encoded(self, column: pa.Array) -> list[bytes | None]:
        present = column.drop_null() if column.null_count else column
        if self._part.width is not None:
            content = self._part.matrix(present).tobytes()
            rows = [row for (row,) in struct.iter_unpack(f"{self._part.width}s", content)]
        else:
            content, places = _bytes_and_ends(self._part.encode(present))
            rows = [content[start:end] for start, end in pairwise(places.tolist())]
        if len(rows) == len(column):
            return list(rows)
        following = iter(rows)
        return [next(following) if is_valid else None for is_valid in column.is_valid().to_pylist()]

    def _decoded(self, rows: Sequence[bytes | None]) -> pa.Array:
        present = [row for row in rows if row is not None]
        sizes = np.fromiter(map(len, present), np.int64, len(present))
        ends = np.cumsum(sizes)
        column = self.between(b"".join(present), ends - sizes, ends)
        if len(present) == len(rows):
            return column
        return _spread(column, np.fromiter((row is not None for row in rows), np.bool_, len(rows)))

    def joined(self, column: pa.Array) -> pa.BinaryArray:
        """Return the bytes of values without null. Raises `CodecMissError` or any other error for a misfit."""
        return self._part.encode(column)

    def between(self, content: Any, starts: Any, ends: Any) -> pa.Array:
        """Return the values of the bytes between these positions. Raises `CodecMissError` if a value ends elsewhere."""
        column, read = self._part.decode(np.frombuffer(content, np.uint8), starts)
        if not np.array_equal(read, ends):
            raise CodecMissError
        return column


_KEY_GROUP: Final = _Fixed(">u2", pa.uint16(), 2)


@functools.lru_cache(maxsize=256)
def _key_codec(serializer: TypeSerializer[Any]) -> tuple[ColumnCodec, pa.DataType] | None:
    part = None if np is None or not serializer.equal_values_have_equal_bytes else _part(serializer)
    if part is None:
        return None
    data_type = ColumnForms().of(serializer).data_type
    row_type = pa.struct([("key_group", pa.uint16()), ("key", data_type)])
    return ColumnCodec(_Record([_KEY_GROUP, part], [False, False], row_type)), data_type


def key_rows(serializer: TypeSerializer[Any], columns: Sequence[pa.Array], key_groups: pa.Array) -> list[bytes] | None:
    """Return the key group as u16 and the bytes of each key, or None if the keys are encoded one by one.

    A key of several columns is a tuple.
    """
    codec = _key_codec(serializer)
    if codec is None:
        return None
    key_codec, data_type = codec
    try:
        if len(columns) == 1:
            keys = columns[0]
        else:
            keys = pa.StructArray.from_arrays(columns, names=[f"f{index}" for index in range(len(columns))])
        if keys.type != data_type:
            return None
        groups = key_groups.cast(pa.uint16())
        rows: Any = key_codec.encode(pa.StructArray.from_arrays([groups, keys], names=["key_group", "key"]))
    except (CodecMissError, pa.ArrowInvalid):
        return None
    encoded: list[bytes] = rows
    return encoded


_WINDOW: Final = pa.struct([("start", pa.int64()), ("end", pa.int64())])
_SIGN: Final = -(1 << 63)


@frozen
class WindowTimers:
    """Timers of time windows as columns, in order.

    ``runs`` are pairs of a time and the bounds of a window, with the number of timers that follow each other and have
    them.
    """

    keys: pa.Array
    key_groups: pa.Array
    runs: Sequence[tuple[int, int, int, int]]
    entries: Sequence[bytes]

    def rows(self, places: Sequence[int]) -> list[bytes]:
        """The rows of `key_rows` for the timers at these places."""
        return [entry[-2:] + entry[8:-18] for entry in map(self.entries.__getitem__, places)]


def window_timers(serializer: TypeSerializer[Any], entries: Sequence[bytes]) -> WindowTimers | None:
    """Decode entries of a timer queue with time windows. None if the keys are decoded one by one.

    An entry is the timer and its key group as u16.
    """
    codec = _key_codec(serializer)
    if codec is None:
        return None
    try:
        decoded = _timer_codec(serializer).decode(entries)
    except CodecMissError:
        return None
    times, keys, windows, key_groups = decoded.flatten()
    bounds = [times.to_numpy() ^ _SIGN, *(one.to_numpy() for one in windows.flatten())]
    changed = functools.reduce(np.logical_or, [np.diff(one) != 0 for one in bounds])
    starts = [0, *(np.flatnonzero(changed) + 1).tolist(), len(entries)]
    runs = [(*(int(one[start]) for one in bounds), end - start) for start, end in pairwise(starts)]
    return WindowTimers(keys, key_groups, runs, entries)


@functools.lru_cache(maxsize=256)
def _timer_codec(serializer: TypeSerializer[Any]) -> ColumnCodec:
    part = _part(serializer)
    assert part is not None
    long = _FIXED[ts.LongSerializer]
    types = [pa.int64(), ColumnForms().of(serializer).data_type, _WINDOW, pa.uint16()]
    parts = [long, part, _Record([long, long], [False, False], _WINDOW), _KEY_GROUP]
    return ColumnCodec(_Record(parts, [False] * 4, pa.struct([(str(i), one) for i, one in enumerate(types)])))


@functools.lru_cache(maxsize=256)
def column_codec(serializer: TypeSerializer[Any], *, for_reading: bool = False) -> ColumnCodec | None:
    """Return the codec of a serializer; None if its values are converted as objects, or numpy is not installed.

    A codec ``for_reading`` only decodes, also records whose constructor does more than setting fields.
    """
    part = None if np is None else _part(serializer, for_reading=for_reading)
    return None if part is None else ColumnCodec(part)


def read_column(serializer: TypeSerializer[Any], rows: pa.BinaryArray) -> pa.Array | None:
    """Return the values of stored rows, or None if they must be decoded one by one."""
    codec = column_codec(serializer, for_reading=True)
    if codec is None or rows.null_count:
        return None
    try:
        _, bounds, content = rows.buffers()
        places = np.frombuffer(bounds, np.int32)[rows.offset : rows.offset + len(rows) + 1].astype(np.int64)
        return codec.between(b"" if content is None else content, places[:-1], places[1:])
    except Exception:
        # The serializer reports the error.
        return None


@functools.lru_cache(maxsize=256)
def _column_type(serializer: TypeSerializer[Any]) -> pa.DataType | None:
    return None if column_codec(serializer) is None else ColumnForms().of(serializer).data_type


def column_to_write(serializer: TypeSerializer[Any], column: pa.Array) -> pa.Array | None:
    """Return a column for `write_column`, or None if the serializer has no codec for columns of this type.

    Integers are widened. The fields of a record are matched by name, and those of a tuple by position.
    """
    data_type = _column_type(serializer)
    if data_type is None:
        return None
    if isinstance(serializer, ts.TupleSerializer) and pa.types.is_struct(column.type) and not column.null_count:
        if column.type.num_fields != data_type.num_fields:
            return None
        column = pa.StructArray.from_arrays(column.flatten(), names=[field.name for field in data_type])
    return _as_type(column, data_type)


def _as_type(column: pa.Array, data_type: pa.DataType) -> pa.Array | None:
    given = column.type
    if given == data_type:
        return column
    if pa.types.is_integer(given) and pa.types.is_integer(data_type):
        return column.cast(data_type) if given.bit_width < data_type.bit_width else None
    if not (pa.types.is_struct(given) and pa.types.is_struct(data_type)) or column.null_count:
        return None
    if sorted(field.name for field in given) != sorted(field.name for field in data_type):
        return None
    columns = [_as_type(column.field(field.name), field.type) for field in data_type]
    if any(one is None for one in columns):
        return None
    return pa.StructArray.from_arrays(columns, fields=list(data_type))


def write_column(serializer: TypeSerializer[Any], column: pa.Array) -> pa.BinaryArray:
    """Return the stored rows of values without null. Raises `ColumnValueError` for a value that does not fit."""
    codec = column_codec(serializer)
    if codec is not None:
        # Otherwise the serializer reports the error.
        with contextlib.suppress(Exception):
            return codec.joined(column)
    return pa.array(map(serializer.to_bytes, stored_values(serializer, column, "")), pa.binary())
