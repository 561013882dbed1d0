"""Serializers that return Python's ``datetime`` types: the meaning of these type hints.

    date       := local date of Flink                                  (LocalDateSerializer)
    time       := local time of Flink                                  (LocalTimeSerializer)
    datetime   := local date-time of Flink, u8(zone kind + 128 * fold) zone
    zone       := 0 none | 1 UTC | 2 i64(offset, microseconds) | 3 i64(offset, microseconds) UTF(name) | 4 UTF(key)
    timedelta  := i32(days) i32(seconds) i32(microseconds)

Zone kinds 2 and 3 are a ``datetime.timezone`` without and with a name, 4 is a ``zoneinfo.ZoneInfo``. Other time zones
cannot be recreated from their attributes and are rejected.

The bytes of date and time equal those of Flink's serializers, but Flink has more values than Python. So changing
between the two needs a migration, which stops at a value that does not fit.
"""

from __future__ import annotations

import contextlib
import datetime
import struct
import zoneinfo
from collections.abc import Callable, Iterator
from typing import Any, Final

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, format_value, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot
from typeserializers.kernel.type_serializer import AdoptingTypeSerializerSnapshot
from typeserializers.times.calendar_values import (
    LocalDate,
    LocalDateTime,
    LocalTime,
    plain_datetime,
    plain_numpy_time,
    plain_timedelta,
    whole_microseconds,
)
from typeserializers.times.moments import Date, Instant, SqlTimestamp

NO_ZONE: Final = 0
UTC_ZONE: Final = 1
OFFSET_ZONE: Final = 2
NAMED_OFFSET_ZONE: Final = 3
KEYED_ZONE: Final = 4
_FOLD: Final = 0x80

_zones: Final[dict[bytes, zoneinfo.ZoneInfo]] = {}
"""The known zones by their encoded keys. Only zones of the time zone database get here."""

_zone_bytes: Final[dict[zoneinfo.ZoneInfo, bytes]] = {}
"""The encoded keys of those zones; a zone without one may be read back as another object."""

_DATETIME_BYTES: Final = 64
"""The size of a datetime as an object, without its zone."""

_LOCAL: Final = struct.Struct(">iBBBBBiB")
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_UTC: Final = datetime.timezone.utc


class PythonDateSerializer(FixedFieldsSerializer[datetime.date]):
    """A ``datetime.date``; a `LocalDate` of the years 1 to 9999 is accepted. A ``datetime`` is rejected."""

    format_characters = "iBB"
    value_class = datetime.date
    attribute_names = ("year", "month", "day")

    def create_instance(self) -> datetime.date:
        return datetime.date(1970, 1, 1)

    def converted(self, value: Any) -> datetime.date:
        if isinstance(value, LocalDate):
            return value.to_date()
        value = plain_numpy_time(value, "D")
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return value
        raise TypeError("is not a datetime.date")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return f"type({first}) is {function.bind('value_class', datetime.date)}"

    def snapshot_configuration(self) -> PythonDateSerializerSnapshot:
        return PythonDateSerializerSnapshot()


