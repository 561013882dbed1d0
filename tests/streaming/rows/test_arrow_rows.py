"""Rows in and out of Arrow batches: the values of pyarrow, the behaviour of Row, and clear errors."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import math
import pickle
from collections import namedtuple
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from attrs import frozen
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import StructType

from statebackend.spark.columns import spark_row_reader, to_arrow_schema
from statebackend.streaming.rows.declared_schema import column_type_name
from statebackend.streaming.rows.row_reader import column_values
from statebackend.streaming.rows.row_writer import RowMismatchError, RowWriter

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

UTC = datetime.timezone.utc
SIMPLE_TYPES = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float32(), st.floats(width=32, allow_nan=False)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(st.characters(codec="utf-8"))),
    (pa.large_string(), st.text(st.characters(codec="utf-8"))),
    (pa.binary(), st.binary()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (
        pa.timestamp("us", "Europe/Berlin"),
        st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=st.just(UTC)),
    ),
    (pa.decimal128(12, 3), st.decimals(-10, 10, places=3)),
    (pa.null(), st.none()),
]


def nested(inner: tuple[pa.DataType, st.SearchStrategy[Any]]) -> list[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    arrow_type, values = inner
    optional = st.none() | values
    return [
        (pa.list_(arrow_type), st.lists(optional, max_size=3)),
        (pa.map_(pa.string(), arrow_type), st.dictionaries(st.text(max_size=2), optional, max_size=3)),
        (
            pa.struct([pa.field("a", arrow_type), pa.field("b", pa.int64())]),
            st.tuples(optional, st.none() | st.integers(0, 9)),
        ),
    ]


@st.composite
def typed_columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    column = draw(st.sampled_from(SIMPLE_TYPES))
    for _ in range(draw(st.integers(0, 2))):
        column = draw(st.sampled_from(nested(column)))
    arrow_type, values = column
    return arrow_type, draw(st.lists(draw(st.sampled_from([values, st.none() | values])), max_size=12))


@given(typed_columns(), st.data())
def test_rows_round_trip_from_any_slice(column: tuple[pa.DataType, list[Any]], data: st.DataObject) -> None:
    arrow_type, values = column
    schema = pa.schema([("c", arrow_type)])
    batch = RowWriter(schema).batch([(value,) for value in values])
    assert batch.schema == schema
    start = data.draw(st.integers(0, len(values)))
    length = data.draw(st.integers(0, len(values) - start))
    part = batch.slice(start, length)
    assert column_values(part.column(0)) == values[start : start + length]
    assert spark_row_reader(schema).rows(part) == [(value,) for value in values[start : start + length]]


@given(typed_columns())
def test_simple_values_equal_those_of_pyarrow(column: tuple[pa.DataType, list[Any]]) -> None:
    arrow_type, values = column
    array = RowWriter(pa.schema([("c", arrow_type)])).batch([(value,) for value in values]).column(0)
    if not pa.types.is_nested(arrow_type):
        assert column_values(array) == array.to_pylist()
        assert list(map(type, column_values(array))) == list(map(type, array.to_pylist()))


def rows_of(**columns: list[Any]) -> list[Any]:
    batch = pa.RecordBatch.from_pydict(columns)
    return spark_row_reader(batch.schema).rows(batch)


def test_a_row_behaves_as_a_row_of_pyspark() -> None:
    (row,) = rows_of(tailnum=["N14228"], delay=[11])
    assert (row.tailnum, row["delay"], row[0], row[-1], row[0:1]) == ("N14228", 11, "N14228", 11, ("N14228",))
    assert row == ("N14228", 11) == Row(tailnum="N14228", delay=11)
    assert isinstance(row, Row)
    assert repr(row) == "Row(tailnum='N14228', delay=11)"
    assert row.asDict() == {"tailnum": "N14228", "delay": 11}
    assert "delay" in row
    assert hash(row) == hash(("N14228", 11))
    tailnum, delay = row
    assert (tailnum, delay) == tuple(row)


@pytest.mark.parametrize("duplicate", [lambda row: pickle.loads(pickle.dumps(row)), copy.copy, copy.deepcopy])
def test_a_row_can_be_pickled_and_copied(duplicate: Any) -> None:
    (row,) = rows_of(a=[1], b=[[{"c": 2}]])
    again = duplicate(row)
    assert again == row
    assert (again.a, again.b[0].c, again["a"]) == (1, 2, 1)


def test_names_of_tuple_methods_and_odd_names_are_read_by_subscription() -> None:
    (row,) = rows_of(**{"count": [7], "class": [8], "two words": [9], "__class__": [10]})
    assert (row["count"], row["class"], row["two words"], row["__class__"]) == (7, 8, 9, 10)
    assert getattr(row, "two words") == 9
    assert row.count(7) == 1


def test_an_unknown_name_is_an_error_that_lists_the_columns() -> None:
    (row,) = rows_of(a=[1], b=[2])
    with pytest.raises(KeyError, match="'c' is not a column; the row has a, b"):
        row["c"]
    with pytest.raises(AttributeError):
        _ = row.c


def test_a_row_cannot_be_changed() -> None:
    (row,) = rows_of(a=[1])
    with pytest.raises((AttributeError, RuntimeError)):
        row.a = 2
    assert row.a == 1


def test_timestamps_carry_the_zone_of_the_session() -> None:
    instant = datetime.datetime(2013, 7, 1, 12, tzinfo=UTC)
    array = pa.array([instant], pa.timestamp("us", "Europe/Berlin"))
    (value,) = column_values(array)
    assert value == instant
    assert (value.hour, value.utcoffset()) == (14, datetime.timedelta(hours=2))


def test_a_batch_of_another_schema_is_rejected() -> None:
    reader = spark_row_reader(pa.schema([("a", pa.int64())]))
    with pytest.raises(ValueError, match="was given to a reader of"):
        reader.rows(pa.RecordBatch.from_pydict({"a": ["x"]}))


@frozen
class Leg:
    destination: str
    minutes: int


@dataclasses.dataclass
class DataLeg:
    minutes: int
    destination: str


NamedLeg = namedtuple("NamedLeg", ["minutes", "destination"])
LEGS = pa.schema([pa.field("destination", pa.string(), nullable=False), pa.field("minutes", pa.int32())])


def generated_row(**values: Any) -> Any:
    return rows_of(**{name: [value] for name, value in values.items()})[0]


@pytest.mark.parametrize(
    "row",
    [
        ("JFK", 5),
        Row("JFK", 5),
        Row(destination="JFK", minutes=5),
        Row(minutes=5, destination="JFK"),
        generated_row(destination="JFK", minutes=5),
        generated_row(minutes=5, destination="JFK"),
        NamedLeg(5, "JFK"),
        {"minutes": 5, "destination": "JFK"},
        Leg("JFK", 5),
        DataLeg(5, "JFK"),
    ],
    ids=repr,
)
def test_a_row_can_be_a_tuple_or_any_record_with_the_column_names(row: Any) -> None:
    assert RowWriter(LEGS).batch([row]).to_pylist() == [{"destination": "JFK", "minutes": 5}]
    assert RowWriter(LEGS).batch([("EWR", None), row]).num_rows == 2


@pytest.mark.parametrize(
    ("arrow_type", "row", "expected"),
    [
        (pa.int64(), 5, 5),
        (pa.int64(), (5,), 5),
        (pa.int64(), {"c": 5}, 5),
        (pa.string(), "x", "x"),
        (pa.int64(), None, None),
        (pa.list_(pa.int64()), [1, 2], [1, 2]),
        (pa.map_(pa.string(), pa.int64()), {"k": 1}, [("k", 1)]),
        (pa.struct(list(LEGS)), Leg("JFK", 5), {"destination": "JFK", "minutes": 5}),
    ],
)
def test_with_one_column_a_bare_value_is_a_row(arrow_type: pa.DataType, row: Any, expected: Any) -> None:
    assert RowWriter(pa.schema([("c", arrow_type)])).batch([row]).to_pylist() == [{"c": expected}]


def test_records_nest() -> None:
    schema = pa.schema([("legs", pa.list_(pa.struct(list(LEGS)))), ("worst", pa.struct(list(LEGS)))])
    batch = RowWriter(schema).batch([([Leg("JFK", 5), {"minutes": 1, "destination": "EWR"}], DataLeg(9, "LGA"))])
    (row,) = spark_row_reader(schema).rows(batch)
    assert row.legs[1].destination == "EWR"
    assert row.worst.minutes == 9
    assert row.asDict(recursive=True)["legs"][0] == {"destination": "JFK", "minutes": 5}


def test_no_rows_are_an_empty_batch_of_the_schema() -> None:
    batch = RowWriter(LEGS).batch([])
    assert (batch.num_rows, batch.schema) == (0, pa.schema([field.with_nullable(True) for field in LEGS]))


@pytest.mark.parametrize("max_batch_bytes", [1, 100, 20_000, 1 << 20])
@pytest.mark.parametrize("counts", [[1], [1024], [1025], [5120, 5121], [10_000], [100_000], [3000, 1, 90_000, 7]])
def test_rows_are_emitted_once_in_order_for_any_batch_size(max_batch_bytes: int, counts: list[int]) -> None:
    if max_batch_bytes == 1:
        counts = [min(count, 1500) for count in counts]
    writer = RowWriter(pa.schema([("n", pa.int64())]), max_batch_bytes=max_batch_bytes)
    for count in counts:
        batches = list(writer.batches([(number,) for number in range(count)]))
        assert pa.Table.from_batches(batches)["n"].equals(pa.chunked_array([range(count)], pa.int64()))
        assert all(batch.num_rows for batch in batches)


def test_a_naive_timestamp_is_in_the_zone_of_the_schema_nested_or_not() -> None:
    berlin = pa.timestamp("us", "Europe/Berlin")
    noon = datetime.datetime(2013, 7, 1, 12)
    batch = RowWriter(pa.schema([("t", berlin), ("l", pa.list_(berlin))])).batch([(noon, [noon])])
    expected = noon.replace(tzinfo=ZoneInfo("Europe/Berlin"))
    assert batch.to_pylist() == [{"t": expected, "l": [expected]}]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (("JFK",), "a row of 1 values was emitted for the 2 columns (destination, minutes): ('JFK',)"),
        (("JFK", 1, 2), "a row of 3 values"),
        ((None, 1), "column 'destination' (string NOT NULL) cannot hold None"),
        (("JFK", "5"), "column 'minutes' (int) cannot hold '5': it is a str; the row: ('JFK', '5')"),
        (("JFK", 5.0), "cannot hold 5.0: it is a float"),
        (("JFK", True), "cannot hold True: it is a bool"),
        (
            ("JFK", 2**31),
            "column 'minutes' (int) cannot hold 2147483648: it is outside of -2147483648 to 2147483647; "
            "the row: ('JFK', 2147483648)",
        ),
        ((b"JFK", 1), "cannot hold b'JFK': it is a bytes"),
        (("a\ud800", 1), "cannot hold 'a\\ud800': it is text with a lone surrogate at position 1"),
        ({"destination": "JFK"}, "the dict lacks minutes"),
        ({"destination": "JFK", "minutes": 1, "miles": 2}, "the dict has miles, which is not a column"),
        ({"destination": "JFK", "minutes": 1, "km": 3, "miles": 2}, "the dict has km, miles, which are not columns"),
        (Row(destination="JFK", minuets=1), "the Row lacks minutes and has minuets, which is not a column"),
        (5, "a value of type int is not a row of the columns (destination, minutes)"),
        (["JFK", 1], "a value of type list is not a row"),
        (None, "a value of type NoneType is not a row"),
    ],
)
def test_a_row_that_does_not_fit_is_named_with_its_column_and_value(row: Any, message: str) -> None:
    writer = RowWriter(LEGS, "operator 'legs'")
    with pytest.raises(RowMismatchError) as caught:
        writer.batch([("EWR", 1), row, ("LGA", None)])
    assert str(caught.value).startswith("operator 'legs': ")
    assert message in str(caught.value)
    assert writer.batch([("EWR", 1)]).num_rows == 1


@pytest.mark.parametrize(
    ("arrow_type", "value", "reason"),
    [
        (pa.int64(), 2**63, "it is outside of -9223372036854775808 to 9223372036854775807"),
        (pa.int8(), -129, "it is outside of -128 to 127"),
        (pa.float32(), 1e300, "it is too large for a float of 32 bits"),
        (pa.float64(), 2**2000, "it is too large for a float of 64 bits"),
        (pa.float64(), 2**60 + 1, "it is an int without an exact float; emit float(value)"),
        (pa.decimal128(10, 2), Decimal("1.234"), "it is a number with 3 decimal places, and the column has 2"),
        (pa.decimal128(3, 2), 12345, "it is a number with more than 1 digits before the point"),
        (pa.decimal128(3, 2), Decimal("NaN"), "it is not finite"),
        (pa.list_(pa.int32()), [1, 2**40], "[1] is outside of -2147483648 to 2147483647"),
        (pa.map_(pa.string(), pa.int8()), {"a": 1, "b": 200}, "['b'] is outside of -128 to 127"),
        (pa.map_(pa.int8(), pa.int8()), {300: 1}, "{key} is outside of -128 to 127"),
        (pa.struct([("a", pa.list_(pa.int8()))]), ([1, 128],), ".a[1] is outside of -128 to 127"),
    ],
)
def test_a_value_beyond_the_limits_of_its_type_has_an_explanation(
    arrow_type: pa.DataType, value: Any, reason: str
) -> None:
    writer = RowWriter(pa.schema([("v", arrow_type)]), "here")
    with pytest.raises(RowMismatchError) as caught:
        writer.batch([(None,), (value,)])
    assert str(caught.value).startswith("here: column 'v' (")
    assert f": {reason}" in str(caught.value)


@pytest.mark.parametrize(
    ("field", "type_name"),
    [
        (pa.field("v", pa.int64()), "bigint"),
        (pa.field("v", pa.timestamp("us", "UTC"), nullable=False), "timestamp NOT NULL"),
        (pa.field("v", pa.list_(pa.map_(pa.string(), pa.decimal128(10, 2)))), "array<map<string, decimal(10,2)>>"),
        (pa.field("v", pa.struct([pa.field("a", pa.int8(), nullable=False)])), "struct<`a` tinyint NOT NULL>"),
        (pa.field("v", pa.time64("ns")), "time(6)"),
        (pa.field("v", pa.month_day_nano_interval()), "month_day_nano_interval"),
    ],
)
def test_an_error_names_the_type_of_a_column_as_ddl(field: pa.Field, type_name: str) -> None:
    assert column_type_name(field) == type_name


def test_milliseconds_in_place_of_a_timestamp_are_rejected_with_advice() -> None:
    writer = RowWriter(pa.schema([("t", pa.timestamp("us", "UTC"))]))
    with pytest.raises(RowMismatchError, match=r"cannot hold 1500: it is an int; .*datetime\.fromtimestamp\("):
        writer.batch([(1500,)])


@pytest.mark.parametrize(
    ("arrow_type", "value"),
    [
        (pa.string(), 5),
        (pa.binary(), "x"),
        (pa.bool_(), 1),
        (pa.float64(), "1.5"),
        (pa.float64(), 2**60 + 1),
        (pa.date32(), 5),
        (pa.date32(), datetime.datetime(2013, 1, 1)),
        (pa.timestamp("us", "UTC"), 5),
        (pa.timestamp("us"), datetime.date(2013, 1, 1)),
        (pa.timestamp("us"), datetime.datetime(2013, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))),
        (pa.float32(), 1e300),
        (pa.list_(pa.float32()), [0.5, -1e300]),
        (pa.decimal128(4, 2), Decimal("1.005")),
        (pa.decimal128(4, 2), Decimal("100")),
        (pa.decimal128(4, 2), 1.5),
        (pa.list_(pa.string()), "abc"),
        (pa.list_(pa.int64()), [1, "x"]),
        (pa.list_(pa.field("element", pa.int64(), nullable=False)), [1, None]),
        (pa.map_(pa.string(), pa.int64()), {"a": "x"}),
        (pa.map_(pa.string(), pa.int64()), {None: 1}),
        (pa.struct([("a", pa.int64())]), {"b": 1}),
        (pa.struct([("a", pa.int64())]), (1, 2)),
        (pa.struct([("a", pa.int64())]), 7),
    ],
)
def test_a_value_of_another_kind_is_rejected_where_arrow_would_convert_or_fail_obscurely(
    arrow_type: pa.DataType, value: Any
) -> None:
    with pytest.raises(RowMismatchError, match="column 'c'"):
        RowWriter(pa.schema([("c", arrow_type), ("d", pa.int64())])).batch([(value, 1)])


def test_integers_are_accepted_as_floats_and_decimals() -> None:
    schema = pa.schema([("f", pa.float64()), ("d", pa.decimal128(4, 2))])
    assert RowWriter(schema).batch([(1, 2), (1.5, Decimal("2.5"))]).to_pydict() == {
        "f": [1.0, 1.5],
        "d": [Decimal("2.00"), Decimal("2.50")],
    }


class OfNumpy(float):
    """A numpy scalar for Arrow: a float of another class than Python's."""

    def tolist(self) -> float:
        return float(self)


