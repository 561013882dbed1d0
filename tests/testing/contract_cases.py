"""Every built-in serializer with values for the contract: manual edge cases, the rest by hypothesis."""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import types
import uuid
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import attrs
import pyarrow as pa
from hypothesis import strategies as st

import typeserializers as ts

TEXT = st.text(st.characters(exclude_categories=[]), max_size=8)
LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
DOUBLES = st.floats()


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


@attrs.frozen
class Point:
    x: int
    y: float
    label: str | None = None


@attrs.define
class Tree:
    name: str
    children: list[Tree] = attrs.field(factory=list)
    parent: Point | None = None


class Pair(NamedTuple):
    first: int
    second: list[str]


@attrs.define
class Shape:
    __pojo_class__ = "kits.Shape"
    area: Annotated[int, ts.IntSerializer()]
    label: str | None = None
    tags: list[str] = attrs.field(factory=list)


@attrs.define
class Circle(Shape):
    __pojo_class__ = "kits.Circle"
    radius: float = 1.0


class Shade(enum.Enum):
    """Another enum with the constants of `Colour`."""

    RED = 1
    GREEN = 2


def alike(**attributes: Any) -> object:
    """Has the attributes of a value, but is not a value."""
    return types.SimpleNamespace(**attributes)


def dots() -> st.SearchStrategy[Point]:
    return st.builds(Point, LONGS, DOUBLES.filter(lambda number: number == number), st.none() | TEXT)


def trees() -> st.SearchStrategy[Tree]:
    leaves = st.builds(Tree, TEXT)
    return st.recursive(leaves, lambda inner: st.builds(Tree, TEXT, st.lists(inner, max_size=3)), max_leaves=5)


class Basket:
    """A class without a serializer other than pickle."""

    def __init__(self, *items: str) -> None:
        self.items = items

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Basket) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]


BATCH = pa.record_batch([[1, None], ["a", "é"]], names=["n", "s"])

AVRO = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "n", "type": "long"},
        {"name": "s", "type": ["null", "string"]},
        {"name": "l", "type": {"type": "array", "items": "double"}},
    ],
}


@attrs.frozen
class Case:
    """One serializer under contract."""

    make: Callable[[], ts.TypeSerializer[Any]]
    values: Sequence[Any]
    strategy: st.SearchStrategy[Any] | None = None
    length: int = -1
    is_picklable: bool = True
    reads_hostile_bytes: bool = True
    misfits: Sequence[Any] | None = None
    equal: Callable[[Any, Any], bool] | None = None
    different: Sequence[ts.TypeSerializer[Any]] = ()
    """Serializers of the same class with another configuration."""


STRING, LONG, INT = ts.StringSerializer(), ts.LongSerializer(), ts.IntSerializer()
OPTIONAL_LONG = ts.NullableSerializer(LONG)

