"""Values of every serializer as Arrow arrays: each has a column form, which keeps the value or rejects it."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any

import attrs
import contract_cases
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import typeserializers as ts
from snapshots import DataInputView, DataOutputView, SimpleTypeSerializerSnapshot, register_snapshot
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.tables import ColumnForm, ColumnForms, ListForm, ScalarForm

UTC = datetime.timezone.utc


@pytest.mark.parametrize("name", contract_cases.CASES)
def test_every_value_of_every_serializer_has_a_form(name: str) -> None:
    case = contract_cases.CASES[name]
    form = ColumnForms(as_text=True).of(case.make())
    assert not any("not of this library" in note for _, note in form.notes("value"))
    values = [*case.values, None]
    array = form.array(values)
    array.validate(full=True)
    assert (array.type, len(array)) == (form.data_type, len(values))
    if form.data_type != pa.null():
        assert all(value.is_valid is (one is not None) for value, one in zip(array, values, strict=True))


@pytest.mark.parametrize("name", contract_cases.CASES)
def test_a_type_that_fits_every_value_accepts_it_and_others_name_the_option_to_use(name: str) -> None:
    serializer = contract_cases.CASES[name].make()
    typed, text = ColumnForms().of(serializer), ColumnForms(as_text=True).of(serializer)
    for value in contract_cases.CASES[name].values:
        reason = rejection(typed, value)
        assert reason is None or "as_text=True" in reason
        assert rejection(text, value) is None


def rejection(form: ColumnForm, value: Any) -> str | None:
    try:
        form.array([value])
    except ColumnValueError as error:
        return str(error)
    return None


def reported(serializer: ts.TypeSerializer[Any], *values: Any) -> list[Any]:
    found: list[Any] = ColumnForms().of(serializer).array(list(values)).to_pylist()
    return found


def test_values_round_trip() -> None:
    assert reported(ts.LongSerializer(), -(2**63), 2**63 - 1) == [-(2**63), 2**63 - 1]
    assert reported(ts.BigDecSerializer(), decimal.Decimal("1.50")) == [decimal.Decimal("1.50")]
    assert reported(ts.BigIntSerializer(), 10**37) == [10**37]
    zoned = datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    bare = datetime.datetime(2026, 1, 2, 3)
    assert reported(ts.PythonDateTimeSerializer(), zoned, bare) == [zoned, bare.replace(tzinfo=UTC)]
    assert reported(ts.InstantSerializer(), ts.Instant(1, 5000)) == [datetime.datetime(1970, 1, 1, 0, 0, 1, 5, UTC)]
    assert reported(ts.DateSerializer(), ts.Date(1500)) == [datetime.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)]
    assert reported(ts.SqlDateSerializer(), ts.SqlDate(-1)) == [datetime.date(1969, 12, 31)]
    assert reported(ts.EnumSerializer(contract_cases.Colour), contract_cases.Colour.RED) == ["RED"]
    assert reported(ts.SetSerializer(ts.LongSerializer()), {3, 1, 2}) == [[1, 2, 3]]
    assert reported(ts.MapSerializer(ts.StringSerializer(), ts.LongSerializer()), {"b": 1, "a": None}) == [
        [("b", 1), ("a", None)]
    ]
    either = ts.EitherSerializer(ts.StringSerializer(), ts.LongSerializer())
    assert reported(either, ts.Left("a"), ts.Right(1)) == [{"left": "a", "right": None}, {"left": None, "right": 1}]
    assert reported(ts.TupleSerializer([ts.StringSerializer(), ts.LongSerializer()]), ("a", 1)) == [
        {"f0": "a", "f1": 1}
    ]
    assert reported(ts.RowSerializer([ts.LongSerializer()], ["n"]), ts.Row.named({"n": 5})) == [{"n": 5}]


def test_records_are_structs_inside_lists_and_optional_values() -> None:
    points = ts.ListSerializer(ts.NullableSerializer(ts.AttrsSerializer(contract_cases.Point)))
    first, second = contract_cases.Point(1, 0.5), contract_cases.Point(2, 1.5, "x")
    form = ColumnForms().of(points)
    assert form.data_type == pa.list_(
        pa.field("element", pa.struct({"x": pa.int64(), "y": pa.float64(), "label": pa.string()}))
    )
    assert form.array([[first, None], None, [], [second]]).to_pylist() == [
        [attrs.asdict(first), None],
        None,
        [],
        [attrs.asdict(second)],
    ]


def test_recursive_and_mixed_types_are_json_and_reported() -> None:
    tree = contract_cases.Tree("a", [contract_cases.Tree("\ud800")])
    form = ColumnForms().of(ts.AttrsSerializer(contract_cases.Tree))
    assert [path for path, _ in form.notes("value")] == ["value.children[]"]
    [found] = form.array([tree]).to_pylist()
    assert list(map(json.loads, found["children"])) == [plain_value(tree.children[0])]
    union = ColumnForms().of(ts.UnionSerializer([ts.LongSerializer(), ts.StringSerializer()]))
    assert union.array([5, "a", None]).to_pylist() == ["5", '"a"', None]


@pytest.mark.parametrize(
    ("serializer", "fits", "value"),
    [
        (ts.BigIntSerializer(), 1, 10**38),
        (ts.BigDecSerializer(), decimal.Decimal(1), decimal.Decimal("1E-19")),
        (ts.InstantSerializer(), ts.Instant(0), ts.Instant(0, 1)),
        (ts.LocalDateSerializer(), ts.LocalDate(1, 1, 1), ts.LocalDate(-5, 1, 1)),
        (ts.TimedeltaSerializer(), datetime.timedelta(1), datetime.timedelta.max),
        (ts.StringSerializer(), "a", "\ud800"),
    ],
)
def test_a_value_that_does_not_fit_is_named_with_advice(
    serializer: ts.TypeSerializer[Any], fits: Any, value: Any
) -> None:
    with pytest.raises(ColumnValueError, match="as_text=True") as caught:
        ColumnForms().of(serializer).array([fits, None, value])
    assert str(caught.value).startswith(repr(value)[:20])
    assert ColumnForms(as_text=True).of(serializer).array([value]).null_count == 0


def test_decimals_have_the_requested_digits_after_the_point() -> None:
    form = ColumnForms(decimal_scale=30).of(ts.ListSerializer(ts.BigDecSerializer()))
    column = form.array([[decimal.Decimal("1E-30"), decimal.Decimal("12345678")]])
    assert column.type == pa.list_(pa.decimal128(38, 30))
    assert column.to_pylist() == [[decimal.Decimal("1E-30"), decimal.Decimal("12345678")]]
    with pytest.raises(ColumnValueError, match="another number of digits after the point than 30"):
        form.array([[decimal.Decimal("123456789")]])


class CelsiusSerializer(ts.TypeSerializer[float]):
    """A third-party serializer."""

    def serialize(self, value: float, out: DataOutputView) -> None:
        out.write_double(value + 273.15)

    def deserialize(self, source: DataInputView) -> float:
        return source.read_double() - 273.15

    def create_instance(self) -> float:
        return 0.0

    def snapshot_configuration(self) -> CelsiusSerializerSnapshot:
        return CelsiusSerializerSnapshot()


@register_snapshot("tests.tabular.CelsiusSerializerSnapshot")
class CelsiusSerializerSnapshot(SimpleTypeSerializerSnapshot[float]):
    serializer_class = CelsiusSerializer


def test_a_third_party_serializer_is_json_until_a_form_is_registered() -> None:
    inside = ts.ListSerializer(CelsiusSerializer())
    form = ColumnForms().of(inside)
    assert form.array([[0.5]]).to_pylist() == [["0.5"]]
    [(path, note)] = form.notes("value")
    assert (path, "CelsiusSerializer is not of this library" in note) == ("value[]", True)
    given_a_form = ColumnForms({CelsiusSerializer: lambda serializer, forms: ScalarForm(pa.float64())}).of(inside)
    assert isinstance(given_a_form, ListForm)
    assert given_a_form.array([[0.5]]).to_pylist() == [[0.5]]
    assert list(given_a_form.notes("value")) == []


@given(st.lists(st.none() | contract_cases.trees(), max_size=6))
def test_arrays_equal_single_values(values: list[Any]) -> None:
    form = ColumnForms(as_text=True).of(ts.AttrsSerializer(contract_cases.Tree))
    together = form.array(values)
    assert together.to_pylist() == [form.array([value]).to_pylist()[0] for value in values]
