"""Values from columns are stored with the bytes of their serializers, or rejected with the name of their type."""

from __future__ import annotations

import datetime
import decimal
import time
from typing import Any

import attrs
import contract_cases
import pyarrow as pa
import pytest

import typeserializers as ts
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.tables import ColumnForms
from statebackend.savepoint.value_forms import from_arrow_value, stored_values


@attrs.frozen
class Place:
    x: int
    y: int


def is_writable(serializer: ts.TypeSerializer[Any]) -> bool:
    try:
        from_arrow_value(serializer, "value")
    except ColumnValueError:
        return False
    return True


WRITABLE = [name for name, case in contract_cases.CASES.items() if is_writable(case.make())]


def test_common_types_round_trip() -> None:
    kinds = {type(contract_cases.CASES[name].make()) for name in WRITABLE}
    assert {ts.AttrsSerializer, ts.ListSerializer, ts.MapSerializer, ts.TupleSerializer, ts.EnumSerializer} <= kinds


@pytest.mark.parametrize("name", WRITABLE)
def test_values_round_trip(name: str) -> None:
    serializer: ts.TypeSerializer[Any] = contract_cases.CASES[name].make()
    form = ColumnForms().of(serializer)
    for value in contract_cases.CASES[name].values:
        try:
            column = form.array([value])
        except ColumnValueError:
            continue
        [back] = stored_values(serializer, column, "column 'value'")
        if isinstance(value, datetime.datetime):
            moment = value.replace(tzinfo=datetime.timezone.utc) if value.tzinfo is None else value
            assert (back, back.tzinfo) == (moment, datetime.timezone.utc)
        else:
            assert serializer.to_bytes(back) == serializer.to_bytes(value) or back == value


def test_a_column_without_a_zone_is_in_utc_in_any_process_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    try:
        noon = datetime.datetime(2020, 7, 1, 12)
        [moment] = stored_values(ts.PythonDateTimeSerializer(), pa.array([noon], pa.timestamp("us")), "column 'value'")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (moment, moment.tzinfo) == (noon.replace(tzinfo=datetime.timezone.utc), datetime.timezone.utc)


def test_a_value_that_does_not_fit_is_named_with_its_column() -> None:
    column = ColumnForms().of(ts.StringSerializer()).array(["no such colour"])
    with pytest.raises(ColumnValueError, match="column 'value': 'no such colour' does not fit"):
        stored_values(ts.EnumSerializer(contract_cases.Colour), column, "column 'value'")


@pytest.mark.parametrize("column", [pa.array([1.5]), pa.array([decimal.Decimal("1.5")]), pa.array([float("inf")])])
def test_a_fraction_is_not_an_unbounded_integer(column: pa.Array) -> None:
    with pytest.raises(ColumnValueError, match=r"column 'value': .* does not fit"):
        stored_values(ts.BigIntSerializer(), column, "column 'value'")


@pytest.mark.parametrize("column", [pa.array([12.0]), pa.array([decimal.Decimal("12.00")]), pa.array(["12"])])
def test_an_integer_is_accepted_from_any_numeric_column(column: pa.Array) -> None:
    assert stored_values(ts.BigIntSerializer(), column, "column 'value'") == [12]


def test_an_unknown_field_of_the_record_is_not_ignored() -> None:
    column = pa.array([{"x": 1, "y": 2, "colour": "red"}])
    with pytest.raises(ColumnValueError, match=r"does not fit: .*Place has no field colour"):
        stored_values(ts.serializer_for(Place), column, "column 'value'")


@pytest.mark.parametrize(
    ("serializer", "column"),
    [
        (ts.PythonDateTimeSerializer(), pa.array([2**62], pa.timestamp("us", "UTC"))),
        (ts.PythonDateSerializer(), pa.array([2**30], pa.int32()).cast(pa.date32())),
    ],
)
def test_a_time_out_of_range_for_python_is_reported_with_its_column(
    serializer: ts.TypeSerializer[Any], column: pa.Array
) -> None:
    with pytest.raises(ColumnValueError, match=r"column 'value': the column of type .* for which Python has none"):
        stored_values(serializer, column, "column 'value'")
