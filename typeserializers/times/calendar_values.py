"""Dates and times without a time zone, in the ranges of ``java.time``, and their serializers in Flink's layout.

    local date      := i32(year) u8(month) u8(day)                        null := 80000000 8000
    local time      := u8(hour) u8(minute) u8(second) i32(nano)           null := 80 8000 80000000
    local date-time := local date, local time                             null := both nulls

The serializers return `LocalDate`, `LocalTime` and `LocalDateTime`, which hold every value that Java can write. They
also accept Python's ``date``, naive ``time`` and naive ``datetime``; `typeserializers.times.python_times` has the
serializers that return those.

Python's ``datetime`` is limited to microseconds and the years 1 to 9999. The value classes convert to and from it and
reject values that would lose something.
"""

from __future__ import annotations

import datetime
from typing import Any, Final

from attrs import frozen

from snapshots.envelope import register_snapshot
from typeserializers.kernel.fixed_fields import FixedFieldsSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot
from typeserializers.kernel.type_serializer import AdoptingTypeSerializerSnapshot

MAX_YEAR: Final = 999_999_999
_DAYS: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def check_date(year: int, month: int, day: int) -> None:
    """Raises `ValueError` unless the numbers are a day of the proleptic Gregorian calendar in Java's years."""
    if not -MAX_YEAR <= year <= MAX_YEAR:
        raise ValueError(f"year {year} is not within -{MAX_YEAR} to {MAX_YEAR}")
    if not 1 <= month <= 12:
        raise ValueError(f"month {month} is not within 1 to 12")
    if not 1 <= day <= _DAYS[month] or (month == 2 and day == 29 and not is_leap_year(year)):
        raise ValueError(f"day {day} does not exist in month {month} of year {year}")


def check_time(hour: int, minute: int, second: int, nano: int) -> None:
    """Raises `ValueError` unless the numbers are a time of day."""
    if not (0 <= hour <= 23 and 0 <= minute <= 59 and 0 <= second <= 59 and 0 <= nano <= 999_999_999):
        raise ValueError(f"{hour}:{minute}:{second} and {nano} nanoseconds are not a time of day")


def is_leap_year(year: int) -> bool:
    """Whether February has 29 days, by the Gregorian rule also before 1582."""
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def whole_microseconds(nano: int) -> int:
    """Returns the microseconds of a fraction of a second; raises `ValueError` if nanoseconds would be lost."""
    microseconds, rest = divmod(nano, 1000)
    if rest:
        raise ValueError(f"{nano} nanoseconds are not whole microseconds")
    return microseconds


def plain_numpy_time(value: Any, unit: str = "us") -> Any:
    """Convert a datetime64 or timedelta64 of numpy to the value of Python; return any other value unchanged.

    Raises `ValueError` for ``NaT``, and if the value is not a whole number of the unit.
    """
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind not in ("M", "m"):
        return value
    plain = value.astype(f"{kind}8[{unit}]")
    if value != value:
        raise ValueError("is not a time; use None in an optional field instead of NaT")
    if plain != value:
        raise ValueError(f"would be rounded; round it to the unit {unit!r}")
    return plain.item()


def plain_datetime(value: datetime.datetime) -> datetime.datetime:
    """Converts a datetime of a subclass, such as ``pandas.Timestamp``, to ``datetime.datetime``.

    Raises `ValueError` for ``NaT``, and if nanoseconds or a year would be lost.
    """
    if value.__class__ is datetime.datetime:
        return value
    if value.year != value.year:
        raise ValueError("is not a time; use None in an optional field instead of NaT")
    _check_no_nanoseconds(getattr(value, "nanosecond", 0))
    return datetime.datetime(
        value.year,
        value.month,
        value.day,
        value.hour,
        value.minute,
        value.second,
        value.microsecond,
        value.tzinfo,
        fold=value.fold,
    )


def plain_timedelta(value: datetime.timedelta) -> datetime.timedelta:
    """Converts a timedelta of a subclass, such as ``pandas.Timedelta``, to ``datetime.timedelta``.

    Raises `ValueError` if nanoseconds would be lost.
    """
    if value.__class__ is datetime.timedelta:
        return value
    _check_no_nanoseconds(getattr(value, "nanoseconds", 0))
    return datetime.timedelta(value.days, value.seconds, value.microseconds)


def _check_no_nanoseconds(nanoseconds: int) -> None:
    if nanoseconds:
        raise ValueError(f"has {nanoseconds} nanoseconds, which would be lost; round it to microseconds")


@frozen(order=True)
class LocalDate:
    """A day: year -999,999,999 to 999,999,999, month and day from 1. Year 0 is 1 BC."""

    year: int
    month: int
    day: int

    def __attrs_post_init__(self) -> None:
        check_date(self.year, self.month, self.day)

    @classmethod
    def from_date(cls, date: datetime.date) -> LocalDate:
        """The day of a Python date."""
        return cls(date.year, date.month, date.day)

    def to_date(self) -> datetime.date:
        """The Python date; raises `ValueError` for years outside 1 to 9999."""
        return datetime.date(self.year, self.month, self.day)


@frozen(order=True)
class LocalTime:
    """A time of day with nanoseconds."""

    hour: int
    minute: int
    second: int = 0
    nano: int = 0

    def __attrs_post_init__(self) -> None:
        check_time(self.hour, self.minute, self.second, self.nano)

    @classmethod
    def from_time(cls, time: datetime.time) -> LocalTime:
        """The time of day of a Python time, which must not have a time zone (`ValueError`)."""
        if time.tzinfo is not None:
            raise ValueError("has a time zone, and a local time has none")
        return cls(time.hour, time.minute, time.second, time.microsecond * 1000)

    def to_time(self) -> datetime.time:
        """The Python time; raises `ValueError` if nanoseconds would be lost."""
        return datetime.time(self.hour, self.minute, self.second, whole_microseconds(self.nano))


@frozen(order=True)
class LocalDateTime:
    """A day and a time of day, together but without a time zone."""

    year: int
    month: int
    day: int
    hour: int = 0
    minute: int = 0
    second: int = 0
    nano: int = 0

    def __attrs_post_init__(self) -> None:
        check_date(self.year, self.month, self.day)
        check_time(self.hour, self.minute, self.second, self.nano)

    @classmethod
    def of(cls, date: LocalDate, time: LocalTime) -> LocalDateTime:
        """Combines a day and a time of day."""
        return cls(date.year, date.month, date.day, time.hour, time.minute, time.second, time.nano)

    @property
    def date(self) -> LocalDate:
        """The day alone."""
        return LocalDate(self.year, self.month, self.day)

    @property
    def time(self) -> LocalTime:
        """The time of day alone."""
        return LocalTime(self.hour, self.minute, self.second, self.nano)

    @classmethod
    def from_datetime(cls, value: datetime.datetime) -> LocalDateTime:
        """The local date-time of a Python datetime, which must not have a time zone (`ValueError`)."""
        value = plain_datetime(value)
        if value.tzinfo is not None:
            raise ValueError("has a time zone, and a local date-time has none")
        return cls(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond * 1000)

    def to_datetime(self) -> datetime.datetime:
        """The naive Python datetime; raises `ValueError` for other years or if nanoseconds would be lost."""
        return datetime.datetime(
            self.year, self.month, self.day, self.hour, self.minute, self.second, whole_microseconds(self.nano)
        )


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
