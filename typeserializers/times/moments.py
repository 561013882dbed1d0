"""Moments counted from 1970-01-01T00:00Z, as in Java, and their serializers in Flink's layout.

    instant               := i64(seconds) i32(nanoseconds)        null := i64 minimum, i32 minimum
    date, SQL date, time  := i64(milliseconds)                    null := i64 minimum
    SQL timestamp         := i64(milliseconds) i32(nanoseconds)   null := i64 minimum, i32 zero

Flink's SQL timestamp serializer writes twelve bytes for a null but reads back only eight, so that it reads the
following data with an offset of four bytes. This serializer writes the same twelve bytes and reads all of them. Data
that Flink itself misread and rewrote cannot be detected.

Each serializer returns its value class. On write it also accepts Python's types: a ``datetime`` with a time zone for a
moment, a ``date`` for an SQL date, a naive ``time`` for an SQL time.

Java's SQL classes and ``java.util.Date`` are milliseconds since the epoch, and what they print depends on the time zone
of the machine. Here they always mean UTC. A Python datetime without a time zone is not a moment and is rejected.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

from attrs import frozen

from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot
from typeserializers.kernel.type_serializer import AdoptingTypeSerializerSnapshot
from typeserializers.times.calendar_values import plain_datetime, whole_microseconds

LONG_MIN: Final = -(1 << 63)
LONG_MAX: Final = (1 << 63) - 1
MIN_INSTANT_SECOND: Final = -31_557_014_167_219_200
MAX_INSTANT_SECOND: Final = 31_556_889_864_403_199
EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


def epoch_microseconds(value: datetime.datetime) -> int:
    """Returns the microseconds since the epoch; raises `ValueError` for a datetime without a time zone."""
    value = plain_datetime(value)
    if value.tzinfo is None or value.utcoffset() is None:
        raise ValueError("has no time zone, so it is not a moment; give it one, such as datetime.timezone.utc")
    return (value - EPOCH) // _MICROSECOND


def datetime_at(microseconds: int) -> datetime.datetime:
    """Returns the UTC datetime of microseconds since the epoch; raises `ValueError` outside the years 1 to 9999."""
    try:
        return EPOCH + microseconds * _MICROSECOND
    except OverflowError as error:
        raise ValueError(f"{microseconds} microseconds since 1970 are outside the years 1 to 9999") from error


def _whole_milliseconds(microseconds: int) -> int:
    milliseconds, rest = divmod(microseconds, 1000)
    if rest:
        raise ValueError("has microseconds, which do not fit milliseconds")
    return milliseconds


def _check_milliseconds(epoch_milli: int) -> None:
    # The minimum represents null in the bytes, so it cannot be a value.
    if not LONG_MIN < epoch_milli <= LONG_MAX:
        raise ValueError(f"{epoch_milli} milliseconds are not within -2**63 + 1 to 2**63 - 1")


@frozen(order=True)
class Instant:
    """A moment with nanoseconds: ``java.time.Instant``, the years -1,000,000,000 to 1,000,000,000.

    ``nano``, 0 to 999,999,999, always counts forward from ``epoch_second``.
    """

    epoch_second: int
    nano: int = 0

    def __attrs_post_init__(self) -> None:
        if not MIN_INSTANT_SECOND <= self.epoch_second <= MAX_INSTANT_SECOND:
            raise ValueError(f"{self.epoch_second} seconds are outside the range of an instant")
        if not 0 <= self.nano <= 999_999_999:
            raise ValueError(f"{self.nano} nanoseconds are not within 0 to 999,999,999")

    @classmethod
    def from_datetime(cls, value: datetime.datetime) -> Instant:
        """The moment of a datetime with a time zone."""
        seconds, microseconds = divmod(epoch_microseconds(value), 1_000_000)
        return cls(seconds, microseconds * 1000)

    def to_datetime(self) -> datetime.datetime:
        """The datetime in UTC; raises `ValueError` for other years or if nanoseconds would be lost."""
        return datetime_at(self.epoch_second * 1_000_000 + whole_microseconds(self.nano))


@frozen(order=True)
class Date:
    """``java.util.Date``: a moment in milliseconds."""

    epoch_milli: int

    def __attrs_post_init__(self) -> None:
        _check_milliseconds(self.epoch_milli)

    @classmethod
    def from_datetime(cls, value: datetime.datetime) -> Date:
        """The moment of a datetime with a time zone; raises `ValueError` if microseconds would be lost."""
        return cls(_whole_milliseconds(epoch_microseconds(value)))

    def to_datetime(self) -> datetime.datetime:
        """The datetime in UTC; raises `ValueError` outside the years 1 to 9999."""
        return datetime_at(self.epoch_milli * 1000)


@frozen(order=True)
class SqlDate:
    """``java.sql.Date``: a day, kept as the milliseconds of some moment of it."""

    epoch_milli: int

    def __attrs_post_init__(self) -> None:
        _check_milliseconds(self.epoch_milli)

    @classmethod
    def from_date(cls, date: datetime.date) -> SqlDate:
        """The day that begins at midnight UTC."""
        return cls((date.toordinal() - EPOCH.toordinal()) * 86_400_000)

    def to_date(self) -> datetime.date:
        """The day in UTC; raises `ValueError` outside the years 1 to 9999."""
        return datetime_at(self.epoch_milli * 1000).date()


@frozen(order=True)
class SqlTime:
    """``java.sql.Time``: a time of day, kept as milliseconds since the epoch."""

    epoch_milli: int

    def __attrs_post_init__(self) -> None:
        _check_milliseconds(self.epoch_milli)

    @classmethod
    def from_time(cls, time: datetime.time) -> SqlTime:
        """The time on 1970-01-01; raises `ValueError` for a time zone or if microseconds would be lost."""
        if time.tzinfo is not None:
            raise ValueError("has a time zone, and an SQL time has none")
        seconds = time.hour * 3600 + time.minute * 60 + time.second
        return cls(_whole_milliseconds(seconds * 1_000_000 + time.microsecond))

    def to_time(self) -> datetime.time:
        """The time of day in UTC, whatever the day."""
        return datetime_at(self.epoch_milli % 86_400_000 * 1000).time()


@frozen(order=True)
class SqlTimestamp:
    """``java.sql.Timestamp``: a moment in milliseconds, with the whole fraction of its second in ``nanos``."""

    epoch_milli: int
    nanos: int = 0

    def __attrs_post_init__(self) -> None:
        _check_milliseconds(self.epoch_milli)
        if not 0 <= self.nanos <= 999_999_999 or self.epoch_milli % 1000 != self.nanos // 1_000_000:
            raise ValueError(
                f"nanos is {self.nanos}, which does not match epoch_milli {self.epoch_milli}: nanos must contain the "
                f"whole fraction of the second, including milliseconds"
            )

    @classmethod
    def from_datetime(cls, value: datetime.datetime) -> SqlTimestamp:
        """The moment of a datetime with a time zone."""
        microseconds = epoch_microseconds(value)
        return cls(microseconds // 1000, microseconds % 1_000_000 * 1000)

    def to_datetime(self) -> datetime.datetime:
        """The datetime in UTC; raises `ValueError` for other years or if nanoseconds would be lost."""
        return datetime_at(self.epoch_milli // 1000 * 1_000_000 + whole_microseconds(self.nanos))


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
