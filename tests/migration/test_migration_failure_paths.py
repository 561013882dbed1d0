"""The reported path of a failed migration is correct after nulls, times and valid parts."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from snapshots.compatibility import PartsPlan, Plan
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.evolution.plans import BecameOptionalPlan, NeverNullPlan, TimestampPlan, TimestampRemovalPlan
from typeserializers.evolution.record_evolution import resolve_part

BYTES, TEXT, LONG = ts.BytesSerializer(), ts.StringSerializer(), ts.LongSerializer()
BAD = b"\xff"


def plan_of(old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any]) -> Plan:
    snapshot: TypeSerializerSnapshot[Any] = old.snapshot_configuration()
    return resolve_part(snapshot, new).plan


DECODED = plan_of(BYTES, TEXT)

CASES = [
    (ts.MapSerializer(LONG, BYTES), ts.MapSerializer(LONG, TEXT), None, {1: None, 2: b"a", 3: BAD}, r"\[3\]: "),
    (ts.MapSerializer(BYTES, LONG), ts.MapSerializer(TEXT, LONG), None, {b"a": 1, BAD: None}, "<key>: "),
    (ts.TupleSerializer([BYTES, BYTES]), ts.TupleSerializer([TEXT, TEXT]), None, (b"a", BAD), r"\[1\]: "),
    (
        ts.ListSerializer(ts.TtlSerializer(BYTES)),
        ts.ListSerializer(ts.TtlSerializer(TEXT)),
        None,
        [ts.TtlValue(b"a", 1), ts.TtlValue(BAD, 2)],
        r"\[1\]: ",
    ),
    (
        ts.ListSerializer(BYTES),
        ts.ListSerializer(ts.TtlSerializer(TEXT)),
        PartsPlan((TimestampPlan(DECODED, 7),)),
        [b"a", BAD],
        r"\[1\]: ",
    ),
    (
        ts.ListSerializer(ts.TtlSerializer(BYTES)),
        ts.ListSerializer(TEXT),
        PartsPlan((TimestampRemovalPlan(DECODED),)),
        [ts.TtlValue(b"a", 1), ts.TtlValue(BAD, 2)],
        r"\[1\]: ",
    ),
    (
        ts.ListSerializer(ts.NullableSerializer(ts.TtlSerializer(BYTES))),
        ts.ListSerializer(TEXT),
        PartsPlan((NeverNullPlan(TimestampRemovalPlan(DECODED)),)),
        [ts.TtlValue(b"a", 1), ts.TtlValue(BAD, 2)],
        r"\[1\]: ",
    ),
    (
        ts.ListSerializer(BYTES),
        ts.ListSerializer(ts.NullableSerializer(ts.TtlSerializer(TEXT))),
        PartsPlan((BecameOptionalPlan(TimestampPlan(DECODED, 7)),)),
        [b"a", BAD],
        r"\[1\]: ",
    ),
]


@pytest.mark.parametrize(("old", "new", "plan", "value", "place"), CASES)
def test_the_failing_part_is_named(old: Any, new: Any, plan: Plan | None, value: Any, place: str) -> None:
    migration = SchemaMigration(old, new, plan or plan_of(old, new))
    for convert in (migration.to_bytes, migration.to_value):
        with pytest.raises(MigrationError, match=place + "UnicodeDecodeError.*the old value is"):
            convert(old.to_bytes(value))


@pytest.mark.parametrize(("old", "new", "plan", "value", "place"), CASES)
def test_both_forms_agree_without_failures(old: Any, new: Any, plan: Plan | None, value: Any, place: str) -> None:
    migration = SchemaMigration(old, new, plan or plan_of(old, new))
    data = old.to_bytes(value).replace(BAD, b"z")
    assert migration.to_bytes(data) == new.to_bytes(migration.to_value(data))
    assert new.from_bytes(migration.to_bytes(data)) == migration.to_value(data)


def test_values_that_get_a_time_need_one() -> None:
    migration = SchemaMigration(BYTES, ts.TtlSerializer(TEXT), TimestampPlan(DECODED))
    with pytest.raises(ValueError, match="no timestamp_ms"):
        migration.to_bytes(BYTES.to_bytes(b"a"))
    dated = SchemaMigration(BYTES, ts.TtlSerializer(TEXT), attrs.evolve(TimestampPlan(DECODED), timestamp_ms=5))
    assert dated.to_value(BYTES.to_bytes(b"a")) == ts.TtlValue("a", 5)
