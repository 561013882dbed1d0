"""`show --where` and `--namespace` compare values by the types of the schema, and reject any other path or literal."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import math
import re
import uuid
from pathlib import Path
from typing import Annotated, Any

import attrs
import pytest
from inspected_job import NOW_MS, run_job

from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from typeserializers import FloatSerializer

pytestmark = pytest.mark.slow

EAST = datetime.timezone(datetime.timedelta(hours=5, minutes=45))
FIRST, SECOND = uuid.UUID(int=1), uuid.UUID(int=2)


class Colour(enum.Enum):
    RED = "r"
    GREEN = "g"


@attrs.frozen
class Sub:
    minutes: int


@attrs.frozen
class Other:
    text: str


@attrs.frozen
class Payment:
    amount: decimal.Decimal
    text: str
    number: int
    ratio: float
    single: Annotated[float, FloatSerializer()]
    when: datetime.datetime
    day: datetime.date
    time: datetime.time
    delay: datetime.timedelta
    id: uuid.UUID
    colour: Colour
    data: bytes
    is_late: bool
    sub: Sub | None
    either: Sub | Other
    tags: list[str]
    by_name: dict[str, decimal.Decimal]
    place: tuple[str, int]
    by_colour: dict[Colour, int] = attrs.field(factory=dict)


LOW = Payment(
    decimal.Decimal("99.50"),
    "1000",
    2**53,
    -math.inf,
    0.1,
    datetime.datetime(2024, 1, 1, 12, tzinfo=EAST),
    datetime.date(2024, 1, 9),
    datetime.time(9, 30),
    datetime.timedelta(seconds=9),
    FIRST,
    Colour.RED,
    b"\x00\xff",
    False,
    None,
    Sub(5),
    ["a", "b"],
    {"fee": decimal.Decimal("0.10")},
    ("x", 7),
)
HIGH = Payment(
    decimal.Decimal("1000.00"),
    "99",
    2**53 + 1,
    math.nan,
    0.2,
    datetime.datetime(2024, 1, 1, 7, tzinfo=datetime.timezone.utc),
    datetime.date(2024, 1, 10),
    datetime.time(10, 30, 0, 1),
    datetime.timedelta(seconds=10),
    SECOND,
    Colour.GREEN,
    b"\x01",
    True,
    Sub(90),
    Other("90"),
    ["b"],
    {"fee": decimal.Decimal("2")},
    ("y", 8),
)
LOWER, UPPER, BOTH, NEITHER = ["low"], ["high"], ["high", "low"], []  # type: ignore[var-annotated]


@pytest.fixture(scope="module")
def payments(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("state") / "savepoint"
    amounts = MapStateDescriptor("amounts", datetime.date, int)
    plan = (
        Plan()
        .add_operator("payments", "string")
        .add_state("payments", ValueStateDescriptor("last", Payment), [("low", LOW), ("high", HIGH)])
        .add_state("payments", ListStateDescriptor("all", int), [("low", [1, 2])])
        .add_state("payments", amounts, [("low", datetime.date(2024, 5, 1), 2**60)])
    )
    SavepointWriter.new(path, max_parallelism=4).write(plan)
    return str(path)


def shown(capsys: pytest.CaptureFixture[str], place: str, state: str, *arguments: str) -> list[Any]:
    status = main(["show", place, "payments", state, "--json", *arguments])
    captured = capsys.readouterr()
    assert (status, captured.err) == (0, "")
    found: list[Any] = json.loads(captured.out)
    return found


@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        ("value.amount>900", UPPER),
        ('value.amount>"900"', UPPER),
        ("value.amount=99.5", LOWER),
        ("value.amount=1E+3", UPPER),
        ("value.amount<1e400000", BOTH),
        ("value.text>900", UPPER),
        ("value.text=1000", LOWER),
        ('value.text="1000"', LOWER),
        ("value.number>9007199254740992", UPPER),
        ("value.number=9007199254740993", UPPER),
        ("value.number>=9007199254740992.5", UPPER),
        ("value.ratio=-Infinity", LOWER),
        ("value.ratio=nan", UPPER),
        ("value.ratio>-1e999", UPPER),
        ("value.ratio<-1e999", LOWER),
        ("value.ratio>inf", UPPER),
        ("value.single=0.1", LOWER),
        ("value.single>0.1", UPPER),
        ("value.when=2024-01-01T06:15:00Z", LOWER),
        ("value.when<2024-01-01T06:30", LOWER),
        ("value.when>2024-01-01T12:30+05:45", UPPER),
        ("value.when=2024-01-01T08:00:00.000000+01:00", UPPER),
        ("value.day>2024-01-09", UPPER),
        ("value.time=10:30:00.000001", UPPER),
        ("value.time<10:30", LOWER),
        ("value.delay>9.5", UPPER),
        ("value.delay=9.0 s", LOWER),
        (f"value.id={str(FIRST).upper()}", LOWER),
        ("value.colour=RED", LOWER),
        ("value.colour!=RED", UPPER),
        ("value.data=00ff", LOWER),
        ('value.data={"base64": "AP8="}', LOWER),
        ("value.data>00ff", UPPER),
        ("value.is_late=true", UPPER),
        ("value.is_late!=true", LOWER),
        ("value.sub=null", LOWER),
        ("value.sub!=null", UPPER),
        ("value.sub.minutes>9", UPPER),
        ("value.sub.minutes=null", LOWER),
        ("value.sub.minutes<1000", UPPER),
        ('value.sub={"minutes": 90}', UPPER),
        ("value.either.minutes<10", LOWER),
        ("value.either.text=90", UPPER),
        ("value.either.text!=null", UPPER),
        ('value.tags=["a", "b"]', LOWER),
        ('value.tags!=["a", "b"]', UPPER),
        ("value.by_name.fee>0.9", UPPER),
        ("value.by_name.other=null", BOTH),
        ('value.by_name={"fee": 0.1}', LOWER),
        ("value.place.f1>7", UPPER),
        ('value.place=["x", 7]', LOWER),
        ("key=low", LOWER),
        ("key_group>100", NEITHER),
    ],
)
def test_values_are_compared_as_their_types(
    payments: str, capsys: pytest.CaptureFixture[str], condition: str, keys: list[str]
) -> None:
    found = shown(capsys, payments, "last", "--where", condition)
    assert sorted(one["key"] for one in found) == keys


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("value.amonut>900", "value is of type .*Payment and has no field 'amonut'; it has the fields amount, text"),
        ("values.amount>900", "the entries have no 'values'; they have key_group, key, value"),
        ("user_key=1", "the entries have no 'user_key'"),
        ("value.amount.more=1", "value.amount is of type decimal and has no field 'more'"),
        ("value.by_colour.RED=1", "value.by_colour is of type map and has no field 'RED'; .* text keys of a map only"),
        ("value.either.seconds=1", "has no field 'seconds'; it has the fields text, minutes"),
        ("value.amount>abc", "'abc' is not of type decimal"),
        ("value.amount<inf", "'inf' is not of type decimal"),
        ("value.number=1.5.2", "'1.5.2' is not of type integer"),
        ("value.number>1e999999999", "has at most 5000 digits"),
        ("value.is_late=1", "'1' is not of type bool"),
        ("value.is_late>false", "values of type bool have no order: use = or !="),
        ("value.colour=PINK", "'PINK' is not a constant of .*Colour, which has RED, GREEN"),
        ("value.colour>RED", "have no order"),
        ("value.when>tomorrow", "'tomorrow' is not of type datetime"),
        ("value.id=1", "'1' is not of type UUID"),
        ("value.data=xyz", "'xyz' is not of type bytes"),
        ("value.sub>null", "null has no order"),
        ("value.number=1_000", "'1_000' is not of type integer"),
        ("value.number=\u0661\u0660", "is not of type integer"),
        ('value.number=" 10 "', "' 10 ' is not of type integer"),
        ("value.amount=1_000", "'1_000' is not of type decimal"),
        ("value.ratio=1_0.5", "'1_0.5' is not of type float64"),
        ('value.single=" inf"', "' inf' is not of type float32"),
        ("value.delay=1_0", "'1_0' is not of type timedelta"),
        ("value.time=20240109", "'20240109' is not of type time"),
        ('value.place=["x", "1_0"]', "'1_0' is not of type integer"),
        ("value.sub=5", "is compared by its fields: minutes"),
        ('value.sub={"hours": 1}', "has no field 'hours'; it has the fields minutes"),
        ("value.tags=a", "'a' is not of type list"),
        ("value.tags>1", "have no order"),
        ("value", "is not a condition"),
        ("value." + "`.`." * 60, "is not a condition"),
        ("value.`amount = 3", "is not a condition"),
    ],
)
def test_a_path_or_literal_that_the_schema_does_not_have_is_an_error(
    payments: str, capsys: pytest.CaptureFixture[str], condition: str, message: str
) -> None:
    assert main(["show", payments, "payments", "last", "--json", "--where", condition]) == 64
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(message, captured.err)


def test_lists_and_user_keys_are_compared_as_their_types(payments: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(shown(capsys, payments, "all", "--where", "value=[1, 2]")) == 1
    assert shown(capsys, payments, "all", "--where", "value=[1]") == []
    assert len(shown(capsys, payments, "amounts", "--where", "user_key>2024-04-30")) == 1
    assert shown(capsys, payments, "amounts", "--where", "user_key<2024-05-01") == []
    assert len(shown(capsys, payments, "amounts", "--where", "value>1152921504606846975")) == 1


def test_a_namespace_is_given_as_its_type(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [("a", decimal.Decimal("1.0"), 1), ("a", decimal.Decimal("2"), 2)]
    totals = ValueStateDescriptor("totals", int)
    plan = Plan().add_operator("payments", "string")
    plan = plan.add_state("payments", totals, entries, namespace=decimal.Decimal)
    SavepointWriter.new(tmp_path / "savepoint", max_parallelism=4).write(plan)
    place = str(tmp_path / "savepoint")
    assert [one["value"] for one in shown(capsys, place, "totals", "--namespace", "1")] == [1]
    assert [one["value"] for one in shown(capsys, place, "totals", "--where", "namespace>1.5")] == [2]
    assert main(["show", place, "payments", "totals", "--namespace", "one"]) == 64
    assert "'one' is not of type decimal" in capsys.readouterr().err


def test_a_state_without_namespaces_rejects_a_namespace_filter(
    payments: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", payments, "payments", "last", "--namespace", "eu"]) == 64
    assert "--namespace 'eu': the entries have no 'namespace'" in capsys.readouterr().err


@pytest.mark.extended_after(3)
@pytest.mark.parametrize(
    ("state", "condition", "count"),
    [
        ("timed", f"last_access_ms={NOW_MS}", 20),
        ("seen", f"last_access_ms=[{NOW_MS}]", 0),
        ("by amount", "user_key>=98", 2),
        ("by amount", "value=null", 50),
        ("handled", "value<3", 3),
        ("handled", "subtask>7", 0),
        ("names", "key=all", 2),
        ("names", "value>1", 0),
    ],
)
def test_every_kind_of_state_has_its_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], state: str, condition: str, count: int
) -> None:
    run_job("heap", tmp_path / "job").savepoint(tmp_path / "savepoint")
    assert main(["show", str(tmp_path / "savepoint"), "per shop", state, "--json", "--where", condition]) == 0
    assert len(json.loads(capsys.readouterr().out)) == count
