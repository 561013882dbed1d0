"""Dates, times, decimals, arrays and sets: accepted values, results, and losses."""

from __future__ import annotations

import array
import calendar
import datetime
import decimal
import math
import os
import subprocess
import sys
import zoneinfo
from typing import Any

import pytest

import typeserializers as ts
from snapshots import (
    DataInputView,
    DataOutputView,
    MalformedDataError,
    SerializationError,
    StateFormatError,
    resolve_compatibility,
)
from typeserializers.scalars.big_numbers import MAX_DIGITS
from typeserializers.times.calendar_values import check_date, is_leap_year

pytestmark = pytest.mark.slow

UTC = datetime.timezone.utc
MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)


def test_python_values_are_accepted_if_exact_and_read_back_as_the_documented_class() -> None:
    cases = [
        (ts.LocalDateSerializer(), datetime.date(2024, 2, 29), ts.LocalDate(2024, 2, 29)),
        (ts.LocalTimeSerializer(), datetime.time(1, 2, 3, 4), ts.LocalTime(1, 2, 3, 4000)),
        (ts.LocalDateTimeSerializer(), datetime.datetime(2024, 2, 29, 1), ts.LocalDateTime(2024, 2, 29, 1)),
        (ts.InstantSerializer(), MOMENT, ts.Instant(1709251199, 123456000)),
        (ts.DateSerializer(), MOMENT.replace(microsecond=123000), ts.Date(1709251199123)),
        (ts.SqlDateSerializer(), datetime.date(1969, 12, 31), ts.SqlDate(-86_400_000)),
        (ts.SqlTimeSerializer(), datetime.time(1, 2, 3, 4000), ts.SqlTime(3723004)),
        (ts.SqlTimestampSerializer(), MOMENT, ts.SqlTimestamp(1709251199123, 123456000)),
        (ts.BigDecSerializer(), 12, decimal.Decimal(12)),
    ]
    for serializer, given, returned in cases:
        read = serializer.from_bytes(serializer.to_bytes(given))
        assert (type(read), read) == (type(returned), returned)


def test_java_values_convert_to_python_if_exact() -> None:
    assert ts.LocalDate(2024, 2, 29).to_date() == datetime.date(2024, 2, 29)
    assert ts.LocalTime(1, 2, 3, 4000).to_time() == datetime.time(1, 2, 3, 4)
    assert ts.LocalDateTime(2024, 2, 29, 1).to_datetime() == datetime.datetime(2024, 2, 29, 1)
    assert ts.LocalDateTime(2024, 2, 29, 1).date == ts.LocalDate(2024, 2, 29)
    assert ts.LocalDateTime(2024, 2, 29, 1).time == ts.LocalTime(1, 0)
    assert ts.Instant.from_datetime(MOMENT).to_datetime() == MOMENT
    assert ts.SqlTimestamp.from_datetime(MOMENT).to_datetime() == MOMENT
    assert ts.Date(-1).to_datetime() == datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)
    assert ts.SqlDate(-1).to_date() == datetime.date(1969, 12, 31)
    assert ts.SqlTime(-1).to_time() == datetime.time(23, 59, 59, 999000)
    for lossy in (ts.LocalTime(0, 0, 0, 1).to_time, ts.Instant(0, 1).to_datetime, ts.SqlTimestamp(0, 1).to_datetime):
        with pytest.raises(ValueError, match="nanoseconds"):
            lossy()
    ancient = ts.Instant(-(10**14))
    for outside in (ts.LocalDate(10_000, 1, 1).to_date, ts.Date(1 << 60).to_datetime, ancient.to_datetime):
        with pytest.raises(ValueError, match=r"year|1970"):
            outside()


