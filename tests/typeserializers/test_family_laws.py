"""The rules of every serializer of the family, with generated values, invalid ones and damaged bytes."""

from __future__ import annotations

import array
import copy
import datetime
import decimal
import enum
import math
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import typeserializers as ts
from snapshots import (
    DataInputView,
    DataOutputView,
    SerializationError,
    StateFormatError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from typeserializers.kernel.known_serializers import restored_with

pytestmark = pytest.mark.slow


class Paint(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


class Law(NamedTuple):
    serializer: ts.TypeSerializer[Any]
    values: st.SearchStrategy[Any]


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


LONGS, INTS = integers(64), integers(32)
CHARACTERS = st.characters(max_codepoint=0xFFFF, categories=None)
# A surrogate pair written as two characters is read as the one character that it encodes.
TEXTS = st.text(st.characters(categories=None)).map(
    lambda text: text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")
)
DOUBLES = st.floats()
FLOATS = st.floats(width=32)
DECIMALS = st.builds(
    lambda unscaled, scale: decimal.Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale)),
    st.integers(),
    st.integers(-(1 << 31), (1 << 31) - 1) | st.integers(-5, 5),
)
LOCAL_DATES = st.builds(ts.LocalDate, st.integers(-999_999_999, 999_999_999), st.integers(1, 12), st.integers(1, 28))
NANOS = st.integers(0, 999_999_999)
LOCAL_TIMES = st.builds(ts.LocalTime, st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), NANOS)
MILLIS = st.integers(-(1 << 63) + 1, (1 << 63) - 1)
INSTANTS = st.builds(ts.Instant, st.integers(-31557014167219200, 31556889864403199), NANOS)
TIMESTAMPS = st.builds(
    lambda milli, nanos: ts.SqlTimestamp(milli, milli % 1000 * 1_000_000 + nanos), MILLIS, st.integers(0, 999_999)
)
ZONES = (
    st.none()
    | st.just(datetime.timezone.utc)
    | st.timezones()
    | st.builds(lambda minutes: datetime.timezone(datetime.timedelta(minutes=minutes)), st.integers(-1439, 1439))
    | st.just(datetime.timezone(datetime.timedelta(hours=2), "Sommer\x00zeit"))
)
DATETIMES = st.datetimes(timezones=ZONES, allow_imaginary=True)


def typed_array(typecode: str, elements: st.SearchStrategy[Any]) -> st.SearchStrategy[array.array[Any]]:
    return st.lists(elements).map(lambda items: array.array(typecode, items))


KINDS = st.sampled_from(ts.RowKind)
ROWS = st.builds(lambda i, s, kind: ts.Row(i, s, kind=kind), st.none() | INTS, st.none() | TEXTS, KINDS)
INT, LONG, STRING = ts.IntSerializer(), ts.LongSerializer(), ts.StringSerializer()
MANY_FIELDS = ts.RowSerializer([LONG] * 23)
MANY_ROWS = st.builds(
    lambda fields, kind: ts.Row(*fields, kind=kind), st.lists(st.none() | LONGS, min_size=23, max_size=23), KINDS
)