OfNumpy.__module__ = "numpy"


def test_a_numpy_scalar_becomes_the_python_value() -> None:
    floats = RowWriter(pa.schema([("f", pa.float64()), ("l", pa.list_(pa.float32()))]))
    assert floats.batch([(OfNumpy(1.5), [OfNumpy(0.5), None])]).to_pydict() == {"f": [1.5], "l": [[0.5, None]]}
    for whole, value in ((pa.int64(), OfNumpy(1.5)), (pa.list_(pa.int64()), [OfNumpy(1.5)])):
        with pytest.raises(RowMismatchError, match="is a float"):
            RowWriter(pa.schema([("n", whole), ("m", pa.int64())])).batch([(value, 1)])


def test_every_float_type_accepts_infinity() -> None:
    schema = pa.schema([("f", pa.float32()), ("d", pa.float64())])
    assert RowWriter(schema).batch([(math.inf, -math.inf), (0.1, 1e300)]).column(0).to_pylist()[0] == math.inf


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(RowMismatchError) as caught:
        RowWriter(LEGS).batch([("JFK", "x" * 100_000)])
    assert len(str(caught.value)) < 1_500


DDL = (
    "b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint, f float, d double, s string, x binary, day date, "
    "t timestamp, n timestamp_ntz, m decimal(12,3), a array<int>, k map<string,bigint>, r struct<p:string,t:timestamp>"
)


