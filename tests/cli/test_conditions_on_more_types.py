"""Conditions on times of Java, rows, Avro, Arrow, unions, recursive records and pickles."""

from __future__ import annotations

import datetime
import decimal
import json
import uuid
from pathlib import Path
from typing import Any, Literal

import attrs
import pyarrow as pa
import pytest

import typeserializers as ts
from statebackend import ValueStateDescriptor
from statebackend.cli.main import main
from statebackend.savepoint.rewrite import Plan, SavepointWriter

UTC = datetime.timezone.utc
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "paid", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["NEW", "OLD"]}},
        {"name": "next", "type": ["null", "Order"]},
    ],
}
ARROW = pa.struct([("amount", pa.decimal128(9, 2)), ("at", pa.timestamp("us", "UTC")), ("n", pa.list_(pa.int64()))])


@attrs.frozen
class Chain:
    number: int
    following: Chain | None = None


def order(amount: str, *, following: Any = None) -> dict[str, Any]:
    paid = datetime.datetime(2024, 5, 1, tzinfo=UTC)
    return {"amount": decimal.Decimal(amount), "paid": paid, "kind": "NEW", "next": following}


MATCHES: list[tuple[Any, Any, list[str], list[str]]] = [
    (
        ts.LocalDateSerializer(),
        ts.LocalDate(2024, 5, 9),
        ["value=2024-05-09", "value<2024-05-10", "value.year=2024", "value.day!=10"],
        ["value>2024-05-10", "value.month=6"],
    ),
    (
        ts.SetSerializer(ts.StringSerializer()),
        {"a", "b"},
        ['value=["b", "a"]', 'value!=["a"]'],
        ['value=["a"]', 'value=["a", "b", "c"]'],
    ),
    (
        ts.ListSerializer(
            ts.NullableSerializer(
                ts.EitherSerializer(ts.StringSerializer(), ts.NullableSerializer(ts.LongSerializer()))
            )
        ),
        [None],
        ["value=[null]"],
        ['value=[{"value": null}]'],
    ),
    (
        ts.LocalTimeSerializer(),
        ts.LocalTime(9, 30, 0, 1),
        ["value>09:30", "value=09:30:00.000000001", "value.nano=1"],
        ["value=09:30", "value>10:00"],
    ),
    (
        ts.LocalDateTimeSerializer(),
        ts.LocalDateTime(2024, 5, 9, 10),
        ["value=2024-05-09T10:00", "value<2024-05-09T10:00:00.000000001"],
        ["value>2024-05-10"],
    ),
    (
        ts.InstantSerializer(),
        ts.Instant(1_714_521_600, 5),
        ["value>2024-05-01T00:00Z", "value=2024-05-01T02:00:00.000000005+02:00", "value.epoch_second>1700000000"],
        ["value=2024-05-01T00:00Z"],
    ),
    (
        ts.SqlTimestampSerializer(),
        ts.SqlTimestamp(1_714_521_600_001, 1_000_000),
        ["value=2024-05-01T00:00:00.001"],
        ["value=2024-05-01"],
    ),
    (ts.DateSerializer(), ts.Date(-1), ["value<1970-01-01", "value.epoch_milli=-1"], ["value>=1970-01-01"]),
    (ts.SqlDateSerializer(), ts.SqlDate(86_400_001), ["value=1970-01-02"], ["value>1970-01-02"]),
    (ts.SqlTimeSerializer(), ts.SqlTime(-1), ["value=23:59:59.999"], ["value<23:59:59.999"]),
    (
        ts.RowSerializer([ts.BigDecSerializer(), ts.StringSerializer()]),
        ts.Row(decimal.Decimal("10"), None),
        ["value.f0>9", "value.f1=null", 'value={"f0": 10.0}'],
        ["value.f0>10", "value.f1!=null"],
    ),
    (
        ts.RowSerializer([ts.BigDecSerializer(), ts.StringSerializer()]),
        ts.Row(decimal.Decimal("10"), "7"),
        ["value.f0>9", "value.f1=7"],
        ["value.f0<9"],
    ),
    (
        ts.AvroSerializer(AVRO),
        order("10.00", following=order("900.00")),
        ["value.amount>9", "value.paid=2024-05-01", "value.kind=NEW", "value.next.amount>99", "value.next.next=null"],
        ["value.amount>10", "value.next.next!=null", "value.next.next.amount<1", "value.kind!=NEW"],
    ),
    (
        ts.ArrowStructSerializer(ARROW),
        {"amount": decimal.Decimal("10.00"), "at": datetime.datetime(2024, 5, 1, tzinfo=UTC), "n": [1, 2]},
        ["value.amount>9", "value.at=2024-05-01T02:00+02:00", "value.n=[1, 2]"],
        ["value.amount<9", "value.n=[1]"],
    ),
    (
        int | str | uuid.UUID,
        100,
        ["value>9", "value=1e2", "value!=text"],
        ["value=1e3", 'value<"1000a"', "value=null"],
    ),
    (int | str | uuid.UUID, "100", ['value<"1000a"', "value=100", "value!=null"], ["value=1e2", "value>9"]),
    (
        Chain,
        Chain(1, Chain(20)),
        ["value.following.number>3", "value.following.following.following.number=null"],
        ["value.following.following!=null"],
    ),
    (Literal["a", "b"], "a", ["value=a", "value<b"], ["value=b"]),
    (bytes, b"\xff", ["value>00", "value=FF"], ["value<fe"]),
]


@pytest.mark.parametrize(("serializer", "value", "holding", "failing"), MATCHES, ids=lambda one: type(one).__name__)
def test_values_are_compared_as_their_types(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    serializer: Any,
    value: Any,
    holding: list[str],
    failing: list[str],
) -> None:
    place = str(tmp_path / "savepoint")
    plan = Plan().add_operator("one", "string").add_state("one", ValueStateDescriptor("it", serializer), [("a", value)])
    SavepointWriter.new(place, max_parallelism=4).write(plan)
    counts = {}
    for condition in (*holding, *failing):
        assert main(["show", place, "one", "it", "--json", "--where", condition]) == 0, capsys.readouterr().err
        counts[condition] = len(json.loads(capsys.readouterr().out))
    assert counts == dict.fromkeys(holding, 1) | dict.fromkeys(failing, 0)
    assert main(["show", place, "one", "it", "--where", "value.no_such_field=1"]) == 64


def test_a_path_into_a_schema_of_exponential_size_is_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    depth = 12
    schema: Any = {"type": "record", "name": f"R{depth}", "fields": [{"name": "n", "type": "long"}]}
    value: Any = {"n": 7}
    for level in reversed(range(depth)):
        schema = {
            "type": "record",
            "name": f"R{level}",
            "fields": [{"name": "a", "type": schema}, {"name": "b", "type": ["null", f"R{level + 1}"]}],
        }
        value = {"a": value, "b": None}
    place = str(tmp_path / "savepoint")
    state = ValueStateDescriptor("it", ts.AvroSerializer(schema))
    SavepointWriter.new(place, max_parallelism=4).write(
        Plan().add_operator("one", "string").add_state("one", state, [("a", value)])
    )
    path = ".".join(["value", *"a" * depth, "n"])
    assert main(["show", place, "one", "it", "--json", "--where", f"{path}=7"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 1
