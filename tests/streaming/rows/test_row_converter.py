"""Rows converted without Arrow equal those of Arrow: values, types, or the error."""

from __future__ import annotations

import datetime
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.streaming.rows.row_converter import RowConverter
from statebackend.streaming.rows.row_reader import RowReader
from statebackend.streaming.rows.row_writer import RowMismatchError, RowWriter

UTC = datetime.timezone.utc
TYPES = [
    pa.int8(),
    pa.int64(),
    pa.float32(),
    pa.float64(),
    pa.bool_(),
    pa.string(),
    pa.binary(),
    pa.date32(),
    pa.time64("us"),
    pa.timestamp("us"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.decimal128(5, 2),
    pa.decimal128(38, 18),
]
MOMENT = datetime.datetime(2026, 10, 25, 2, 30, 1, 5)
VALUES: list[Any] = [
    None,
    True,
    0,
    -128,
    128,
    2**63 - 1,
    2**63,
    1.5,
    -0.0,
    float("inf"),
    "",
    "a",
    "ü€😀",
    "\ud800",
    b"\x00\xff",
    bytearray(b"x"),
    datetime.date(1, 1, 1),
    datetime.time(1, 2, 3, 4),
    MOMENT,
    MOMENT.replace(fold=1),
    MOMENT.replace(tzinfo=UTC),
    MOMENT.replace(tzinfo=UTC, fold=1),
    MOMENT.replace(tzinfo=ZoneInfo("UTC")),
    MOMENT.replace(tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    datetime.datetime(1, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    *map(Decimal, ("1", "1.5", "-0.00", "1E+2", "999.99", "1000", "0.001", "1.500", "NaN", "Infinity", "-1E-18")),
]


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.DataType, list[Any]]:
    """A type, and values that mostly fit."""
    arrow_type = draw(st.sampled_from(TYPES))
    fitting = [value for value in VALUES if fits(arrow_type, value)]
    values = st.sampled_from(fitting) | st.sampled_from(fitting) | st.sampled_from(fitting) | st.sampled_from(VALUES)
    if draw(st.integers(0, 4)):
        values = st.sampled_from(fitting)
    for _ in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            field = pa.field("item", arrow_type, nullable=draw(st.booleans()))
            arrow_type, values = pa.list_(field), st.none() | st.lists(values, max_size=3)
        else:
            field = pa.field("a", arrow_type, nullable=draw(st.booleans()))
            arrow_type = pa.struct([field, pa.field("count", pa.int64())])
            pairs = st.tuples(values, st.integers(0, 3))
            values = st.none() | pairs | pairs.map(lambda pair: {"count": pair[1], "a": pair[0]})
    return arrow_type, draw(st.lists(values, max_size=4))


def fits(arrow_type: pa.DataType, value: Any) -> bool:
    try:
        RowWriter(pa.schema([("c", arrow_type)])).batch([(value,)])
    except RowMismatchError:
        return False
    return True


def outcome(rows: Any) -> str:
    try:
        made = rows()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"{[type(row) for row in made]} {made!r}"


@pytest.mark.parametrize("arrow_type", TYPES, ids=str)
def test_each_value_equals_that_of_arrow(arrow_type: pa.DataType) -> None:
    nested = pa.struct([("s", pa.list_(arrow_type))])
    for value in VALUES:
        for schema, row in (
            (pa.schema([("c", arrow_type)]), (value,)),
            (pa.schema([pa.field("c", arrow_type, nullable=False)]), (value,)),
            (pa.schema([("c", nested)]), (([value, None],),)),
        ):
            writer, reader = RowWriter(schema, "here"), RowReader(schema, "here")
            through_arrow = outcome(lambda writer=writer, reader=reader, row=row: reader.rows(writer.batch([row])))
            converter = RowConverter(schema, "here")
            assert outcome(lambda converter=converter, row=row: converter.rows([row])) == through_arrow


@given(columns(), columns(), st.booleans())
def test_rows_equal_those_of_arrow(
    one: tuple[pa.DataType, list[Any]], other: tuple[pa.DataType, list[Any]], nullable: bool
) -> None:
    schema = pa.schema([pa.field("one", one[0], nullable=nullable), ("other", other[0])])
    rows = list(zip(one[1], other[1], strict=False))
    writer, reader = RowWriter(schema, "here"), RowReader(schema, "here")
    through_arrow = outcome(lambda: [row for batch in writer.batches(rows) for row in reader.rows(batch)])
    assert outcome(lambda: RowConverter(schema, "here").rows(rows)) == through_arrow


@pytest.mark.parametrize(
    "rows",
    [
        [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
        [{"a": 1, "b": 2}, {"a": 1}],
        [{"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}],
        [{"a": 1, "b": 2}, {"a": 1, "c": 3}],
        [{"a": 1, "b": 2}, (1, 2)],
        [{"a": 1, "b": None}, {"a": 1, "b": "text"}],
    ],
)
def test_dicts_are_converted_as_by_arrow(rows: list[Any]) -> None:
    for schema in (pa.schema([("a", pa.int64()), ("b", pa.int64())]), pa.schema([("a", pa.int64())])):
        nested = pa.schema([("x", pa.struct(list(schema))), ("y", pa.int64())])
        for given_schema, given_rows in ((schema, rows), (nested, [{"x": row, "y": 1} for row in rows])):
            writer, reader = RowWriter(given_schema, "here"), RowReader(given_schema, "here")

            def through_arrow(writer: Any = writer, reader: Any = reader, given_rows: Any = given_rows) -> list[Any]:
                return [row for batch in writer.batches(given_rows) for row in reader.rows(batch)]

            converter = RowConverter(given_schema, "here")
            assert outcome(lambda converter=converter, rows=given_rows: converter.rows(rows)) == outcome(through_arrow)


@pytest.mark.parametrize("row", [(1,), (1, 2, 3), {"a": 1}, 7])
def test_a_row_of_other_columns_is_the_error_of_arrow(row: Any) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64())])
    with pytest.raises(RowMismatchError) as direct:
        RowConverter(schema, "here").rows([(1, 2), row])
    with pytest.raises(RowMismatchError) as through_arrow:
        RowWriter(schema, "here").batch([(1, 2), row])
    assert str(direct.value) == str(through_arrow.value)


def test_lists_and_structs_are_copies() -> None:
    schema = pa.schema([("a", pa.list_(pa.int64())), ("b", pa.struct([("c", pa.list_(pa.int64()))]))])
    given_rows: list[Any] = [([1], ([2],))]
    [row] = RowConverter(schema, None).rows(given_rows)
    given_rows[0][0].append(9)
    given_rows[0][1][0].append(9)
    assert (row.a, row.b.c) == ([1], [2])