@pytest.mark.spark
@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
def test_rows_of_every_type_round_trip_through_spark(spark: SparkSession, zone: str) -> None:
    from statebackend.spark.plans.map_in_arrow import map_in_arrow
    from statebackend.spark.session import configured

    schema = StructType.fromDDL(DDL)
    noon = datetime.datetime(2013, 7, 1, 12, 30, 15, 5)
    # fmt: off
    values = (
        True, 1, 2, 3, 4, 0.5, 0.25, "é", b"\0\xff", datetime.date(2013, 7, 1), noon.replace(tzinfo=UTC), noon,
        Decimal("12.345"), [1, None, 3], {"a": 1, "b": None}, ("p", noon.replace(tzinfo=UTC)),
    )
    # fmt: on
    rows = [values, (None,) * len(values)]
    with configured(spark, {"spark.sql.session.timeZone": zone}):
        arrow_schema = to_arrow_schema(schema)
        assert arrow_schema == to_arrow_schema(schema, zone)

        def read_and_write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            writer = RowWriter(arrow_schema)
            for batch in batches:
                yield writer.batch(spark_row_reader(batch.schema).rows(batch))

        frame = spark.createDataFrame(rows, schema)
        returned = map_in_arrow(frame, read_and_write, schema)
        assert returned.schema == schema
        assert returned.collect() == frame.collect()


