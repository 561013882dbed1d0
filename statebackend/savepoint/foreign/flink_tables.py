"""Reads the values of Flink SQL: rows, and the values in them.

A value alone begins with its length. Its numbers are big-endian:

    text, bytes, array, map, row, raw value := i32(length) byte*
    decimal   := i64(unscaled), with more than 18 digits i32(length) bytes
    timestamp := i64(milliseconds) [more than 3 digits of a second: i32(nanoseconds)]
    date      := i32(days since 1970)     time := i32(milliseconds of the day)
    sorted map  := i32(n) (key bool(is null) [value])*
    linked list := i32(n) [mask of null elements] element*

Inside of rows, arrays and maps, numbers are little-endian. A row, and an array, have a part of fixed size and then the
bytes of longer values:

    row   := u8(kind) null bits of the fields, padded to 8 bytes with the kind; 8 bytes for each field; bytes
    array := i32(n) null bits padded to 4 bytes; n elements of 1, 2, 4 or 8 bytes, padded to 8 bytes; bytes
    map   := i32(length of keys) array(keys) array(values)

A longer value has u32(size) u32(offset) in its place. Texts and bytes of at most 7 bytes are in the place itself; its
last byte is then 0x80 plus the length. Timestamps with more than 3 digits have u32(nanoseconds) u32(offset), and
i64(milliseconds) there.

Values of Flink SQL are only read. A plan converts them (`change_values`, `change_keys`). `flink_table_types` reads the
types.
"""

from __future__ import annotations

import datetime
import decimal
import struct
from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar, Final, NoReturn

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, MalformedDataError, SnapshotFormatError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.rows import Row, RowKind, RowSerializer
from typeserializers.kernel.compiled import check_distinct
from typeserializers.kernel.stepping_over import SteppedOverSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
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
from typeserializers.times.calendar_values import (
    LocalDate,
    LocalDateSerializer,
    LocalDateTime,
    LocalDateTimeSerializer,
    LocalTime,
    LocalTimeSerializer,
)
from typeserializers.times.moments import Instant, InstantSerializer
from typeserializers.times.timers import TimeWindow, TimeWindowSerializer

_WORD: Final = struct.Struct("<Q")
_LONG: Final = struct.Struct("<q")
_INT: Final = struct.Struct("<i")
_SHORT: Final = struct.Struct("<h")
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_FAR: Final = 1 << 32
_MAX_COMPACT_DIGITS: Final = 18
_MAX_COMPACT_FRACTION: Final = 3
_CONTEXT: Final = decimal.Context(prec=100)
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()