LAWS = {
    "char": Law(ts.CharSerializer(), CHARACTERS),
    "big int": Law(ts.BigIntSerializer(), st.none() | st.integers() | st.integers(-300, 300)),
    "big decimal": Law(ts.BigDecSerializer(), st.none() | DECIMALS),
    "local date": Law(ts.LocalDateSerializer(), st.none() | LOCAL_DATES),
    "local time": Law(ts.LocalTimeSerializer(), st.none() | LOCAL_TIMES),
    "local date-time": Law(
        ts.LocalDateTimeSerializer(), st.none() | st.builds(ts.LocalDateTime.of, LOCAL_DATES, LOCAL_TIMES)
    ),
    "instant": Law(ts.InstantSerializer(), st.none() | INSTANTS),
    "date": Law(ts.DateSerializer(), st.none() | st.builds(ts.Date, MILLIS)),
    "sql date": Law(ts.SqlDateSerializer(), st.none() | st.builds(ts.SqlDate, MILLIS)),
    "sql time": Law(ts.SqlTimeSerializer(), st.none() | st.builds(ts.SqlTime, MILLIS)),
    "sql timestamp": Law(ts.SqlTimestampSerializer(), st.none() | TIMESTAMPS),
    "python date": Law(ts.PythonDateSerializer(), st.dates()),
    "python time": Law(ts.PythonTimeSerializer(), st.times().map(lambda time: time.replace(fold=0))),
    "python datetime": Law(ts.PythonDateTimeSerializer(), DATETIMES),
    "timedelta": Law(ts.TimedeltaSerializer(), st.timedeltas()),
    "uuid": Law(ts.UuidSerializer(), st.uuids()),
    "enum": Law(ts.EnumSerializer(Paint), st.sampled_from(Paint)),
    "enum in another order": Law(ts.EnumSerializer(Paint, ["BLUE", "RED", "GREEN"]), st.sampled_from(Paint)),
    "void": Law(ts.VoidSerializer(), st.none()),
    "null value": Law(ts.NullValueSerializer(), st.none()),
    "list of null values": Law(ts.ListSerializer(ts.NullValueSerializer()), st.lists(st.none())),
    "void namespace": Law(ts.VoidNamespaceSerializer(), st.just(ts.VOID_NAMESPACE)),
    "time window": Law(ts.TimeWindowSerializer(), st.builds(ts.TimeWindow, LONGS, LONGS)),
    "global window": Law(ts.GlobalWindowSerializer(), st.just(ts.GLOBAL_WINDOW)),
    "boolean[]": Law(ts.BooleanPrimitiveArraySerializer(), st.lists(st.booleans())),
    "byte[]": Law(ts.BytePrimitiveArraySerializer(), st.binary()),
    "short[]": Law(ts.ShortPrimitiveArraySerializer(), typed_array("h", integers(16))),
    "int[]": Law(ts.IntPrimitiveArraySerializer(), typed_array("i", INTS)),
    "long[]": Law(ts.LongPrimitiveArraySerializer(), typed_array("q", LONGS)),
    "float[]": Law(ts.FloatPrimitiveArraySerializer(), typed_array("f", FLOATS)),
    "double[]": Law(ts.DoublePrimitiveArraySerializer(), typed_array("d", DOUBLES)),
    "char[]": Law(ts.CharPrimitiveArraySerializer(), TEXTS),
    "String[]": Law(ts.StringArraySerializer(), st.lists(st.none() | TEXTS)),
    "Long[]": Law(ts.GenericArraySerializer(LONG), st.lists(st.none() | LONGS)),
    "array of arrays": Law(
        ts.GenericArraySerializer(ts.GenericArraySerializer(STRING)), st.lists(st.none() | st.lists(st.none() | TEXTS))
    ),
    "array list": Law(ts.ArrayListSerializer(LONG), st.lists(LONGS)),
    "set of longs": Law(ts.SetSerializer(LONG), st.sets(st.none() | LONGS)),
    "set of strings": Law(ts.SetSerializer(STRING), st.sets(st.none() | TEXTS)),
    "frozenset of sets": Law(ts.FrozenSetSerializer(ts.FrozenSetSerializer(INT)), st.frozensets(st.frozensets(INTS))),
    "either": Law(
        ts.EitherSerializer(STRING, LONG), st.builds(ts.Left, st.none() | TEXTS) | st.builds(ts.Right, LONGS)
    ),
    "union of two": Law(ts.UnionSerializer([LONG, STRING]), LONGS | TEXTS),
    "union of four": Law(
        ts.UnionSerializer([ts.BooleanSerializer(), LONG, ts.ListSerializer(STRING), ts.SetSerializer(LONG)]),
        st.booleans() | LONGS | st.lists(TEXTS) | st.sets(LONGS),
    ),
    "empty tuple": Law(ts.Tuple0Serializer(), st.just(())),
    "tuple": Law(
        ts.TupleSerializer([LONG, ts.UuidSerializer(), ts.CharSerializer(), ts.BigIntSerializer()]),
        st.tuples(LONGS, st.uuids(), CHARACTERS, st.integers()),
    ),
    "row": Law(ts.RowSerializer([INT, STRING]), ROWS),
    "row without kind": Law(
        ts.RowSerializer([INT, STRING], supports_row_kind=False), st.builds(ts.Row, st.none() | INTS, TEXTS)
    ),
    "row without fields": Law(ts.RowSerializer([]), st.builds(lambda kind: ts.Row(kind=kind), KINDS)),
    "row of many fields": Law(MANY_FIELDS, MANY_ROWS),
    "named row": Law(
        ts.RowSerializer([INT, ts.RowSerializer([STRING])], ["id", "inner"]),
        st.builds(lambda i, s: ts.Row.named(id=i, inner=ts.Row(s)), st.none() | INTS, st.none() | TEXTS),
    ),
    "timer": Law(
        ts.TimerSerializer(STRING, ts.TimeWindowSerializer()),
        st.builds(ts.Timer, LONGS, TEXTS, st.builds(ts.TimeWindow, LONGS, LONGS)),
    ),
    "ttl": Law(ts.TtlSerializer(ts.ListSerializer(LONG)), st.builds(ts.TtlValue, st.lists(LONGS), LONGS)),
    "map of ttl": Law(
        ts.MapSerializer(ts.PythonDateSerializer(), ts.TtlSerializer(LONG)),
        st.dictionaries(st.dates(), st.none() | st.builds(ts.TtlValue, LONGS, LONGS)),
    ),
    "boolean value": Law(ts.BooleanValueSerializer(), st.booleans()),
    "byte value": Law(ts.ByteValueSerializer(), integers(8)),
    "short value": Law(ts.ShortValueSerializer(), integers(16)),
    "int value": Law(ts.IntValueSerializer(), INTS),
    "long value": Law(ts.LongValueSerializer(), LONGS),
    "float value": Law(ts.FloatValueSerializer(), FLOATS),
    "double value": Law(ts.DoubleValueSerializer(), DOUBLES),
    "char value": Law(ts.CharValueSerializer(), CHARACTERS),
    "string value": Law(ts.StringValueSerializer(), TEXTS),
}