@pytest.mark.parametrize(
    ("serializer", "value", "reason"),
    [
        (ts.InstantSerializer(), datetime.datetime(2024, 1, 1), "no time zone"),
        (ts.DateSerializer(), MOMENT, "microseconds"),
        (ts.LocalDateSerializer(), datetime.datetime(2024, 1, 1), "not a LocalDate"),
        (ts.LocalTimeSerializer(), datetime.time(1, tzinfo=UTC), "time zone"),
        (ts.LocalDateTimeSerializer(), MOMENT, "time zone"),
        (ts.PythonDateSerializer(), datetime.datetime(2024, 1, 1), "not a datetime.date"),
        (ts.PythonDateSerializer(), ts.LocalDate(0, 1, 1), "year"),
        (ts.PythonTimeSerializer(), ts.LocalTime(1, 2, 3, 4), "nanoseconds"),
        (ts.PythonDateTimeSerializer(), ts.Instant(0, 1), "nanoseconds"),
        (ts.SqlTimeSerializer(), datetime.time(1, 2, 3, 4), "microseconds"),
        (ts.BigDecSerializer(), decimal.Decimal("NaN"), "not finite"),
        (ts.BigDecSerializer(), decimal.Decimal("-0.0"), "negative zero"),
        (ts.BigDecSerializer(), decimal.Decimal("1E+2147483649"), "32 bits"),
        (ts.BigDecSerializer(), 0.5, "not a Decimal"),
        (ts.BigIntSerializer(), 1.0, "not an integer"),
        (ts.CharSerializer(), "\U0001f600", "two UTF-16 code units"),
    ],
)
def test_invalid_values_are_rejected_with_the_reason(serializer, value, reason) -> None:
    with pytest.raises(SerializationError, match=reason):
        serializer.to_bytes(value)
    with pytest.raises(SerializationError, match=r"\[1\]:.*" + reason):
        ts.ListSerializer(serializer).to_bytes([serializer.create_instance(), value])


def test_a_number_too_long_to_print_is_rejected_like_any_other() -> None:
    with pytest.raises(SerializationError, match="cannot be shown"):
        ts.LongSerializer().to_bytes(10**5000)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ts.LocalDate(2023, 2, 29),
        lambda: ts.LocalDate(1900, 2, 29),
        lambda: ts.LocalDate(10**9, 1, 1),
        lambda: ts.LocalDate(1, 13, 1),
        lambda: ts.LocalTime(24, 0),
        lambda: ts.Instant(0, 10**9),
        lambda: ts.Instant(10**17),
        lambda: ts.Date(-(1 << 63)),
        lambda: ts.SqlTimestamp(0, 1_000_000),
    ],
)
def test_impossible_values_are_rejected_by_the_constructor(make) -> None:
    with pytest.raises(ValueError, match=r"\d"):
        make()


def test_impossible_dates_in_bytes_are_rejected() -> None:
    for data in ("000007e7021d", "80000000" + "0101", "000007e70d01"):
        with pytest.raises(StateFormatError):
            ts.LocalDateSerializer().from_bytes(bytes.fromhex(data))
    with pytest.raises(StateFormatError):
        ts.PythonDateSerializer().from_bytes(bytes.fromhex("000027100101"))


class Nameless(datetime.tzinfo):
    def utcoffset(self, value: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=1)

    def dst(self, value: datetime.datetime | None) -> None:
        return None

    def tzname(self, value: datetime.datetime | None) -> None:
        return None