class _Region:
    """The bytes of a row or array from ``base`` to ``stop``. Its parts together are not larger than itself."""

    __slots__ = ("_left", "base", "data", "stop")

    def __init__(self, data: bytes, base: int, stop: int) -> None:
        self.data, self.base, self.stop = data, base, stop
        self._left = stop - base

    def word(self, position: int) -> int:
        found: int = _WORD.unpack_from(self.data, position)[0]
        return found

    def span(self, position: int) -> tuple[int, int]:
        """Return start and end of the value whose size and offset are at a position."""
        word = self.word(position)
        return self._span(word // _FAR, word % _FAR)

    def _span(self, offset: int, size: int) -> tuple[int, int]:
        start = self.base + offset
        self._left -= size
        if self._left < 0 or start + size > self.stop:
            raise MalformedDataError(f"a value of {size} bytes at {offset} does not fit {self.stop - self.base} bytes")
        return start, start + size

    def content(self, position: int) -> bytes:
        last = self.data[position + 7]
        if last & 0x80:
            size = last & 0x7F
            if size > 7:
                raise MalformedDataError(f"{size} bytes in a place of 7 bytes")
            return self.data[position : position + size]
        start, stop = self.span(position)
        return self.data[start:stop]

    def timestamp(self, position: int) -> tuple[int, int]:
        """Return milliseconds and nanoseconds."""
        word = self.word(position)
        start, _ = self._span(word // _FAR, 8)
        return _LONG.unpack_from(self.data, start)[0], word % _FAR


_PRIMITIVES: Final[dict[type, tuple[int, Callable[[_Region, int], Any]]]] = {
    BooleanSerializer: (1, lambda region, at: region.data[at] != 0),
    ByteSerializer: (1, lambda region, at: (region.data[at] ^ 0x80) - 0x80),
    ShortSerializer: (2, lambda region, at: _SHORT.unpack_from(region.data, at)[0]),
    IntSerializer: (4, lambda region, at: _INT.unpack_from(region.data, at)[0]),
    LongSerializer: (8, lambda region, at: _LONG.unpack_from(region.data, at)[0]),
    FloatSerializer: (4, lambda region, at: _FLOAT.unpack_from(region.data, at)[0]),
    DoubleSerializer: (8, lambda region, at: _DOUBLE.unpack_from(region.data, at)[0]),
    BytesSerializer: (8, _Region.content),
}
"""The size in an array, and the reader of a place, of serializers that Flink SQL shares with data streams."""


def _place_of(serializer: TypeSerializer[Any]) -> tuple[int, Callable[[_Region, int], Any]]:
    if isinstance(serializer, TableSerializer):
        return serializer.size_in_array, serializer.read_place
    return _PRIMITIVES[type(serializer)]


class ReadOnlySerializer(TypeSerializer[Any]):
    """Base class of the serializers of Flink SQL, which only read."""

    shown_as: type[TypeSerializer[Any]]
    """The class whose values have the same form in columns."""

    snapshot: TypeSerializerSnapshot[Any] | None = None
    """The snapshot that restores the serializer; None for a part of a type."""

    @abstractmethod
    def read_value(self, source: DataInputView) -> Any:
        """Read a value alone."""

    def deserialize(self, source: DataInputView) -> Any:
        try:
            return self.read_value(source)
        except Exception as error:
            raise self.deserialization_error(source.data, error) from error

    def serialize(self, value: Any, out: DataOutputView) -> NoReturn:
        raise TypeError("values of Flink SQL are only read. Convert them with a plan (change_values, change_keys)")

    def create_instance(self) -> NoReturn:
        raise TypeError("values of Flink SQL are only read")

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        if self.snapshot is None:
            raise SnapshotFormatError(f"{self!r} is a part of a type of Flink SQL, which has no snapshot")
        return self.snapshot


class TableSerializer(ReadOnlySerializer):
    """Base class of the types of columns. Subclasses define their `configuration` if they have one."""

    size_in_array: ClassVar[int] = 8

    @abstractmethod
    def read_place(self, region: _Region, position: int) -> Any:
        """Return the value in a place of a row or array."""

    def configuration(self) -> Hashable:
        return ()


class _SizedSerializer(TableSerializer):
    """A value of varying size."""

    @abstractmethod
    def read_range(self, data: bytes, start: int, stop: int) -> Any:
        """Return the value in a range of the data."""

    def read_place(self, region: _Region, position: int) -> Any:
        return self.read_range(region.data, *region.span(position))

    def read_value(self, source: DataInputView) -> Any:
        data = source.read_sized_bytes()
        return self.read_range(data, 0, len(data))

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return SteppedOverSerializer(self, DataInputView.read_sized_bytes)


class TableTextSerializer(_SizedSerializer):
    """CHAR and VARCHAR, as `str`."""

    shown_as = StringSerializer
    type_name = "str"

    def read_range(self, data: bytes, start: int, stop: int) -> str:
        return data[start:stop].decode()

    def read_place(self, region: _Region, position: int) -> str:
        return region.content(position).decode()


class TableRawSerializer(_SizedSerializer):
    """RAW, as the bytes of its own serializer."""

    shown_as = BytesSerializer
    type_name = "bytes"

    def read_range(self, data: bytes, start: int, stop: int) -> bytes:
        return data[start:stop]


class TableDecimalSerializer(TableSerializer):
    """DECIMAL, as `decimal.Decimal` with its scale."""

    type_name = "Decimal"

    def __init__(self, precision: int, scale: int) -> None:
        if not 0 <= scale <= precision <= 38:
            raise MalformedDataError(f"a decimal with precision {precision} and scale {scale}")
        self.precision, self.scale = precision, scale

    def configuration(self) -> Hashable:
        return self.precision, self.scale

    def _decimal(self, unscaled: int) -> decimal.Decimal:
        return decimal.Decimal(unscaled).scaleb(-self.scale, _CONTEXT)

    def read_place(self, region: _Region, position: int) -> decimal.Decimal:
        if self.precision <= _MAX_COMPACT_DIGITS:
            return self._decimal(_LONG.unpack_from(region.data, position)[0])
        start, stop = region.span(position)
        return self._decimal(_unscaled(region.data[start:stop]))

    def read_value(self, source: DataInputView) -> decimal.Decimal:
        is_compact = self.precision <= _MAX_COMPACT_DIGITS
        return self._decimal(source.read_long() if is_compact else _unscaled(source.read_sized_bytes()))


def _unscaled(data: bytes) -> int:
    if len(data) > 16:
        raise MalformedDataError(f"a decimal of {len(data)} bytes")
    return int.from_bytes(data, "big", signed=True)


class _IntegerSerializer(TableSerializer):
    """A value that is stored as an integer of 32 bits."""

    length = 4
    size_in_array = 4

    @abstractmethod
    def value_of(self, number: int) -> Any:
        """Return the value that is stored as the integer."""

    def read_place(self, region: _Region, position: int) -> Any:
        return self.value_of(_INT.unpack_from(region.data, position)[0])

    def read_value(self, source: DataInputView) -> Any:
        return self.value_of(source.read_int())


class TableDateSerializer(_IntegerSerializer):
    """DATE, as `LocalDate`."""

    shown_as = LocalDateSerializer
    type_name = "LocalDate"

    def value_of(self, number: int) -> LocalDate:
        return _date(number)


class TableTimeSerializer(_IntegerSerializer):
    """TIME, as `LocalTime`."""

    shown_as = LocalTimeSerializer
    type_name = "LocalTime"

    def value_of(self, number: int) -> LocalTime:
        return _time(number, 0)


class TableTimestampSerializer(TableSerializer):
    """TIMESTAMP as `LocalDateTime`, and with ``is_instant`` TIMESTAMP_LTZ as `Instant`."""

    def __init__(self, precision: int, *, is_instant: bool = False) -> None:
        if not 0 <= precision <= 9:
            raise MalformedDataError(f"a timestamp with {precision} digits of a second")
        self.precision, self.is_instant = precision, is_instant

    @property
    def length(self) -> int:
        return 8 if self.precision <= _MAX_COMPACT_FRACTION else 12

    @property
    def type_name(self) -> str:
        return "Instant" if self.is_instant else "LocalDateTime"

    @property
    def shown_as(self) -> type[TypeSerializer[Any]]:  # type: ignore[override]
        return InstantSerializer if self.is_instant else LocalDateTimeSerializer

    def configuration(self) -> Hashable:
        return self.precision, self.is_instant

    def _moment(self, milliseconds: int, nanoseconds: int) -> Instant | LocalDateTime:
        if not 0 <= nanoseconds < 1_000_000:
            raise MalformedDataError(f"{nanoseconds} nanoseconds of a millisecond")
        if self.is_instant:
            seconds, rest = divmod(milliseconds, 1000)
            return Instant(seconds, rest * 1_000_000 + nanoseconds)
        days, rest = divmod(milliseconds, 86_400_000)
        return LocalDateTime.of(_date(days), _time(rest, nanoseconds))

    def read_place(self, region: _Region, position: int) -> Instant | LocalDateTime:
        if self.precision <= _MAX_COMPACT_FRACTION:
            return self._moment(_LONG.unpack_from(region.data, position)[0], 0)
        return self._moment(*region.timestamp(position))

    def read_value(self, source: DataInputView) -> Instant | LocalDateTime:
        return self._moment(source.read_long(), source.read_int() if self.precision > _MAX_COMPACT_FRACTION else 0)


def _date(days: int) -> LocalDate:
    # The Gregorian calendar repeats every 400 years; this also holds for years before 1 and after 9999.
    cycles, rest = divmod(days + _EPOCH_DAY - 1, 146_097)
    date = datetime.date.fromordinal(rest + 1)
    return LocalDate(date.year + 400 * cycles, date.month, date.day)


def _time(milliseconds: int, nanoseconds: int) -> LocalTime:
    seconds, rest = divmod(milliseconds, 1000)
    minutes, second = divmod(seconds, 60)
    return LocalTime(*divmod(minutes, 60), second, rest * 1_000_000 + nanoseconds)


class TableArraySerializer(_SizedSerializer):
    """ARRAY, as a list."""

    shown_as = ListSerializer

    def __init__(self, element: TypeSerializer[Any]) -> None:
        self.element_serializer = element
        self._size, self._read = _place_of(element)

    @property
    def type_name(self) -> str:
        return f"list[{self.element_serializer.type_name}]"

    def configuration(self) -> Hashable:
        return self.element_serializer

    def read_range(self, data: bytes, start: int, stop: int) -> list[Any]:
        if stop - start < 4:
            raise MalformedDataError(f"an array of {stop - start} bytes")
        (count,) = _INT.unpack_from(data, start)
        first = start + 4 + (count + 31) // 32 * 4
        if not 0 <= count <= stop - start or first + count * self._size > stop:
            raise MalformedDataError(f"an array of {count} elements in {stop - start} bytes")
        region, read, size = _Region(data, start, stop), self._read, self._size
        nulls = data[start + 4 : first]
        if not any(nulls):
            return [read(region, position) for position in range(first, first + count * size, size)]
        return [
            None if nulls[index // 8] >> index % 8 & 1 else read(region, first + index * size) for index in range(count)
        ]


class TableMapSerializer(_SizedSerializer):
    """MAP, and MULTISET as a map to counts, as a dict."""

    shown_as = MapSerializer

    def __init__(self, key: TypeSerializer[Any], value: TypeSerializer[Any]) -> None:
        self.key_serializer, self.value_serializer = key, value
        self._keys, self._values = TableArraySerializer(key), TableArraySerializer(value)

    @property
    def type_name(self) -> str:
        return f"dict[{self.key_serializer.type_name}, {self.value_serializer.type_name}]"

    def configuration(self) -> Hashable:
        return self.key_serializer, self.value_serializer

    def read_range(self, data: bytes, start: int, stop: int) -> dict[Any, Any]:
        middle = start + 4 + (_INT.unpack_from(data, start)[0] if stop - start >= 4 else -4)
        if not start + 4 <= middle <= stop:
            raise MalformedDataError(f"a map of {stop - start} bytes has keys up to byte {middle - start}")
        keys = [_hashable(key) for key in self._keys.read_range(data, start + 4, middle)]
        values = self._values.read_range(data, middle, stop)
        if len(keys) != len(values):
            raise MalformedDataError(f"a map has {len(keys)} keys and {len(values)} values")
        found = dict(zip(keys, values, strict=True))
        check_distinct(len(keys), len(found))
        return found


def _hashable(key: Any) -> Any:
    return tuple(map(_hashable, key)) if isinstance(key, list) else key


class TableRowSerializer(_SizedSerializer):
    """ROW, as `Row`."""

    shown_as = RowSerializer

    def __init__(self, fields: Sequence[TypeSerializer[Any]], names: Sequence[str] | None = None) -> None:
        self.field_serializers = tuple(fields)
        self.field_names = None if names is None or len(set(names)) < len(names) else tuple(names)
        # The bits of the nulls follow the byte of the kind.
        self._first = (len(fields) + 8 + 63) // 64 * 8
        self._readers = [_place_of(one)[1] for one in fields]

    @property
    def type_name(self) -> str:
        return f"Row[{', '.join(one.type_name for one in self.field_serializers)}]"

    def configuration(self) -> Hashable:
        return self.field_serializers, self.field_names

    def read_range(self, data: bytes, start: int, stop: int) -> Row:
        first = start + self._first
        if first + 8 * len(self._readers) > stop:
            raise EndOfDataError(f"a row of {stop - start} bytes is too short for {len(self._readers)} fields")
        if data[start] > max(RowKind):
            raise MalformedDataError(f"a row of the unknown kind {data[start]}")
        nulls = int.from_bytes(data[start:first], "little") >> 8
        region = _Region(data, start, stop)
        fields = [
            None if nulls >> index & 1 else read(region, first + 8 * index) for index, read in enumerate(self._readers)
        ]
        return Row(*fields, kind=RowKind(data[start]), names=self.field_names)

    def __repr__(self) -> str:
        return f"TableRowSerializer({list(self.field_serializers)!r})"


class SortedMapSerializer(ReadOnlySerializer):
    """The sorted map of a Top-N with updates, as a dict in its order."""

    shown_as = MapSerializer

    def __init__(self, key: TypeSerializer[Any], value: TypeSerializer[Any]) -> None:
        self.key_serializer, self.value_serializer = key, value

    @property
    def type_name(self) -> str:
        return f"dict[{self.key_serializer.type_name}, {self.value_serializer.type_name}]"

    def read_value(self, source: DataInputView) -> dict[Any, Any]:
        count = source.read_count(2)
        found: dict[Any, Any] = {}
        for _ in range(count):
            key = self.key_serializer.deserialize(source)
            found[key] = None if source.read_boolean() else self.value_serializer.deserialize(source)
        check_distinct(count, len(found))
        return found


class LinkedListSerializer(ReadOnlySerializer):
    """A list whose elements may be None."""

    shown_as = ListSerializer

    def __init__(self, element: TypeSerializer[Any], *, has_nulls: bool) -> None:
        self.element_serializer, self.has_nulls = element, has_nulls

    @property
    def type_name(self) -> str:
        return f"list[{self.element_serializer.type_name}]"

    def read_value(self, source: DataInputView) -> list[Any]:
        count = source.read_int()
        if not 0 <= count <= 8 * source.remaining:
            raise MalformedDataError(f"a list of {count} elements in {source.remaining} bytes")
        mask = source.read((count + 7) // 8) if self.has_nulls else bytes(count)
        read = self.element_serializer.deserialize
        return [None if mask[index // 8] & 0x80 >> index % 8 else read(source) for index in range(count)]

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        return LinkedListSerializerSnapshot(self)


@register_snapshot("org.apache.flink.table.runtime.typeutils.LinkedListSerializer$LinkedListSerializerSnapshot")
class LinkedListSerializerSnapshot(CompositeTypeSerializerSnapshot[Any, LinkedListSerializer]):
    current_outer_version = 3
    outer_serializer_class = LinkedListSerializer

    has_nulls: bool

    def nested_serializers(self, outer: LinkedListSerializer) -> Sequence[TypeSerializer[Any]]:
        return (outer.element_serializer,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> LinkedListSerializer:
        return LinkedListSerializer(nested[0], has_nulls=self.has_nulls)

    def take_outer_snapshot(self, serializer: LinkedListSerializer) -> None:
        self.has_nulls = serializer.has_nulls

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        out.write_boolean(self.has_nulls)

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        self.has_nulls = source.read_boolean() if read_outer_version >= 3 else read_outer_version == 2


class TableTimeWindowSerializer(TimeWindowSerializer):
    """The window of a `GROUP BY` with a window function, as `TimeWindow`."""

    def snapshot_configuration(self) -> TableTimeWindowSerializerSnapshot:  # type: ignore[override]
        return TableTimeWindowSerializerSnapshot()


@register_snapshot("org.apache.flink.table.runtime.operators.window.TimeWindow$Serializer$TimeWindowSerializerSnapshot")
class TableTimeWindowSerializerSnapshot(SimpleTypeSerializerSnapshot[TimeWindow]):
    serializer_class = TableTimeWindowSerializer