CASES: dict[str, Case] = {
    "boolean": Case(ts.BooleanSerializer, [True, False], length=1),
    "byte": Case(ts.ByteSerializer, [0, -128, 127], length=1, misfits=[128, "x"]),
    "short": Case(ts.ShortSerializer, [0, -(2**15), 2**15 - 1], length=2, misfits=[2**15]),
    "int": Case(ts.IntSerializer, [0, -(2**31), 2**31 - 1], INTS, length=4, misfits=[2**31]),
    "long": Case(ts.LongSerializer, [0, -(2**63), 2**63 - 1], LONGS, length=8, misfits=[2**63, 1.5]),
    "float": Case(ts.FloatSerializer, [0.0, float("nan"), float("-inf")], st.floats(width=32), length=4, misfits=["x"]),
    "double": Case(ts.DoubleSerializer, [0.0, -0.0, float("nan"), float("inf")], DOUBLES, length=8, misfits=["x"]),
    "char": Case(ts.CharSerializer, ["a", "\ud800", "\uffff"], length=2, misfits=["ab", "", "😀"]),
    "string": Case(ts.StringSerializer, ["", "a", "é😀", "\ud800", "x" * 300], TEXT),
    "bytes": Case(ts.BytesSerializer, [b"", b"\0\xff" * 5], st.binary(max_size=20)),
    "big-integer": Case(ts.BigIntSerializer, [0, 1, 2, 10, -1, 2**200, -(2**200)], st.integers()),
    "big-decimal": Case(
        ts.BigDecSerializer,
        [decimal.Decimal("0"), decimal.Decimal("1.50"), decimal.Decimal("-1E+20")],
        st.decimals(allow_nan=False, allow_infinity=False),
    ),
    "date": Case(ts.DateSerializer, [ts.Date(0), ts.Date(2**62)], length=8),
    "sql-date": Case(ts.SqlDateSerializer, [ts.SqlDate(0)], length=8),
    "sql-time": Case(ts.SqlTimeSerializer, [ts.SqlTime(5)], length=8),
    "sql-timestamp": Case(ts.SqlTimestampSerializer, [ts.SqlTimestamp(5, 5_000_678)], length=12),
    "instant": Case(
        ts.InstantSerializer,
        [ts.Instant(0, 0), ts.Instant(-5, 999_999_999)],
        length=12,
        misfits=[alike(seconds=0, nanos=0), 5],
    ),
    "local-date": Case(ts.LocalDateSerializer, [ts.LocalDate(2024, 2, 29), ts.LocalDate(-5, 1, 1)], length=6),
    "local-time": Case(ts.LocalTimeSerializer, [ts.LocalTime(23, 59, 59, 999_999_999)], length=7),
    "local-date-time": Case(ts.LocalDateTimeSerializer, [ts.LocalDateTime(2024, 2, 29, 1, 2, 3, 4)], length=13),
    "python-date": Case(ts.PythonDateSerializer, [datetime.date.min, datetime.date.max], st.dates(), length=6),
    "python-time": Case(ts.PythonTimeSerializer, [datetime.time(1, 2, 3, 4)], length=7),
    "python-date-time": Case(ts.PythonDateTimeSerializer, [datetime.datetime(2024, 2, 29, 1, 2, 3, 4)], st.datetimes()),
    "timedelta": Case(ts.TimedeltaSerializer, [datetime.timedelta(0), datetime.timedelta.min], st.timedeltas(), 12),
    "uuid": Case(
        ts.UuidSerializer,
        [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)],
        st.uuids(),
        length=16,
        misfits=["00000000-0000-0000-0000-000000000000", 5, b"0" * 16],
    ),
    "enum": Case(
        lambda: ts.EnumSerializer(Colour),
        list(Colour),
        length=4,
        different=[
            ts.EnumSerializer(Colour, ["BLUE", "RED", "GREEN"]),
            ts.EnumSerializer(Colour, ["RED", "GREEN"]),
            ts.EnumSerializer(Colour, name="kits.Tint"),
        ],
        misfits=[1, "RED", Shade.RED],
    ),
    "literal": Case(
        lambda: ts.LiteralSerializer(STRING, ["a", "bc"]),
        ["a", "bc"],
        different=[ts.LiteralSerializer(STRING, ["a"]), ts.LiteralSerializer(LONG, [1])],
        misfits=["zzz", 1, None, ["a"]],
    ),
    "literal-of-enum": Case(
        lambda: ts.LiteralSerializer(ts.EnumSerializer(Colour), [Colour.BLUE, Colour.RED]),
        [Colour.RED, Colour.BLUE],
        length=4,
        different=[ts.LiteralSerializer(ts.EnumSerializer(Colour), [Colour.RED])],
        misfits=[Colour.GREEN, Shade.RED, "RED"],
    ),
    "void": Case(ts.VoidSerializer, [None], length=1, misfits=[5]),
    "null-value": Case(ts.NullValueSerializer, [None], length=0, misfits=[5]),
    "void-namespace": Case(ts.VoidNamespaceSerializer, [ts.VOID_NAMESPACE], length=1),
    "global-window": Case(ts.GlobalWindowSerializer, [ts.GLOBAL_WINDOW], length=1),
    "time-window": Case(
        ts.TimeWindowSerializer,
        [ts.TimeWindow(0, 5), ts.TimeWindow(-(2**62), 2**62)],
        length=16,
        misfits=[alike(start=0, end=5), (0, 5), ts.TimeWindow(2**63, 0)],
    ),
    "list": Case(
        lambda: ts.ListSerializer(STRING),
        [[], ["a", "é"]],
        st.lists(TEXT, max_size=4),
        different=[ts.ListSerializer(LONG), ts.ListSerializer(ts.ListSerializer(STRING))],
        misfits=[{"a"}, "a", [1], [None, 1]],
    ),
    "list-of-numbers": Case(lambda: ts.ListSerializer(INT), [[], [1, -1]], st.lists(INTS, max_size=5)),
    "array-list": Case(
        lambda: ts.ArrayListSerializer(LONG),
        [[], [1, -1]],
        st.lists(LONGS, max_size=5),
        different=[ts.ArrayListSerializer(STRING), ts.ArrayListSerializer(OPTIONAL_LONG)],
    ),
    "map": Case(
        lambda: ts.MapSerializer(STRING, LONG),
        [{}, {"a": 1, "b": None}],
        st.dictionaries(TEXT, st.none() | LONGS, max_size=4),
        different=[ts.MapSerializer(LONG, LONG), ts.MapSerializer(STRING, STRING), ts.MapSerializer(LONG, STRING)],
        misfits=[[("a", 1)], {1: 1}, {"a": "a"}, {None}],
    ),
    "set": Case(
        lambda: ts.SetSerializer(LONG),
        [set(), {1, 2, None}],
        st.sets(LONGS, max_size=4),
        different=[ts.SetSerializer(STRING)],
        misfits=[[1], {"a"}, frozenset({"a"})],
    ),
    "frozen-set": Case(
        lambda: ts.FrozenSetSerializer(STRING),
        [frozenset(), frozenset({"a", "b"})],
        different=[ts.FrozenSetSerializer(LONG)],
        misfits=[["a"], frozenset({1})],
    ),
    "tuple": Case(
        lambda: ts.TupleSerializer([STRING, LONG]),
        [("a", 1)],
        st.tuples(TEXT, LONGS),
        misfits=[("a", 1, 2), ("a", "a"), "ab", ("a",), ["a", 1]],
        different=[
            ts.TupleSerializer([LONG, STRING]),
            ts.TupleSerializer([STRING]),
            ts.TupleSerializer([STRING, OPTIONAL_LONG]),
        ],
    ),
    "tuple-0": Case(
        ts.Tuple0Serializer,
        [()],
        length=1,
        misfits=[[], (1,), None],
    ),
    "nullable": Case(
        lambda: ts.NullableSerializer(LONG),
        [5, None],
        st.none() | LONGS,
        different=[ts.NullableSerializer(STRING), ts.NullableSerializer(LONG, pad_null_value=True)],
        misfits=["5", 5.0, 2**63],
    ),
    "nullable-padded": Case(
        lambda: ts.NullableSerializer(LONG, pad_null_value=True),
        [5, None],
        length=9,
        different=[OPTIONAL_LONG, ts.NullableSerializer(INT, pad_null_value=True)],
        misfits=["5", 2**63],
    ),
    "either": Case(
        lambda: ts.EitherSerializer(STRING, LONG),
        [ts.Left("a"), ts.Right(5)],
        st.builds(ts.Left, TEXT) | st.builds(ts.Right, LONGS),
        different=[
            ts.EitherSerializer(LONG, STRING),
            ts.EitherSerializer(STRING, STRING),
            ts.EitherSerializer(LONG, LONG),
        ],
        misfits=[alike(value="a"), "a", ts.Left(5), ts.Right("a")],
    ),
    "union": Case(
        lambda: ts.UnionSerializer([LONG, STRING]),
        [5, "a"],
        LONGS | TEXT,
        different=[ts.UnionSerializer([STRING, LONG]), ts.UnionSerializer([LONG, STRING, ts.BytesSerializer()])],
        misfits=[5.0, b"a", None, ["a"]],
    ),
    "row": Case(
        lambda: ts.RowSerializer([INT, STRING]),
        [ts.Row(1, "a"), ts.Row(None, None)],
        misfits=[alike(fields=(1, "a"), names=None, kind=ts.RowKind.INSERT), (1, "a"), ts.Row(1, "a", 2), ts.Row(1)],
        different=[
            ts.RowSerializer([INT, STRING], supports_row_kind=False),
            ts.RowSerializer([STRING, INT]),
            ts.RowSerializer([INT]),
        ],
    ),
    # Names are not written with a value: a restored serializer reads rows without them.
    "row-named": Case(
        lambda: ts.RowSerializer([INT], ["n"]), [ts.Row.named({"n": 5})], equal=lambda a, b: a.fields == b.fields
    ),
    "string-array": Case(
        ts.StringArraySerializer,
        [[], ["a", None]],
        st.lists(st.none() | TEXT, max_size=4),
        misfits=["a", [5]],
    ),
    "object-array": Case(
        lambda: ts.GenericArraySerializer(STRING),
        [[], ["a", None]],
        different=[ts.GenericArraySerializer(LONG), ts.GenericArraySerializer(STRING, "java.lang.Object")],
        misfits=["a", [5], {"a"}],
    ),
    "boolean-array": Case(ts.BooleanPrimitiveArraySerializer, [[], [True, False]]),
    "short-array": Case(ts.ShortPrimitiveArraySerializer, [array.array("h", [1, -1])]),
    "int-array": Case(ts.IntPrimitiveArraySerializer, [array.array("i", []), array.array("i", [1, -1])]),
    "long-array": Case(ts.LongPrimitiveArraySerializer, [array.array("q", [1, -1])]),
    "float-array": Case(ts.FloatPrimitiveArraySerializer, [array.array("f", [0.5])]),
    "double-array": Case(ts.DoublePrimitiveArraySerializer, [array.array("d", [0.5])]),
    "char-array": Case(ts.CharPrimitiveArraySerializer, ["", "a\ud800"]),
    "timer": Case(
        lambda: ts.TimerSerializer(STRING, LONG),
        [ts.Timer(5, "k", 6), ts.Timer(-(2**63), "", 0)],
        different=[ts.TimerSerializer(LONG, LONG), ts.TimerSerializer(STRING, STRING)],
        misfits=[
            alike(timestamp=5, key="k", namespace=6),
            ts.Timer(2**63, "k", 6),
            ts.Timer(5, 5, 6),
            ts.Timer(5, "k", "k"),
        ],
    ),
    "ttl": Case(
        lambda: ts.TtlSerializer(STRING),
        [ts.TtlValue("a", 5)],
        different=[ts.TtlSerializer(LONG), ts.TtlSerializer(ts.ListSerializer(STRING))],
        misfits=[alike(value="a", last_access_timestamp=5), "a", ts.TtlValue(5, 5), ts.TtlValue("a", 2**63)],
    ),
    "record": Case(
        lambda: ts.AttrsSerializer(Point),
        [Point(1, 0.5), Point(-1, 2.5, "é")],
        dots(),
        different=[
            ts.AttrsSerializer(Point, name="Dot"),
            ts.AttrsSerializer(Point, field_serializers={"x": INT}),
            ts.AttrsSerializer(Tree),
        ],
        misfits=[alike(x=1, y=0.5, label=None), Point(1, None), Point(None, 0.5), Point(1, 0.5, 5), Point("1", 0.5)],
    ),
    "record-recursive": Case(
        lambda: ts.AttrsSerializer(Tree),
        [Tree("a"), Tree("a", [Tree("b")])],
        trees(),
        different=[ts.AttrsSerializer(Tree, name="Bush")],
    ),
    "record-named-tuple": Case(
        lambda: ts.AttrsSerializer(Pair),
        [Pair(1, []), Pair(2, ["x"])],
        different=[ts.AttrsSerializer(Pair, field_serializers={"first": INT})],
        misfits=[(1, []), Pair(None, []), Pair(1, [1])],
    ),
    "converting": Case(
        lambda: ts.ConvertingSerializer(STRING, {LONG: str}),
        ["a", ""],
        different=[ts.ConvertingSerializer(LONG, {STRING: int})],
    ),
    "pojo": Case(
        lambda: ts.PojoSerializer(Shape, registered_subclasses=[Circle]),
        [Shape(1), Shape(2, "x", ["y"]), Circle(3, None, [], 2.5)],
        different=[
            ts.PojoSerializer(Shape),
            ts.PojoSerializer(Circle),
            ts.PojoSerializer(Shape, name="kits.Form", registered_subclasses=[Circle]),
        ],
        misfits=[alike(area=1, label=None, tags=[]), Shape("1"), Shape(1, 5), Circle(3, None, [], "x")],
    ),
    "avro": Case(
        lambda: ts.AvroSerializer(AVRO),
        [{"n": 1, "s": None, "l": []}, {"n": -1, "s": "é", "l": [0.5]}],
        misfits=[{}, {"n": "x", "s": None, "l": []}],
        different=[
            ts.AvroSerializer("long"),
            ts.AvroSerializer({**AVRO, "name": "Trip"}),
            ts.AvroSerializer({**AVRO, "fields": AVRO["fields"][:2]}),
        ],
    ),
    "arrow": Case(
        lambda: ts.ArrowSerializer(BATCH.schema),
        [BATCH, BATCH.slice(1)],
        different=[ts.ArrowSerializer(BATCH.schema.remove(0)), ts.ArrowSerializer(pa.schema(list(BATCH.schema)[::-1]))],
    ),
    "arrow-struct": Case(
        lambda: ts.ArrowStructSerializer(BATCH.schema),
        [{"n": 1, "s": None}, {"n": None, "s": "é"}],
        different=[ts.ArrowStructSerializer(BATCH.schema.remove(0)), ts.ArrowStructSerializer(BATCH.schema.remove(1))],
    ),
    "pickle": Case(
        lambda: ts.PickleSerializer(Basket),
        [Basket(), Basket("a")],
        reads_hostile_bytes=False,
        different=[ts.PickleSerializer(Point)],
    ),
    "value-boolean": Case(ts.BooleanValueSerializer, [True, False], length=1),
    "value-byte": Case(ts.ByteValueSerializer, [-128, 127], length=1),
    "value-short": Case(ts.ShortValueSerializer, [-(2**15)], length=2),
    "value-int": Case(ts.IntValueSerializer, [-(2**31)], length=4),
    "value-long": Case(ts.LongValueSerializer, [-(2**63)], length=8),
    "value-float": Case(ts.FloatValueSerializer, [0.5], length=4),
    "value-double": Case(ts.DoubleValueSerializer, [0.5], length=8),
    "value-char": Case(ts.CharValueSerializer, ["a"], length=2),
    "value-string": Case(ts.StringValueSerializer, ["", "é"], TEXT),
}