def test_datetimes_keep_their_zone_and_fold_and_reject_unrestorable_zones() -> None:
    serializer = ts.PythonDateTimeSerializer()
    for zone in (
        None,
        UTC,
        datetime.timezone(datetime.timedelta(hours=-3, microseconds=5)),
        datetime.timezone(datetime.timedelta(hours=2), "CEST"),
        zoneinfo.ZoneInfo("Europe/Berlin"),
    ):
        value = datetime.datetime(2024, 10, 27, 2, 30, 0, 7, zone, fold=1)
        read = serializer.from_bytes(serializer.to_bytes(value))
        assert read.replace(tzinfo=None) == value.replace(tzinfo=None)
        assert (read.fold, read.tzinfo, read.tzname()) == (1, zone, value.tzname())
    with pytest.raises(SerializationError, match="cannot be written"):
        serializer.to_bytes(MOMENT.replace(tzinfo=Nameless()))
    data = serializer.to_bytes(datetime.datetime(2024, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")))
    for key in (b"../../../etc/x", b"Europe/BerlinX", b"Europe\x00Berlin"):
        damaged = data[:14] + len(key).to_bytes(2, "big") + key
        with pytest.raises(MalformedDataError):
            serializer.from_bytes(damaged)


def test_python_and_flink_serializers_adopt_each_other_by_migration() -> None:
    pairs = [
        (ts.LocalDateSerializer(), ts.PythonDateSerializer()),
        (ts.LocalTimeSerializer(), ts.PythonTimeSerializer()),
        (ts.LocalDateTimeSerializer(), ts.PythonDateTimeSerializer()),
        (ts.InstantSerializer(), ts.PythonDateTimeSerializer()),
    ]
    for flink, python in pairs:
        assert resolve_compatibility(flink.snapshot_configuration(), python).is_after_migration
        assert resolve_compatibility(python.snapshot_configuration(), flink).is_after_migration
        value = flink.create_instance()
        assert flink.from_bytes(flink.to_bytes(python.from_bytes(python.to_bytes(value)))) == value
    assert resolve_compatibility(
        ts.LocalDateSerializer().snapshot_configuration(), ts.PythonTimeSerializer()
    ).is_incompatible


def test_decimals_keep_scale_and_size_and_are_bounded_both_ways() -> None:
    serializer = ts.BigDecSerializer()
    for text in ("1.50", "0E+5", "1E-2147483647", "7E+2147483648", "-0.001", "1" * 5000 + ".5"):
        value = decimal.Decimal(text)
        assert serializer.from_bytes(serializer.to_bytes(value)).as_tuple() == value.as_tuple()
    longest = decimal.Decimal("9" * 32_768)
    assert serializer.from_bytes(serializer.to_bytes(longest)) == longest
    with pytest.raises(SerializationError, match="more than 32768 digits"):
        serializer.to_bytes(decimal.Decimal("1" + "0" * 32_768))
    with pytest.raises(SerializationError, match="more than 32768 digits"):
        serializer.to_bytes(1 << 1_000_000)
    huge = ts.BigIntSerializer().to_bytes(1 << 4_000_000) + bytes(4)
    with pytest.raises(MalformedDataError, match="more than 32768 digits"):
        serializer.from_bytes(huge)


def test_integers_have_the_bytes_of_java_at_every_limit() -> None:
    serializer = ts.BigIntSerializer()
    written = {
        None: "00000000",
        0: "00000001",
        1: "00000002",
        10: "00000003",
        -1: "00000005ff",
        2: "0000000502",
        127: "000000057f",
        128: "000000060080",
        -128: "0000000580",
        -129: "00000006ff7f",
        2**15 - 1: "000000067fff",
        2**15: "00000007008000",
        -(2**15): "000000068000",
    }
    for value, data in written.items():
        assert serializer.to_bytes(value).hex() == data
        assert serializer.from_bytes(bytes.fromhex(data)) == value


@pytest.mark.parametrize("serializer", [ts.BigIntSerializer(), ts.BigDecSerializer()])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("00000004", "invalid length 4"),
        ("ffffffff", "invalid length -1"),
        ("80000000", "invalid length -2147483648"),
        ("000000", "cut off"),
        ("00000005", "cut off"),
        ("0000000601", "cut off"),
        ("7fffffff01", "cut off"),
    ],
)
def test_integers_of_an_invalid_length_are_rejected(serializer: ts.TypeSerializer[Any], data: str, reason: str) -> None:
    # More bytes after an invalid length do not make it valid.
    for follows in ("", "0102030405060708") if "length" in reason else ("",):
        with pytest.raises(StateFormatError, match=reason):
            serializer.from_bytes(bytes.fromhex(data + follows))
        with pytest.raises(StateFormatError, match=reason):
            serializer.deserialize(DataInputView(bytes.fromhex(data + follows)))