class PythonTimeSerializer(FixedFieldsSerializer[datetime.time]):
    """A ``datetime.time`` without a time zone; a `LocalTime` of whole microseconds is accepted."""

    format_characters = "BBBi"
    value_class = LocalTime
    attribute_names = ("hour", "minute", "second", "nano")

    def create_instance(self) -> datetime.time:
        return datetime.time()

    def converted(self, value: Any) -> LocalTime:
        if not isinstance(value, datetime.time):
            raise TypeError("is not a datetime.time")
        if value.fold:
            raise ValueError("has fold=1, which a time of day cannot store; use a datetime")
        return LocalTime.from_time(value)

    def fields_of(self, value: Any) -> tuple[Any, ...]:
        fields = super().fields_of(value)
        whole_microseconds(fields[3])
        return fields

    def value_of(self, *fields: Any) -> datetime.time:
        hour, minute, second, nano = fields
        return datetime.time(hour, minute, second, whole_microseconds(nano))

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        fields = [function.fresh("f") for _ in self.attribute_names]
        hour, minute, second, nano = fields
        time_class = function.bind("time_class", datetime.time)
        emitter.line(f"if {value}.__class__ is {time_class} and {value}.tzinfo is None and not {value}.fold:")
        emitter.line(f"    {hour} = {value}.hour; {minute} = {value}.minute; {second} = {value}.second")
        emitter.line(f"    {nano} = {value}.microsecond * 1000")
        emitter.line(f"else: {', '.join(fields)} = {function.bind('fields_of', self.fields_of)}({value})")
        for character, name in zip(self.format_characters, fields, strict=True):
            emitter.fixed(character, name)

    def emit_read(self, emitter: ReadEmitter) -> str:
        arguments = ", ".join([emitter.fixed(character) for character in self.format_characters])
        return f"{emitter.function.bind('value_of', self.value_of)}({arguments})"

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        time_class = function.bind("time_class", datetime.time)
        return f"type({first}) is {time_class} and {again}.tzinfo is None and not {again}.fold"

    def snapshot_configuration(self) -> PythonTimeSerializerSnapshot:
        return PythonTimeSerializerSnapshot()


class TimedeltaSerializer(FixedFieldsSerializer[datetime.timedelta]):
    """A ``datetime.timedelta``."""

    format_characters = "iii"
    value_class = datetime.timedelta
    attribute_names = ("days", "seconds", "microseconds")

    def create_instance(self) -> datetime.timedelta:
        return datetime.timedelta()

    def converted(self, value: Any) -> datetime.timedelta:
        value = plain_numpy_time(value)
        if isinstance(value, datetime.timedelta):
            return plain_timedelta(value)
        if isinstance(value, datetime.datetime):
            # NaT of pandas is a datetime. The call raises for it.
            plain_datetime(value)
        raise TypeError("is not a datetime.timedelta")

    def value_of(self, *fields: Any) -> datetime.timedelta:
        value = datetime.timedelta(*fields)
        if (value.days, value.seconds, value.microseconds) != fields:
            raise MalformedDataError(f"days, seconds and microseconds {fields} are not a valid timedelta")
        return value

    def emit_read(self, emitter: ReadEmitter) -> str:
        arguments = ", ".join([emitter.fixed(character) for character in self.format_characters])
        return f"{emitter.function.bind('value_of', self.value_of)}({arguments})"

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return f"type({first}) is {function.bind('value_class', datetime.timedelta)}"

    def snapshot_configuration(self) -> TimedeltaSerializerSnapshot:
        return TimedeltaSerializerSnapshot()