MISFITS: list[Any] = [
    None, True, -1, 3.5, math.nan, 1 << 63, 1 << 40, -(1 << 63), 10**5000, "", "xy", "\U0001f600", b"", b"x", [],
    [None], ["x"], [1, "x"], [1 << 70], [1e300], [[1]], {}, {"a": 1}, set(), {1}, {"x"}, frozenset({(1, 2)}), (), (1,),
    (1, 2, 3, 4), (1, 2), object(), Paint, Paint.RED, ts.Left("x"), ts.Left(1), ts.Right("x"), ts.Right(1 << 64),
    ts.Row(1), ts.Row("x", 1), ts.Row(1, "x"), ts.Row.named(a=1, b="x"), ts.Row.named(id=1), ts.Row(1, "x", kind=7),
    ts.TimeWindow(1 << 63, 0), ts.TimeWindow("a", "b"), ts.TimeWindow(1, 2), ts.GLOBAL_WINDOW, ts.VOID_NAMESPACE,
    ts.Timer(1 << 63, "k", ts.TimeWindow(0, 1)), ts.Timer(0, 5, ts.TimeWindow(0, 1)), ts.Timer(0, "k", 5),
    ts.TtlValue([1], 1 << 63), ts.TtlValue("x", 0), ts.TtlValue([1], None), ts.TtlValue(1, 0),
    decimal.Decimal("NaN"), decimal.Decimal("-0"), decimal.Decimal("Infinity"), decimal.Decimal("1E+3000000000"),
    decimal.Decimal("1.5"), decimal.Decimal(1).scaleb(2**31, decimal.Context(Emax=decimal.MAX_EMAX)),
    decimal.Decimal("9" * 40_000), datetime.date(2024, 2, 29), datetime.datetime(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4, datetime.timezone.utc), datetime.time(1, 2, 3, 456),
    datetime.time(1, tzinfo=datetime.timezone.utc), datetime.time(1, fold=1), datetime.timedelta(1),
    ts.LocalDate(-44, 3, 15), ts.LocalTime(1, 2, 3, 4), ts.LocalDateTime(10_000, 1, 1), ts.Instant(0, 1),
    ts.Date(1 << 62), ts.SqlDate(0), ts.SqlTime(0), ts.SqlTimestamp(1, 1_000_001), array.array("q", [1 << 40]),
    array.array("f", [math.inf]), array.array("u", "xy"), memoryview(b"\x01\x02"), range(3), iter([1]), "x" * 300,
]  # fmt: skip


