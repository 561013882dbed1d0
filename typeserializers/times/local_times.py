"""Serializers of dates and times without a time zone, in the layout of Flink's.

    local date      := i32(year) u8(month) u8(day)                        null := 80000000 8000
    local time      := u8(hour) u8(minute) u8(second) i32(nano)           null := 80 8000 80000000
    local date-time := local date, local time                             null := both nulls

They return `LocalDate`, `LocalTime` and `LocalDateTime`, which hold everything that Java can write. On write they take
Python's ``date``, naive ``time`` and naive ``datetime`` too. To get those back, use
`typeserializers.times.python_times`.
"""

from __future__ import annotations

import datetime
from typing import Any

from snapshots.envelope import register_snapshot
from typeserializers.kernel.adoption import AdoptingTypeSerializerSnapshot
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer
from typeserializers.kernel.flink_names import BASE, nested_snapshot
from typeserializers.times.calendar_values import LocalDate, LocalDateTime, LocalTime

_INT_MIN = -(1 << 31)
_NULL_DATE = (_INT_MIN, 0x80, 0)
_NULL_TIME = (0x80, 0x80, 0, _INT_MIN)


class LocalDateSerializer(FixedFieldsSerializer["LocalDate | None"]):
    """A day, returned as `LocalDate`; a ``datetime.date`` is accepted."""

    format_characters = "iBB"
    value_class = LocalDate
    attribute_names = ("year", "month", "day")
    null_fields = _NULL_DATE

    def create_instance(self) -> LocalDate:
        return LocalDate(1970, 1, 1)

    def converted(self, value: Any) -> LocalDate:
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return LocalDate.from_date(value)
        raise TypeError("is not a LocalDate or a datetime.date")

    def snapshot_configuration(self) -> LocalDateSerializerSnapshot:
        return LocalDateSerializerSnapshot()


class LocalTimeSerializer(FixedFieldsSerializer["LocalTime | None"]):
    """A time of day, returned as `LocalTime`; a naive ``datetime.time`` is accepted."""

    format_characters = "BBBi"
    value_class = LocalTime
    attribute_names = ("hour", "minute", "second", "nano")
    null_fields = _NULL_TIME

    def create_instance(self) -> LocalTime:
        return LocalTime(0, 0)

    def converted(self, value: Any) -> LocalTime:
        if isinstance(value, datetime.time):
            return LocalTime.from_time(value)
        raise TypeError("is not a LocalTime or a datetime.time")

    def snapshot_configuration(self) -> LocalTimeSerializerSnapshot:
        return LocalTimeSerializerSnapshot()


class LocalDateTimeSerializer(FixedFieldsSerializer["LocalDateTime | None"]):
    """A day and a time of day, returned as `LocalDateTime`; a naive ``datetime.datetime`` is accepted."""

    format_characters = "iBBBBBi"
    value_class = LocalDateTime
    attribute_names = ("year", "month", "day", "hour", "minute", "second", "nano")
    null_fields = _NULL_DATE + _NULL_TIME

    def create_instance(self) -> LocalDateTime:
        return LocalDateTime(1970, 1, 1)

    def converted(self, value: Any) -> LocalDateTime:
        if isinstance(value, datetime.datetime):
            return LocalDateTime.from_datetime(value)
        raise TypeError("is not a LocalDateTime or a datetime.datetime")

    def snapshot_configuration(self) -> LocalDateTimeSerializerSnapshot:
        return LocalDateTimeSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "LocalDateSerializer"))
class LocalDateSerializerSnapshot(AdoptingTypeSerializerSnapshot["LocalDate | None"]):
    adopted_snapshots = ("statebackend.PythonDateSerializerSnapshot",)

    serializer_class = LocalDateSerializer


@register_snapshot(nested_snapshot(BASE, "LocalTimeSerializer"))
class LocalTimeSerializerSnapshot(AdoptingTypeSerializerSnapshot["LocalTime | None"]):
    adopted_snapshots = ("statebackend.PythonTimeSerializerSnapshot",)

    serializer_class = LocalTimeSerializer


@register_snapshot(nested_snapshot(BASE, "LocalDateTimeSerializer"))
class LocalDateTimeSerializerSnapshot(AdoptingTypeSerializerSnapshot["LocalDateTime | None"]):
    adopted_snapshots = ("statebackend.PythonDateTimeSerializerSnapshot",)

    serializer_class = LocalDateTimeSerializer
