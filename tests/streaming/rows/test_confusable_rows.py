"""Rows with confusable values: other zones, orders and names, and more than an array holds."""

from __future__ import annotations

import datetime
from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest

from statebackend import JobDefinitionError
from statebackend.streaming.operators.element_form import values_in_order
from statebackend.streaming.rows import row_writer
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.record_serializer import StoredRecords, stored_records
from statebackend.streaming.rows.row_reader import RowReader, column_values, row_class
from statebackend.streaming.rows.row_writer import RowMismatchError, RowWriter
from statebackend.streaming.rows.union import rows_as, united_schema

LIMIT = 100
"""Bytes that an array holds here, where Arrow's holds two GiB."""


def form_of(ddl: str) -> StoredRecords:
    return stored_records(parsed_schema(ddl, "test").arrow, "test")


def through_state(form: StoredRecords, row: Any) -> Any:
    return form.to_row(form.serializer.from_bytes(form.serializer.to_bytes(form.to_stored(row))))


@pytest.fixture(params=["rejected", "cut in pieces"])
def small_arrays(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow rejects more than one text array can hold, or splits it."""
    made = pa.array

    def array(values: list[Any], *arguments: Any, **options: Any) -> Any:
        is_too_large = sum(len(value) for value in values if isinstance(value, str)) > LIMIT
        if is_too_large and request.param == "rejected":
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        whole = made(values, *arguments, **options)
        return pa.chunked_array([whole[:1], whole[1:]]) if is_too_large else whole

    monkeypatch.setattr(row_writer.pa, "array", array)


@pytest.mark.usefixtures("small_arrays")
def test_rows_beyond_one_array_are_split_down_to_single_ones() -> None:
    writer = RowWriter(pa.schema([("text", pa.string())]))
    rows = [(letter * LIMIT,) for letter in "abcdefg"]
    batches = list(writer.batches(rows))
    assert [batch.num_rows for batch in batches] == [1] * 7
    assert [row for batch in batches for row in batch["text"].to_pylist()] == [text for (text,) in rows]


@pytest.mark.usefixtures("small_arrays")
def test_a_row_beyond_any_array_is_named_after_the_rows_before_it() -> None:
    batches = RowWriter(pa.schema([("text", pa.string())])).batches([("a" * 60,), ("b" * (LIMIT + 1),)])
    assert next(batches)["text"].to_pylist() == ["a" * 60]
    with pytest.raises(
        RowMismatchError, match=r"column 'text' \(string\): the values .* larger than 2 GiB; the row: \('bbb"
    ):
        next(batches)


def test_an_instant_of_another_zone_is_converted_to_the_zone_of_the_schema() -> None:
    berlin = pa.timestamp("us", "Europe/Berlin")
    instant = datetime.datetime(2013, 7, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=-7)))
    batch = RowWriter(pa.schema([("t", berlin), ("l", pa.list_(berlin))])).batch([(instant, [instant])])
    assert batch.to_pylist() == [{"t": instant, "l": [instant]}]


@pytest.mark.parametrize("given", [(1,), (1, 2, 3)])
def test_a_struct_has_as_many_values_as_fields(given: tuple[int, ...]) -> None:
    writer = RowWriter(pa.schema([("s", pa.struct([("a", pa.int64()), ("b", pa.int64())])), ("n", pa.int64())]))
    with pytest.raises(RowMismatchError, match=f"column 's' .* cannot hold .*: {len(given)} values for the 2 fields"):
        writer.batch([(given, 1)])


@pytest.mark.parametrize("start", [0, 1, 2, 3])
def test_lists_and_maps_of_a_slice_are_correct(start: int) -> None:
    lists = [[1, 2], None, [], [3], [4, 5, 6]]
    maps = [{"a": 1, "b": 2}, None, {}, {"c": 3}, {"d": 4, "e": None}]
    pairs = [None if one is None else list(one.items()) for one in maps]
    assert column_values(pa.array(lists, pa.list_(pa.int64()))[start:]) == lists[start:]
    map_type = pa.map_(pa.string(), pa.int64())
    [read] = zip(
        *RowReader(pa.schema([("m", map_type)])).rows(
            pa.record_batch([pa.array(pairs, map_type)[start:]], names=["m"])
        ),
        strict=True,
    )
    assert list(read) == maps[start:]


def test_columns_with_names_that_python_normalises_equally_are_distinct() -> None:
    form = form_of("`\ufb01` int, fi int")
    assert tuple(through_state(form, (1, 2))) == (1, 2)
    odd = b"a b".hex()
    form = form_of(f"`a b` int, column_{odd} int, `__x` int")
    assert tuple(through_state(form, (1, 2, 3))) == (1, 2, 3)


def test_a_struct_is_stored_by_field_name() -> None:
    form = form_of("s struct<x: int, y: int>")
    assert tuple(through_state(form, ({"y": 2, "x": 1},)).s) == (1, 2)
    assert tuple(through_state(form, ({"y": 2},)).s) == (None, 2)


def test_maps_of_structs_are_stored_with_nulls_and_with_structs_as_keys() -> None:
    form = form_of("m map<string, struct<x: int>>, k map<struct<x: int>, int>")
    row = through_state(form, ({"a": (1,), "b": None}, {(7,): 8}))
    assert (row.m["a"].x, row.m["b"]) == (1, None)
    assert [(tuple(key), value) for key, value in row.k.items()] == [((7,), 8)]


def test_a_record_has_exactly_the_columns_by_any_naming() -> None:
    values = values_in_order(("x", "y"))
    other_order, same_order = namedtuple("OtherOrder", "y x"), namedtuple("SameOrder", "x y")
    assert values(same_order(1, 2)) == values((1, 2)) == values({"y": 2, "x": 1}) == (1, 2)
    assert tuple(values(row_class(("x", "y"))((1, 2)))) == tuple(values(row_class(("y", "x"))((2, 1)))) == (1, 2)
    for no_record in (other_order(2, 1), {"x": 1}, {"x": 1, "y": 2, "z": 3}, (1, 2, 3), (1,), 5):
        with pytest.raises(TypeError, match="is not a record of the columns x, y"):
            values(no_record)


def test_integers_of_a_stream_become_floats_in_a_union() -> None:
    first, second = parsed_schema("k string, v int", "here"), parsed_schema("k string, v double", "here")
    united = united_schema([first, second])
    [row] = rows_as(first, united)([row_class(("k", "v"))(("a", 7))])
    assert (type(row.v), row.v) == (float, 7.0)


def test_decimals_can_be_all_fraction_and_no_more() -> None:
    assert parsed_schema("a decimal(5,5)", "here").type_of("a") == "decimal(5,5)"
    with pytest.raises(JobDefinitionError, match=r"decimal\(5,6\) is not a type"):
        parsed_schema("a decimal(5,6)", "here")


def test_a_path_leads_through_structs_and_not_to_a_field_of_its_last_name() -> None:
    schema = parsed_schema("a struct<b: struct<c: int>, c: string>", "here")
    assert [schema.type_of(path) for path in ("a.b.c", "a.c", "a.c.b")] == ["int", "string", None]


def test_nested_required_fields_are_required() -> None:
    schema = parsed_schema("s struct<x: int not null, y: int>", "here").arrow
    assert [schema.field("s").type[index].nullable for index in (0, 1)] == [False, True]


def test_a_row_with_a_duplicate_column_is_rejected() -> None:
    writer = RowWriter(pa.schema([("a", pa.int64()), ("b", pa.int64())]))
    with pytest.raises(RowMismatchError, match="names a column twice"):
        writer.batch([row_class(("a", "b", "b"))((1, 2, 3))])