class PythonDateTimeSerializer(CompiledTypeSerializer[datetime.datetime]):
    """A ``datetime.datetime`` with or without a time zone (UTC, ``datetime.timezone`` or ``zoneinfo.ZoneInfo``).

    The moments and local date-times of Flink's serializers are accepted where they fit; a moment becomes UTC.

    With ``in_utc`` a datetime with a time zone is written in UTC, for keys: one moment is one key, whatever its zone.
    """

    in_utc = False
    is_immutable_type = True

    def __init__(self, *, in_utc: bool = False) -> None:
        if in_utc:
            self.in_utc = True

    @property
    def minimum_length(self) -> int:
        return _LOCAL.size

    def create_instance(self) -> datetime.datetime:
        return datetime.datetime(1970, 1, 1)

    def write_to(self, value: datetime.datetime, out: DataOutputView) -> None:
        out.write(self._encode(value))

    def read_from(self, source: DataInputView) -> datetime.datetime:
        value, source.position = decode_datetime(source.data, source.position)
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        encoded, zone = function.fresh("b"), function.fresh("z")
        datetime_class, utc = function.bind("datetime", datetime.datetime), function.bind("utc", _UTC)
        fields = ", ".join(f"{value}.{name}" for name in ("year", "month", "day", "hour", "minute", "second"))
        pack = f"{function.bind('pack', _LOCAL.pack)}({fields}, {value}.microsecond * 1000, "
        emitter.line(f"{zone} = {value}.tzinfo if {value}.__class__ is {datetime_class} and not {value}.fold else 0")
        emitter.line(f"if {zone} is {utc}: {encoded} = {pack}{UTC_ZONE})")
        emitter.line(f"elif {zone} is None: {encoded} = {pack}{NO_ZONE})")
        if not self.in_utc:
            zone_class, zones = function.bind("zone_class", zoneinfo.ZoneInfo), function.bind("zones", _zone_bytes)
            emitter.line(f"elif {zone}.__class__ is {zone_class} and {zone} in {zones}:")
            emitter.line(f"    {encoded} = {pack}{KEYED_ZONE}) + {zones}[{zone}]")
        emitter.line(f"else: {encoded} = {function.bind('encode_datetime', self._encode)}({value})")
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        result = function.fresh("v")
        fields = [emitter.fixed(character) for character in "iBBBBBiB"]
        *local, nano, kind = fields
        datetime_class, utc = function.bind("datetime", datetime.datetime), function.bind("utc", _UTC)
        emitter.line(f"if {kind} <= {UTC_ZONE} and not {nano} % 1000:")
        zone = f"{utc} if {kind} else None"
        emitter.line(f"    {result} = {datetime_class}({', '.join(local)}, {nano} // 1000, {zone})")
        decode = function.bind("decode_fields", _decode_fields)
        emitter.line(f"else: {result}, pos = {decode}({', '.join(fields)}, data, pos)")
        return result

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        zone = function.fresh("z")
        datetime_class, utc = function.bind("datetime", datetime.datetime), function.bind("utc", _UTC)
        is_datetime = f"type({first}) is {datetime_class}"
        if self.in_utc:
            # A moment of UTC has no second reading.
            return f"{is_datetime} and (({zone} := {again}.tzinfo) is None or {zone} is {utc} and not {again}.fold)"
        zone_class, zones = function.bind("zone_class", zoneinfo.ZoneInfo), function.bind("zones", _zone_bytes)
        is_known = f"{zone}.__class__ is {zone_class} and {zone} in {zones}"
        return f"{is_datetime} and (({zone} := {again}.tzinfo) is None or {zone} is {utc} or {is_known})"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return str(_DATETIME_BYTES)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            self._encode(value)
        except (TypeError, ValueError, OverflowError) as error:
            yield misfit(path, value, error)

    @property
    def _encode(self) -> Callable[[Any], bytes]:
        return _encode_in_utc if self.in_utc else encode_datetime

    def __repr__(self) -> str:
        return f"PythonDateTimeSerializer({'in_utc=True' if self.in_utc else ''})"

    def snapshot_configuration(self) -> PythonDateTimeSerializerSnapshot:
        return PythonDateTimeSerializerSnapshot()


def encode_datetime(value: Any) -> bytes:
    """Returns the bytes of a datetime; raises `TypeError` or `ValueError` with the reason."""
    if value.__class__ is not datetime.datetime:
        value = plain_numpy_time(value)
        if isinstance(value, (LocalDateTime, Instant, Date, SqlTimestamp)):
            value = value.to_datetime()
        elif isinstance(value, datetime.datetime):
            value = plain_datetime(value)
        else:
            raise TypeError("is not a datetime.datetime")
    kind, zone = _encode_zone(value.tzinfo)
    if value.fold:
        kind |= _FOLD
    nano = value.microsecond * 1000
    return _LOCAL.pack(value.year, value.month, value.day, value.hour, value.minute, value.second, nano, kind) + zone


def _encode_in_utc(value: Any) -> bytes:
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = plain_datetime(value).astimezone(_UTC).replace(fold=0)
    return encode_datetime(value)


def decode_datetime(data: bytes, position: int) -> tuple[datetime.datetime, int]:
    """Returns the datetime at ``position`` and the position after it."""
    fields: tuple[int, int, int, int, int, int, int, int] = _LOCAL.unpack_from(data, position)
    return _decode_fields(*fields, data, position + _LOCAL.size)


