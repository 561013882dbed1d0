"""Rows with and without kinds and names, and TTL turned on and off."""

from __future__ import annotations

import pickle

import pytest
from attrs import evolve

import typeserializers as ts
from migration import SchemaMigration
from snapshots import (
    FieldCompatibility,
    SerializationError,
    SnapshotFormatError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from snapshots.compatibility import PartsPlan, Plan
from typeserializers.evolution.plans import TimestampPlan

LONG, STRING, INT = ts.LongSerializer(), ts.StringSerializer(), ts.IntSerializer()


def row_snapshot(version: int, serializer: ts.RowSerializer) -> bytes:
    """The snapshot of a row of an older release, without the choice of kinds."""
    data = snapshot_to_bytes(serializer.snapshot_configuration())
    current = bytes.fromhex("000de70400000004")
    start = data.index(current)
    flag = start + len(current)
    return data[:start] + current[:-1] + bytes((version,)) + data[flag + 1 :]


@pytest.mark.parametrize(("version", "kind"), [(1, False), (2, False), (3, True)])
def test_older_row_snapshots_are_read_with_their_layout(version: int, kind: bool) -> None:
    snapshot = snapshot_from_bytes(row_snapshot(version, ts.RowSerializer([LONG])))
    restored = snapshot.restore_serializer()
    assert restored == ts.RowSerializer([LONG], supports_row_kind=kind)
    compatibility = resolve_compatibility(snapshot, ts.RowSerializer([LONG]))
    assert compatibility.is_as_is if kind else compatibility.is_after_migration


def test_an_unknown_row_version_is_rejected() -> None:
    with pytest.raises(SnapshotFormatError, match="outer version 5"):
        snapshot_from_bytes(row_snapshot(5, ts.RowSerializer([LONG])))


def test_row_kinds_on_migrates_and_off_reports_the_loss() -> None:
    with_kind, without = ts.RowSerializer([LONG]), ts.RowSerializer([LONG], supports_row_kind=False)
    on = resolve_compatibility(without.snapshot_configuration(), with_kind)
    off = resolve_compatibility(with_kind.snapshot_configuration(), without)
    assert (on.is_after_migration, off.is_after_migration) == (True, True)
    assert on.issues[0].compatibility is FieldCompatibility.MIGRATE
    assert off.issues[0].compatibility is FieldCompatibility.LOSSY
    deleted = with_kind.from_bytes(with_kind.to_bytes(ts.Row(7, kind=ts.RowKind.DELETE)))
    assert without.from_bytes(without.to_bytes(deleted)) == ts.Row(7)


def test_a_reconfigured_row_keeps_the_names_of_the_new_serializer() -> None:
    import enum

    old = ts.RowSerializer([ts.EnumSerializer(enum.Enum("Kind", ["A", "B"]))], ["before"])
    new = ts.RowSerializer([ts.EnumSerializer(enum.Enum("Kind", ["B", "A"]))], ["after"])
    compatibility = resolve_compatibility(old.snapshot_configuration(), new)
    assert compatibility.reconfigured_serializer.field_names == ("after",)


def test_named_rows_are_ordered_by_name_and_completed_with_none() -> None:
    serializer = ts.RowSerializer([INT, STRING], ["id", "name"])
    read = serializer.from_bytes(serializer.to_bytes(ts.Row.named(name="x")))
    assert read == ts.Row.named(id=None, name="x")
    assert (read["name"], read[0], read.as_dict()) == ("x", None, {"id": None, "name": "x"})
    with pytest.raises(SerializationError, match="has the fields age"):
        serializer.to_bytes(ts.Row.named(age=3))
    with pytest.raises(SerializationError, match="without field_names"):
        ts.RowSerializer([INT, STRING]).to_bytes(ts.Row.named(id=1, name="x"))
    with pytest.raises(SerializationError, match=r"\.name: 5"):
        serializer.to_bytes(ts.Row.named(id=1, name=5))
    with pytest.raises(ValueError, match="names"):
        ts.RowSerializer([INT], ["a", "b"])
    with pytest.raises(KeyError):
        ts.Row(1)["a"]
    with pytest.raises(ValueError, match="no names"):
        ts.Row(1).as_dict()
    assert repr(ts.Row(1, "a", kind=ts.RowKind.UPDATE_AFTER)) == "+U[1, 'a']"
    assert repr(ts.Row.named(a=1)) == "+I[a=1]"
    assert len(ts.Row(1, 2)) == ts.Row(1, 2).arity == 2


@pytest.mark.parametrize(
    ("old", "new", "value", "expected"),
    [
        (LONG, ts.TtlSerializer(LONG), 5, ts.TtlValue(5, 99)),
        (ts.TtlSerializer(LONG), LONG, ts.TtlValue(5, 1), 5),
        (ts.ListSerializer(LONG), ts.ListSerializer(ts.TtlSerializer(LONG)), [5], [ts.TtlValue(5, 99)]),
        (ts.ListSerializer(ts.TtlSerializer(LONG)), ts.ListSerializer(LONG), [ts.TtlValue(5, 1)], [5]),
        (
            ts.MapSerializer(STRING, LONG),
            ts.MapSerializer(STRING, ts.TtlSerializer(LONG)),
            {"a": 5, "b": None},
            {"a": ts.TtlValue(5, 99), "b": None},
        ),
        (
            ts.MapSerializer(STRING, STRING),
            ts.MapSerializer(STRING, ts.TtlSerializer(STRING)),
            {"b": None},
            {"b": None},
        ),
        (
            ts.MapSerializer(STRING, ts.TtlSerializer(LONG)),
            ts.MapSerializer(STRING, LONG),
            {"a": ts.TtlValue(5, 1), "b": None},
            {"a": 5, "b": None},
        ),
    ],
)
def test_ttl_can_be_turned_on_and_off(old, new, value, expected) -> None:
    snapshot = old.snapshot_configuration()
    assert resolve_compatibility(snapshot, new).is_incompatible
    compatibility = ts.resolve_ttl_aware_compatibility(snapshot, new)
    assert compatibility.is_after_migration
    assert compatibility.issues[0].rule in ("ttl-enabled", "ttl-disabled")
    migration: SchemaMigration[object] = SchemaMigration(old, new, accessed_at(99, compatibility.plan))
    assert migration.to_value(old.to_bytes(value)) == expected
    assert new.from_bytes(migration.to_bytes(old.to_bytes(value))) == expected


def accessed_at(now_ms: int, plan: Plan) -> Plan:
    """A plan by which values that get a TTL count as accessed at that time."""
    if isinstance(plan, PartsPlan):
        return PartsPlan(tuple(accessed_at(now_ms, part) for part in plan.parts))
    return evolve(plan, timestamp_ms=now_ms) if isinstance(plan, TimestampPlan) else plan


def test_without_a_ttl_change_the_ordinary_result_applies() -> None:
    ttl = ts.TtlSerializer(LONG)
    assert ts.resolve_ttl_aware_compatibility(ttl.snapshot_configuration(), ttl).is_as_is
    assert ts.resolve_ttl_aware_compatibility(ttl.snapshot_configuration(), ts.TtlSerializer(STRING)).is_incompatible
    assert ts.resolve_ttl_aware_compatibility(LONG.snapshot_configuration(), ts.TtlSerializer(STRING)).is_incompatible
    assert ts.resolve_ttl_aware_compatibility(ttl.snapshot_configuration(), STRING).is_incompatible
    lists = ts.ListSerializer(LONG)
    assert ts.resolve_ttl_aware_compatibility(lists.snapshot_configuration(), lists).is_as_is


def test_a_ttl_aware_snapshot_round_trips_and_restores_its_inner_one() -> None:
    for serializer in (LONG, ts.TtlSerializer(STRING)):
        aware = ts.ttl_aware(serializer.snapshot_configuration())
        data = snapshot_to_bytes(aware)
        read = snapshot_from_bytes(data)
        assert snapshot_to_bytes(read) == data
        assert read.restore_serializer() == serializer
        assert ts.ttl_aware(read) is read
        assert ts.resolve_ttl_aware_compatibility(read, serializer).is_as_is


def test_lists_of_one_layout_adopt_each_other() -> None:
    plain, array_list = ts.ListSerializer(LONG), ts.ArrayListSerializer(LONG)
    assert resolve_compatibility(plain.snapshot_configuration(), array_list).is_as_is
    assert resolve_compatibility(array_list.snapshot_configuration(), plain).is_as_is
    assert resolve_compatibility(plain.snapshot_configuration(), ts.ArrayListSerializer(STRING)).is_incompatible
    assert resolve_compatibility(plain.snapshot_configuration(), ts.SetSerializer(LONG)).is_incompatible


def test_a_nullable_value_keeps_its_layout_when_wrapped_again() -> None:
    for inner in (ts.NullableSerializer(LONG), ts.NullableSerializer(LONG, pad_null_value=True)):
        for pads in (False, True):
            again = ts.NullableSerializer(inner, pad_null_value=pads)
            assert again == inner
            assert [again.to_bytes(value) for value in (None, 5)] == [inner.to_bytes(value) for value in (None, 5)]


def test_a_nullable_snapshot_with_invalid_padding_is_rejected() -> None:
    data = snapshot_to_bytes(ts.NullableSerializer(LONG, pad_null_value=True).snapshot_configuration())
    start = data.index(bytes.fromhex("000de70400000002")) + 8
    for padding in (0, 8):
        changed = snapshot_from_bytes(data[:start] + padding.to_bytes(4, "big") + data[start + 4 :])
        assert changed.restore_serializer().length == (9 if padding else -1)
    for padding in (7, 1 << 30):
        changed = snapshot_from_bytes(data[:start] + padding.to_bytes(4, "big") + data[start + 4 :])
        with pytest.raises(SnapshotFormatError, match="padding"):
            changed.restore_serializer()


def test_a_pair_is_written_as_a_ttl_value() -> None:
    serializer, value = ts.TtlSerializer(STRING), ts.TtlValue("a", 5)
    assert serializer.to_bytes(("a", 5)) == serializer.to_bytes(value)  # type: ignore[arg-type]
    read = serializer.from_bytes(serializer.to_bytes(value))
    assert (type(read), read, read.value, read.last_access_timestamp) == (ts.TtlValue, value, "a", 5)
    copied = pickle.loads(pickle.dumps(value))
    assert (type(copied), copied) == (ts.TtlValue, value)
    for wrong in (("a",), ("a", 5, 5), ["a", 5], "ab"):
        with pytest.raises(SerializationError, match="is not a TtlValue"):
            serializer.to_bytes(wrong)  # type: ignore[arg-type]