def test_the_arrow_schema_needs_no_session_for_a_struct_type() -> None:
    from pyspark.sql.types import LongType, StructField, TimestampType

    schema = StructType([StructField("a", LongType(), False), StructField("t", TimestampType())])
    assert to_arrow_schema(schema, "UTC") == pa.schema(
        [pa.field("a", pa.int64(), nullable=False), pa.field("t", pa.timestamp("us", "UTC"))]
    )


def test_timestamps_have_the_zone_of_the_session_with_every_release_of_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    from statebackend.spark import columns

    # Before Spark 4.3 the function has no argument for the zone.
    convert: Any = columns.spark_arrow_types.to_arrow_schema
    if "timezone" in (convert.__kwdefaults__ or ()):
        monkeypatch.setattr(
            columns.spark_arrow_types, "to_arrow_schema", lambda schema: convert(schema, timezone="UTC")
        )
    moments = pa.struct([("at", pa.timestamp("us", "UTC")), ("local", pa.timestamp("us"))])
    fields = {"one": moments, "many": pa.list_(moments), "by_name": pa.map_(pa.string(), moments), "n": pa.int64()}
    schema = columns.struct_type_of(pa.schema(list(fields.items())))
    in_berlin = pa.struct([("at", pa.timestamp("us", "Europe/Berlin")), ("local", pa.timestamp("us"))])
    assert to_arrow_schema(schema, "Europe/Berlin") == pa.schema(
        [
            ("one", in_berlin),
            ("many", pa.list_(in_berlin)),
            ("by_name", pa.map_(pa.string(), in_berlin)),
            ("n", pa.int64()),
        ]
    )