def test_decimals_are_bounded_at_their_last_digit_and_exponent() -> None:
    serializer = ts.BigDecSerializer()
    longest = decimal.Decimal("9" * 32_768)
    data = serializer.to_bytes(longest)
    one_more = ts.BigIntSerializer().to_bytes(10**32_768) + bytes(4)
    assert len(one_more) == len(data)
    with pytest.raises(MalformedDataError, match="more than 32768 digits"):
        serializer.from_bytes(one_more)
    with pytest.raises(SerializationError, match="more than 32768 digits"):
        serializer.to_bytes(10**32_768)
    assert serializer.from_bytes(serializer.to_bytes(10**32_768 - 1)) == longest
    for exponent in (2**31, -(2**31) + 1):
        value = decimal.Decimal((0, (1,), exponent))
        assert serializer.from_bytes(serializer.to_bytes(value)).as_tuple() == value.as_tuple()
    for exponent in (2**31 + 1, -(2**31)):
        with pytest.raises(SerializationError, match="32 bits"):
            serializer.to_bytes(decimal.Decimal((0, (1,), exponent)))
    for misfit in (True, False, decimal.Decimal("sNaN"), decimal.Decimal("Infinity"), "1"):
        with pytest.raises(SerializationError):
            serializer.to_bytes(misfit)
    for data in ("00000002", "00000002000000", "0000000502", "0000000502000000"):
        with pytest.raises(StateFormatError, match=r"scale of a decimal.*cut off"):
            serializer.from_bytes(bytes.fromhex(data))
    assert serializer.from_bytes(bytes(4)) is None


@pytest.mark.parametrize("text", ["", "ab", "\ud83d\ude00", "\U00010000", 5, None, b"a"])
def test_a_character_is_one_code_unit(text: object) -> None:
    serializer = ts.CharSerializer()
    for fitting in ("\0", "a", "\uffff", "\ud83d"):
        assert serializer.from_bytes(serializer.to_bytes(fitting)) == fitting
    with pytest.raises(SerializationError):
        serializer.to_bytes(text)
    with pytest.raises(SerializationError):
        serializer.serialize(text, DataOutputView())


def test_times_of_day_with_zones_are_rejected_where_unsupported() -> None:
    serializer = ts.PythonTimeSerializer()
    for misfit in (datetime.time(1, fold=1), datetime.time(1, tzinfo=UTC), ts.LocalTime(1, 2, 3, 999), 5, "01:00"):
        with pytest.raises(SerializationError):
            serializer.to_bytes(misfit)
        with pytest.raises(SerializationError):
            serializer.serialize(misfit, DataOutputView())
    assert serializer.from_bytes(serializer.to_bytes(ts.LocalTime(1, 2, 3, 4000))) == datetime.time(1, 2, 3, 4)
    for nano in (1, 999, 1001):
        data = bytes((1, 2, 3)) + nano.to_bytes(4, "big")
        for read in (serializer.from_bytes, lambda data: serializer.deserialize(DataInputView(data))):
            with pytest.raises(StateFormatError, match="nanoseconds"):
                read(data)
    spans = ts.TimedeltaSerializer()
    for fields in ((0, 86_400, 0), (0, -1, 0), (0, 0, 1_000_000), (0, 0, -1)):
        data = b"".join(field.to_bytes(4, "big", signed=True) for field in fields)
        with pytest.raises(StateFormatError, match="not a valid timedelta"):
            spans.from_bytes(data)
    last = datetime.timedelta(999_999_999, 86_399, 999_999)
    assert spans.from_bytes(spans.to_bytes(last)) == last


def test_the_kind_of_a_zone_is_known_or_rejected() -> None:
    serializer = ts.PythonDateTimeSerializer()
    local = serializer.to_bytes(datetime.datetime(2024, 1, 1))
    assert local[-1] == 0
    for kind in (5, 6, 0x7F, 0x85, 0xFF):
        with pytest.raises(StateFormatError, match="time zone of kind"):
            serializer.from_bytes(local[:-1] + bytes((kind,)) + bytes(20))
    folded = serializer.from_bytes(local[:-1] + b"\x80")
    assert (folded.fold, folded.tzinfo) == (1, None)
    unfolded = serializer.from_bytes(local[:-1] + b"\x01")
    assert (unfolded.fold, unfolded.tzinfo) == (0, UTC)