def by_view(serializer: ts.TypeSerializer[Any], value: Any) -> bytes:
    out = DataOutputView()
    out.write(b"before")
    try:
        serializer.serialize(value, out)
    except SerializationError:
        assert out.to_bytes() == b"before"
        raise
    return out.to_bytes()[6:]


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return struct.pack(">d", left) == struct.pack(">d", right) or (math.isnan(left) and math.isnan(right))
    if isinstance(left, array.array):
        return left.typecode == right.typecode and len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, decimal.Decimal):
        return left.as_tuple() == right.as_tuple()
    if isinstance(left, datetime.datetime):
        same_fields = left.replace(tzinfo=None) == right.replace(tzinfo=None) and left.fold == right.fold
        return same_fields and str(left.tzinfo) == str(right.tzinfo) and left.utcoffset() == right.utcoffset()
    if isinstance(left, ts.Row):
        return list(left) == list(right) and left.kind == right.kind
    return bool(left == right) and isinstance(right, type(left))


relaxed = settings(max_examples=examples(25))
DAMAGED_WAYS = 10


@pytest.mark.parametrize("name", LAWS)
@relaxed
@given(data=st.data())
def test_values_round_trip_alone_and_in_sequence_by_view_and_compiled(name: str, data: st.DataObject) -> None:
    serializer, strategy = LAWS[name]
    values = data.draw(st.lists(strategy, min_size=1, max_size=5))
    encoded = [serializer.to_bytes(value) for value in values]
    for value, part in zip(values, encoded, strict=True):
        assert by_view(serializer, value) == part
        assert equal(value, serializer.from_bytes(part))
        assert equal(value, serializer.deserialize(DataInputView(part)))
        assert serializer.to_bytes(serializer.from_bytes(part)) == part
        assert len(part) >= serializer.minimum_length
        assert serializer.length in (-1, len(part))
    together, position = b"".join(encoded), 0
    source = DataInputView(together)
    for value in values:
        read, position = serializer.codec.read(together, position)
        assert equal(value, read)
        assert equal(value, serializer.deserialize(source))
        assert source.position == position


@pytest.mark.parametrize("name", LAWS)
@relaxed
@given(data=st.data())
def test_copies_are_equal_and_share_nothing_mutable(name: str, data: st.DataObject) -> None:
    serializer, strategy = LAWS[name]
    value = data.draw(strategy)
    copied = serializer.copy(value)
    assert equal(value, copied)
    assert serializer.to_bytes(copied) == serializer.to_bytes(value)
    if serializer.is_immutable_type:
        assert serializer.copy(value) == value or value != value
    elif isinstance(value, (list, set, dict, array.array)):
        assert copied is not value


@pytest.mark.parametrize("name", LAWS)
@relaxed
@given(data=st.data())
def test_equal_values_have_equal_bytes_if_the_serializer_declares_it(name: str, data: st.DataObject) -> None:
    serializer, strategy = LAWS[name]
    if not serializer.equal_values_have_equal_bytes:
        return
    first, second = data.draw(strategy), data.draw(strategy)
    assert (first == second) == (serializer.to_bytes(first) == serializer.to_bytes(second))


@pytest.mark.parametrize("name", LAWS)
@relaxed
@given(data=st.data())
def test_truncation_at_every_length_is_an_error(name: str, data: st.DataObject) -> None:
    serializer, strategy = LAWS[name]
    encoded = serializer.to_bytes(data.draw(strategy))
    for length in range(len(encoded)):
        with pytest.raises(StateFormatError):
            serializer.from_bytes(encoded[:length])
        source = DataInputView(encoded[:length])
        with pytest.raises(StateFormatError):
            serializer.deserialize(source)
    with pytest.raises(StateFormatError):
        serializer.from_bytes(encoded + b"\0")


def damaged(draw: random.Random, encoded: bytes) -> bytes:
    """The bytes with a few changes, or random bytes."""
    if draw.random() < 0.5 or not encoded:
        return draw.randbytes(draw.randrange(60))
    changed = bytearray(encoded)
    for _ in range(draw.randint(1, 4)):
        changed[draw.randrange(len(changed))] = draw.randrange(256)
    return bytes(changed)


@pytest.mark.parametrize("name", LAWS)
@relaxed
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_damaged_bytes_yield_a_value_or_an_error_and_both_codes_agree(
    name: str, data: st.DataObject, seed: int
) -> None:
    serializer, strategy = LAWS[name]
    encoded = serializer.to_bytes(data.draw(strategy))
    # Drawing a value costs more than damaging it, so each value is damaged in several ways.
    for number in range(DAMAGED_WAYS):
        noise = damaged(random.Random(seed + number), encoded)
        results = [outcome(serializer.from_bytes, noise), outcome(lambda part: read_whole(serializer, part), noise)]
        if StateFormatError in results:
            assert results == [StateFormatError, StateFormatError], noise
        else:
            assert equal(*results), noise
            serializer.to_bytes(results[0])


