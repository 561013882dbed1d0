"""Serializers of moments, in the layout of Flink's.

    instant               := i64(seconds) i32(nanoseconds)        null := i64 minimum, i32 minimum
    date, SQL date, time  := i64(milliseconds)                    null := i64 minimum
    SQL timestamp         := i64(milliseconds) i32(nanoseconds)   null := i64 minimum, i32 zero

Flink's SQL timestamp serializer writes twelve bytes for a null but reads only eight of them back, so that whatever
follows is read four bytes out of step. Its bytes are kept, because they are what Flink's state holds and what Flink
reads; here all twelve are read. (A stream that Flink itself re-read and rewrote wrongly cannot be told apart.)

Each returns its own value class of `typeserializers.times.moment_values`. On write they take what Python has for it
too: a ``datetime`` with a time zone for a moment, a ``date`` for an SQL date, a naive ``time`` for an SQL time.
"""

from __future__ import annotations

import datetime
from typing import Any

from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.adoption import AdoptingTypeSerializerSnapshot
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer
from typeserializers.kernel.flink_names import BASE, nested_snapshot
from typeserializers.times.moment_values import LONG_MIN, Date, Instant, SqlDate, SqlTime, SqlTimestamp


class InstantSerializer(FixedFieldsSerializer["Instant | None"]):
    """A moment with nanoseconds, returned as `Instant`; a datetime with a time zone is accepted."""

    format_characters = "qi"
    value_class = Instant
    attribute_names = ("epoch_second", "nano")
    null_fields = (LONG_MIN, -(1 << 31))

    def create_instance(self) -> Instant:
        return Instant(0)

    def converted(self, value: Any) -> Instant:
        if isinstance(value, datetime.datetime):
            return Instant.from_datetime(value)
        raise TypeError("is not an Instant or a datetime.datetime")

    def snapshot_configuration(self) -> InstantSerializerSnapshot:
        return InstantSerializerSnapshot()


class DateSerializer(FixedFieldsSerializer["Date | None"]):
    """A moment in milliseconds, returned as `Date`; a datetime with a time zone is accepted."""

    format_characters = "q"
    value_class = Date
    attribute_names = ("epoch_milli",)
    null_fields = (LONG_MIN,)

    def create_instance(self) -> Date:
        return Date(0)

    def converted(self, value: Any) -> Date:
        if isinstance(value, datetime.datetime):
            return Date.from_datetime(value)
        raise TypeError("is not a Date or a datetime.datetime")

    def snapshot_configuration(self) -> DateSerializerSnapshot:
        return DateSerializerSnapshot()


class SqlDateSerializer(FixedFieldsSerializer["SqlDate | None"]):
    """An SQL day, returned as `SqlDate`; a ``datetime.date`` is accepted."""

    format_characters = "q"
    value_class = SqlDate
    attribute_names = ("epoch_milli",)
    null_fields = (LONG_MIN,)

    def create_instance(self) -> SqlDate:
        return SqlDate(0)

    def converted(self, value: Any) -> SqlDate:
        if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
            return SqlDate.from_date(value)
        raise TypeError("is not an SqlDate or a datetime.date")

    def snapshot_configuration(self) -> SqlDateSerializerSnapshot:
        return SqlDateSerializerSnapshot()


class SqlTimeSerializer(FixedFieldsSerializer["SqlTime | None"]):
    """An SQL time of day, returned as `SqlTime`; a naive ``datetime.time`` of whole milliseconds is accepted."""

    format_characters = "q"
    value_class = SqlTime
    attribute_names = ("epoch_milli",)
    null_fields = (LONG_MIN,)

    def create_instance(self) -> SqlTime:
        return SqlTime(0)

    def converted(self, value: Any) -> SqlTime:
        if isinstance(value, datetime.time):
            return SqlTime.from_time(value)
        raise TypeError("is not an SqlTime or a datetime.time")

    def snapshot_configuration(self) -> SqlTimeSerializerSnapshot:
        return SqlTimeSerializerSnapshot()


class SqlTimestampSerializer(FixedFieldsSerializer["SqlTimestamp | None"]):
    """An SQL timestamp, returned as `SqlTimestamp`; a datetime with a time zone is accepted. A null is 12 bytes."""

    format_characters = "qi"
    value_class = SqlTimestamp
    attribute_names = ("epoch_milli", "nanos")
    null_fields = (LONG_MIN, 0)

    def create_instance(self) -> SqlTimestamp:
        return SqlTimestamp(0)

    def converted(self, value: Any) -> SqlTimestamp:
        if isinstance(value, datetime.datetime):
            return SqlTimestamp.from_datetime(value)
        raise TypeError("is not an SqlTimestamp or a datetime.datetime")

    def snapshot_configuration(self) -> SqlTimestampSerializerSnapshot:
        return SqlTimestampSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "InstantSerializer"))
class InstantSerializerSnapshot(AdoptingTypeSerializerSnapshot["Instant | None"]):
    adopted_snapshots = ("statebackend.PythonDateTimeSerializerSnapshot",)

    serializer_class = InstantSerializer


@register_snapshot(nested_snapshot(BASE, "DateSerializer"))
class DateSerializerSnapshot(SimpleTypeSerializerSnapshot["Date | None"]):
    serializer_class = DateSerializer


@register_snapshot(nested_snapshot(BASE, "SqlDateSerializer"))
class SqlDateSerializerSnapshot(SimpleTypeSerializerSnapshot["SqlDate | None"]):
    serializer_class = SqlDateSerializer


@register_snapshot(nested_snapshot(BASE, "SqlTimeSerializer"))
class SqlTimeSerializerSnapshot(SimpleTypeSerializerSnapshot["SqlTime | None"]):
    serializer_class = SqlTimeSerializer


@register_snapshot(nested_snapshot(BASE, "SqlTimestampSerializer"))
class SqlTimestampSerializerSnapshot(SimpleTypeSerializerSnapshot["SqlTimestamp | None"]):
    serializer_class = SqlTimestampSerializer