def test_arrays_accept_lists_and_buffers_of_valid_values() -> None:
    longs = ts.LongPrimitiveArraySerializer()
    expected = array.array("q", [1, -2, 3])
    for given in ([1, -2, 3], (1, -2, 3), array.array("h", [1, -2, 3]), memoryview(expected), expected):
        read = longs.from_bytes(longs.to_bytes(given))
        assert (read, read.typecode) == (expected, "q")
    for misfit in ([1.0], [1 << 63], ["x"], array.array("d", [1.0]), b"abc", "abc", {1: 2}, 5):
        with pytest.raises(SerializationError):
            longs.to_bytes(misfit)
    floats = ts.FloatPrimitiveArraySerializer()
    with pytest.raises(SerializationError):
        floats.to_bytes([1e300])
    payload = array.array("f")
    payload.frombytes(bytes.fromhex("7fc12345") if sys.byteorder == "big" else bytes.fromhex("4523c17f"))
    assert floats.to_bytes(payload).hex() == "000000017fc00000"
    assert floats.to_bytes([math.inf, -math.inf]).hex() == "000000027f800000ff800000"


def test_numpy_arrays_are_written_and_read() -> None:
    numpy = pytest.importorskip("numpy")
    for serializer, dtype in (
        (ts.ShortPrimitiveArraySerializer(), "int16"),
        (ts.IntPrimitiveArraySerializer(), "int32"),
        (ts.LongPrimitiveArraySerializer(), "int64"),
        (ts.LongPrimitiveArraySerializer(), ">i8"),
        (ts.LongPrimitiveArraySerializer(), "int8"),
        (ts.FloatPrimitiveArraySerializer(), "float32"),
        (ts.DoublePrimitiveArraySerializer(), "float64"),
        (ts.DoublePrimitiveArraySerializer(), "float16"),
        (ts.BooleanPrimitiveArraySerializer(), "bool"),
    ):
        given = numpy.array([0, 1, 1, 0], dtype=dtype)[::2]
        read = serializer.from_bytes(serializer.to_bytes(given))
        assert list(read) == given.tolist()
    with pytest.raises(SerializationError):
        ts.LongPrimitiveArraySerializer().to_bytes(numpy.zeros((2, 2), dtype="int64"))


def test_a_set_keeps_its_read_order_and_new_elements_follow_sorted() -> None:
    serializer = ts.SetSerializer(ts.LongSerializer())
    written = bytes.fromhex("00000003") + b"".join(bytes(8) + bytes((element,)) for element in (9, 3, 7))
    value = serializer.from_bytes(written)
    assert isinstance(value, set)
    assert serializer.to_bytes(value) == written
    assert serializer.to_bytes(serializer.copy(value)) == written
    value.discard(3)
    value |= {5, 1}
    assert [serializer.to_bytes(value)[index] for index in range(12, 48, 9)] == [9, 7, 1, 5]
    assert serializer.to_bytes({9, 3, 7})[12::9] == bytes((3, 7, 9))
    assert serializer.to_bytes(value | {5})[12::9] == bytes((1, 5, 7, 9))