def outcome(read: Callable[[Any], Any], data: Any) -> Any:
    """The value read, or the class of the error; only a StateFormatError is caught."""
    try:
        return read(data)
    except StateFormatError:
        return StateFormatError


def read_whole(serializer: ts.TypeSerializer[Any], data: bytes) -> Any:
    source = DataInputView(data)
    value = serializer.deserialize(source)
    if source.remaining:
        raise StateFormatError("trailing bytes")
    return value


@pytest.mark.parametrize("name", LAWS)
def test_huge_counts_cost_nothing(name: str) -> None:
    serializer = LAWS[name].serializer
    for hostile in (b"\x7f\xff\xff\xff" * 4, b"\xff" * 16, b"\x80" * 16, b"\x00\x0f\xff\xff" + bytes(8), b"\xff" * 6):
        value = outcome(serializer.from_bytes, hostile)
        assert value is StateFormatError or serializer.to_bytes(value) == hostile or "NaN" in repr(value)


@pytest.mark.parametrize("name", LAWS)
def test_invalid_values_are_rejected_equally_and_named_and_nothing_is_written(name: str) -> None:
    serializer = LAWS[name].serializer
    rejected = 0
    for misfit in MISFITS:
        compiled = outcome(serializer.to_bytes, misfit)
        if compiled is StateFormatError:
            rejected += 1
            problems = list(serializer.problems(misfit, ".field"))
            assert problems
            assert all(problem.startswith(".field") for problem in problems)
            with pytest.raises(SerializationError):
                serializer.to_bytes(misfit)
            with pytest.raises(SerializationError):
                by_view(serializer, misfit)
            continue
        assert by_view(serializer, misfit) == compiled
        assert serializer.to_bytes(serializer.from_bytes(compiled)) == compiled
        assert not list(serializer.problems(misfit, "")), misfit
    assert rejected > len(MISFITS) // 2


@pytest.mark.parametrize("name", LAWS)
def test_snapshots_restore_the_serializer(name: str) -> None:
    serializer = LAWS[name].serializer
    snapshot = snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))
    assert snapshot_to_bytes(snapshot) == snapshot_to_bytes(serializer.snapshot_configuration())
    restored = restored_with(snapshot, serializer)
    assert type(restored) is type(serializer)
    assert resolve_compatibility(snapshot, serializer).is_as_is
    assert resolve_compatibility(snapshot, restored).is_as_is
    if name != "named row":
        assert restored == serializer
        assert hash(restored) == hash(serializer)


@pytest.mark.parametrize("name", LAWS)
def test_a_snapshot_of_a_later_version_is_rejected(name: str) -> None:
    snapshot = LAWS[name].serializer.snapshot_configuration()
    out = DataOutputView()
    snapshot.write_snapshot(out)
    with pytest.raises(StateFormatError, match="version"):
        snapshot.read_snapshot(snapshot.current_version + 1, DataInputView(out.to_bytes()))


@pytest.mark.parametrize("name", LAWS)
def test_damaged_snapshots_are_rejected(name: str) -> None:
    data = snapshot_to_bytes(LAWS[name].serializer.snapshot_configuration())
    for length in range(len(data)):
        with pytest.raises(StateFormatError):
            snapshot_from_bytes(data[:length])
    for position in range(len(data)):
        for byte in (0, 1, 0x7F, 0xFF):
            damaged = data[:position] + bytes((byte,)) + data[position + 1 :]
            restored = outcome(lambda part: snapshot_from_bytes(part).restore_serializer(), damaged)
            assert restored is StateFormatError or isinstance(restored, ts.TypeSerializer)


@pytest.mark.parametrize("name", LAWS)
def test_instances_duplicates_and_pickles(name: str) -> None:
    serializer = LAWS[name].serializer
    made = serializer.create_instance()
    assert equal(made, serializer.from_bytes(serializer.to_bytes(made)))
    assert serializer.duplicate() == serializer
    assert copy.deepcopy(serializer) == serializer
    assert pickle.loads(pickle.dumps(serializer)) == serializer
    assert repr(serializer).startswith(type(serializer).__name__)
    assert serializer != object()