def _decode_fields(
    year: int,
    month: int,
    day: int,
    hour: int,
    minute: int,
    second: int,
    nano: int,
    kind: int,
    data: bytes,
    position: int,
) -> tuple[datetime.datetime, int]:
    """Returns the datetime of the fields and the zone at ``position``, and the position after it."""
    zone, position = _decode_zone(kind & ~_FOLD, data, position)
    fold = 1 if kind & _FOLD else 0
    microsecond = whole_microseconds(nano)
    return datetime.datetime(year, month, day, hour, minute, second, microsecond, zone, fold=fold), position


def _encode_zone(zone: datetime.tzinfo | None) -> tuple[int, bytes]:
    if zone is None:
        return NO_ZONE, b""
    if zone is _UTC:
        return UTC_ZONE, b""
    out = DataOutputView()
    if isinstance(zone, datetime.timezone):
        # The constructor arguments of the zone: its offset, and its name if it has one.
        offset, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        out.write_long(offset // _MICROSECOND)
        if not name:
            return OFFSET_ZONE, out.to_bytes()
        out.write_utf(name[0])
        return NAMED_OFFSET_ZONE, out.to_bytes()
    key = getattr(zone, "key", None)
    if isinstance(zone, zoneinfo.ZoneInfo) and key:
        out.write_utf(key)
        encoded = out.to_bytes()
        # A zone of a file may have a key that is not known here.
        with contextlib.suppress(zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            if _zones.setdefault(encoded, zoneinfo.ZoneInfo(key)) is zone:
                _zone_bytes[zone] = encoded
        return KEYED_ZONE, encoded
    raise ValueError(
        f"has the time zone {format_value(zone)}, which cannot be written; "
        f"use a zoneinfo.ZoneInfo with a key, or a datetime.timezone"
    )


def _decode_zone(kind: int, data: bytes, position: int) -> tuple[datetime.tzinfo | None, int]:
    if kind == NO_ZONE:
        return None, position
    if kind == UTC_ZONE:
        return _UTC, position
    if kind == KEYED_ZONE:
        end = position + 2 + int.from_bytes(data[position : position + 2], "big")
        known = _zones.get(data[position:end])
        if known is not None:
            return known, end
    source = DataInputView(data, position)
    if kind in (OFFSET_ZONE, NAMED_OFFSET_ZONE):
        offset = source.read_long() * _MICROSECOND
        name = (source.read_utf(),) if kind == NAMED_OFFSET_ZONE else ()
        return datetime.timezone(offset, *name), source.position
    if kind == KEYED_ZONE:
        key = source.read_utf()
        try:
            zone = _zones[data[position : source.position]] = zoneinfo.ZoneInfo(key)
            return zone, source.position
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise MalformedDataError(
                f"the time zone {format_value(key)} is not known here: install the package tzdata, or the "
                "bytes are damaged"
            ) from error
    raise MalformedDataError(f"a time zone of kind {kind} is not known, only 0 to 4: the bytes are damaged")


@register_snapshot("statebackend.PythonDateSerializerSnapshot")
class PythonDateSerializerSnapshot(AdoptingTypeSerializerSnapshot[datetime.date]):
    adopted_snapshots = (nested_snapshot(BASE, "LocalDateSerializer"),)

    serializer_class = PythonDateSerializer


@register_snapshot("statebackend.PythonTimeSerializerSnapshot")
class PythonTimeSerializerSnapshot(AdoptingTypeSerializerSnapshot[datetime.time]):
    adopted_snapshots = (nested_snapshot(BASE, "LocalTimeSerializer"),)

    serializer_class = PythonTimeSerializer


@register_snapshot("statebackend.PythonDateTimeSerializerSnapshot")
class PythonDateTimeSerializerSnapshot(AdoptingTypeSerializerSnapshot[datetime.datetime]):
    adopted_snapshots = tuple(
        nested_snapshot(BASE, name)
        for name in ("LocalDateTimeSerializer", "InstantSerializer", "DateSerializer", "SqlTimestampSerializer")
    )

    serializer_class = PythonDateTimeSerializer


@register_snapshot("statebackend.TimedeltaSerializerSnapshot")
class TimedeltaSerializerSnapshot(SimpleTypeSerializerSnapshot[datetime.timedelta]):
    serializer_class = TimedeltaSerializer