def test_a_set_of_strings_has_the_same_bytes_in_every_process() -> None:
    program = (
        "import typeserializers as ts;"
        "print(ts.SetSerializer(ts.StringSerializer()).to_bytes({'a', 'b', 'c', 'd', 'e'}).hex())"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


def test_elements_that_are_equal_in_python_are_not_dropped() -> None:
    for serializer, first, second in (
        (ts.SetSerializer(ts.DoubleSerializer()), 0.0, -0.0),
        (ts.SetSerializer(ts.BigDecSerializer()), decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    ):
        one, other = (serializer.to_bytes({element})[4:] for element in (first, second))
        with pytest.raises(MalformedDataError, match="would be lost"):
            serializer.from_bytes((2).to_bytes(4, "big") + one + other)
    map_serializer = ts.MapSerializer(ts.DoubleSerializer(), ts.LongSerializer())
    entries = [map_serializer.to_bytes({key: 1})[4:] for key in (0.0, -0.0)]
    with pytest.raises(MalformedDataError, match="would be lost"):
        map_serializer.from_bytes((2).to_bytes(4, "big") + b"".join(entries))


def test_types_nested_deeper_than_python_loops_work() -> None:
    serializer: ts.TypeSerializer = ts.LongSerializer()
    value: object = 7
    for _ in range(60):
        serializer, value = ts.GenericArraySerializer(serializer, "x"), [value, None]
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
    keyed: ts.TypeSerializer = ts.LongSerializer()
    key: object = 7
    for _ in range(18):
        keyed, key = ts.TupleSerializer([ts.FrozenSetSerializer(keyed)]), (frozenset([key]),)
    in_map = ts.MapSerializer(keyed, ts.LongSerializer())
    assert in_map.from_bytes(in_map.to_bytes({key: None})) == {key: None}


def test_overlapping_and_adjacent_windows_merge_and_others_do_not() -> None:
    window = ts.TimeWindow(10, 20)
    for start, end in ((0, 10), (5, 15), (10, 20), (12, 18), (19, 30), (20, 30), (0, 30)):
        for one, other in ((window, ts.TimeWindow(start, end)), (ts.TimeWindow(start, end), window)):
            assert one.intersects(other)
            assert one.cover(other) == ts.TimeWindow(min(10, start), max(20, end))
    for start, end in ((0, 9), (21, 30)):
        assert not window.intersects(ts.TimeWindow(start, end))
        assert not ts.TimeWindow(start, end).intersects(window)
    assert window.max_timestamp == 19


def test_february_has_29_days_in_leap_years() -> None:
    for year in (*range(1, 2401), *range(0, -800, -1)):
        # The rule also applies before year 1, and repeats every 400 years.
        assert is_leap_year(year) is calendar.isleap(year % 400 + 400), year
        check_date(year, 2, 28)
    for year in (1900, 2001, 2100, -1, -100):
        with pytest.raises(ValueError, match="day 29 does not exist"):
            check_date(year, 2, 29)
    with pytest.raises(ValueError, match="day 0"):
        check_date(2000, 1, 0)


def test_a_local_date_time_has_the_microseconds_of_a_datetime() -> None:
    value = datetime.datetime(2024, 2, 29, 23, 59, 59, 999_999)
    assert ts.LocalDateTime.from_datetime(value) == ts.LocalDateTime(2024, 2, 29, 23, 59, 59, 999_999_000)
    assert ts.LocalDateTime.from_datetime(value).to_datetime() == value


def test_the_initial_value_is_the_start_of_1970() -> None:
    assert ts.PythonDateTimeSerializer().create_instance() == datetime.datetime(1970, 1, 1)


def test_the_longest_decimals_round_trip_and_longer_ones_are_rejected_on_both_sides() -> None:
    serializer = ts.BigDecSerializer()
    for digit in "19":
        longest = decimal.Decimal(digit * MAX_DIGITS)
        assert serializer.from_bytes(serializer.to_bytes(longest)) == longest
    with pytest.raises(SerializationError, match="more than"):
        serializer.to_bytes(decimal.Decimal("1" * (MAX_DIGITS + 1)))
    unscaled = 10**MAX_DIGITS
    size_bytes = unscaled.bit_length() // 8 + 1
    data = (size_bytes + 4).to_bytes(4, "big") + unscaled.to_bytes(size_bytes, "big") + bytes(4)
    with pytest.raises(StateFormatError, match="more than"):
        serializer.from_bytes(data)


def test_a_month_ends_with_its_last_day() -> None:
    for month in range(1, 13):
        last = calendar.monthrange(2024, month)[1]
        check_date(2024, month, last)
        with pytest.raises(ValueError, match=f"day {last + 1} does not exist"):
            check_date(2024, month, last + 1)
    for month in (0, 13):
        with pytest.raises(ValueError, match=f"month {month} is not"):
            check_date(2024, month, 1)


def test_milliseconds_have_64_bits_without_the_null_value() -> None:
    for milliseconds in (-(2**63) + 1, 2**63 - 1):
        serializer = ts.DateSerializer()
        assert serializer.from_bytes(serializer.to_bytes(ts.Date(milliseconds))) == ts.Date(milliseconds)
    for milliseconds in (-(2**63), 2**63):
        with pytest.raises(ValueError, match="are not within"):
            ts.Date(milliseconds)
