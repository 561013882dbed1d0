"""Flink's own bytes and compatibility results of POJOs, Java records, and containers of them."""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

import attrs
import pytest

import typeserializers as ts
from migration import SchemaMigration
from snapshots import (
    CompatibilityKind,
    CompositeTypeSerializerSnapshot,
    DataInputView,
    UnresolvableSerializerError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between

GOLDEN = pathlib.Path(__file__).parents[2] / "golden" / "flink"
POJO = json.loads((GOLDEN / "pojo.json").read_text())
CASES = {case["id"]: case for case in json.loads((GOLDEN / "pojo-compatibility.json").read_text())}

KINDS = {
    "AS_IS": CompatibilityKind.AS_IS,
    "RECONFIGURED": CompatibilityKind.WITH_RECONFIGURED_SERIALIZER,
    "AFTER_MIGRATION": CompatibilityKind.AFTER_MIGRATION,
    "INCOMPATIBLE": CompatibilityKind.INCOMPATIBLE,
}
NO_KRYO = {name for name, case in CASES.items() if "ryo" in case["old"] or "ryo" in case["new"]}
COVERED = [name for name in CASES if name not in NO_KRYO]
JAVA_ZEROS = {"int": 0, "long": 0, "double": 0.0}


def initial_values(source: list[str]) -> dict[str, dict[str, Any]]:
    """The initial field values of each Java class, including inherited ones."""
    classes: dict[str, dict[str, Any]] = {}
    for text in source:
        record = re.match(r"public record (\w+)\((.*)\)", text)
        if record is not None:
            pairs = [item.split() for item in record[2].split(", ")]
            classes[record[1]] = {name: JAVA_ZEROS.get(hint) for hint, name in pairs}
            continue
        match = re.match(r"public class (\w+)(?: extends (\w+))? \{(.*)\}", text)
        if match is None:
            continue
        fields = dict(classes.get(match[2], {}))
        for hint, name, value in re.findall(r"public (\S+(?:, \S+)?) (\w+)(?: = ([^;]+))?;", match[3]):
            fields[name] = json.loads(value) if value else JAVA_ZEROS.get(hint)
        classes[match[1]] = fields
    return classes


def with_initial_values(serializer: Any, classes: dict[str, dict[str, Any]]) -> Any:
    """The serializer with the defaults of Java's constructors, which no snapshot contains."""
    if isinstance(serializer, ts.PojoSerializer):
        values = classes[serializer.shape.name.rpartition(".")[2]]
        fields = tuple(
            attrs.evolve(
                part,
                serializer=with_initial_values(part.serializer, classes),
                record_field=attrs.evolve(part.record_field, default=values[part.name]),
            )
            for part in serializer.fields
        )
        registered = [with_initial_values(item, classes) for item in serializer.registered_subclasses]
        unregistered = [with_initial_values(item, classes) for item in serializer.unregistered_subclasses]
        shape = attrs.evolve(serializer.shape, fields=fields)
        return ts.PojoSerializer.from_shape(shape, registered, unregistered)
    snapshot = serializer.snapshot_configuration()
    if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
        return serializer
    nested = snapshot.nested_serializers(serializer)
    return snapshot.create_outer_serializer([with_initial_values(item, classes) for item in nested])


def old_snapshot(case: dict[str, Any]) -> Any:
    return snapshot_from_bytes(bytes.fromhex(case["oldSnapshotHex"]))


def new_serializer(case: dict[str, Any]) -> Any:
    restored = snapshot_from_bytes(bytes.fromhex(case["newSnapshotHex"])).restore_serializer()
    return with_initial_values(restored, initial_values(case["newSource"]))


def values_in(data: bytes, serializer: ts.TypeSerializer[Any]) -> list[Any]:
    source, values = DataInputView(data), []
    while source.remaining:
        values.append(serializer.deserialize(source))
    return values


def described(snapshot: Any) -> Any:
    """A POJO snapshot as data; Flink keeps unregistered subclasses in a hash map without defined order."""
    pojo = snapshot.pojo
    parts = [[(part.name, snapshot_to_bytes(part.snapshot)) for part in pojo.fields]]
    parts.append([(part.name, described(part.snapshot)) for part in pojo.registered])
    parts.append(sorted((part.name, described(part.snapshot)) for part in pojo.unregistered))
    return pojo.name, parts


@pytest.mark.parametrize("name", COVERED)
def test_the_compatibility_equals_that_of_flink(name: str) -> None:
    case = CASES[name]
    compatibility = resolve_compatibility(old_snapshot(case), new_serializer(case))
    # Flink reports a removed constant as compatible, and throws when the serializer is restored.
    expected = "INCOMPATIBLE" if name == "pojo-enum-field-removed-constant" else case["verdict"]
    assert compatibility.kind is KINDS[expected], str(compatibility)
    assert compatibility.is_as_is or (compatibility.issues and all(issue.reason for issue in compatibility.issues))


@pytest.mark.parametrize("name", COVERED)
def test_both_snapshots_round_trip_to_the_byte(name: str) -> None:
    for key in ("oldSnapshotHex", "newSnapshotHex"):
        data = bytes.fromhex(CASES[name][key])
        snapshot = snapshot_from_bytes(data)
        assert snapshot_to_bytes(snapshot) == data
        assert snapshot_to_bytes(snapshot.restore_serializer().snapshot_configuration()) == data


@pytest.mark.parametrize("name", [name for name in COVERED if "rewrittenHex" in CASES[name]])
def test_old_data_is_rewritten_like_flink(name: str) -> None:
    case = CASES[name]
    compatibility, serializer = resolve_compatibility(old_snapshot(case), new_serializer(case)), new_serializer(case)
    if compatibility.is_with_reconfigured_serializer:
        serializer = compatibility.reconfigured_serializer
        assert described(serializer.snapshot_configuration()) == described(
            snapshot_from_bytes(bytes.fromhex(case["reconfiguredSnapshotHex"]))
        )
    values = values_in(bytes.fromhex(case["oldDataHex"]), serializer)
    assert b"".join(map(serializer.to_bytes, values)).hex() == case["rewrittenHex"]


@pytest.mark.parametrize("name", [name for name in COVERED if "migratedHex" in CASES[name]])
def test_old_data_is_migrated_like_flink(name: str) -> None:
    case = CASES[name]
    old, new = old_snapshot(case).restore_serializer(), new_serializer(case)
    migration: SchemaMigration[Any] = migration_between(old, new)
    data, position, migrated, values = bytes.fromhex(case["oldDataHex"]), 0, b"", []
    while position < len(data):
        start = position
        encoded, position = migration.transcode(data, position)
        values.append(migration.read(data, start)[0])
        migrated += encoded
    assert migrated.hex() == case["migratedHex"]
    assert b"".join(map(new.to_bytes, values)) == migrated


def test_a_removed_component_of_a_java_record_is_migrated_where_flink_fails() -> None:
    case = CASES["record-field-removed"]
    migration: SchemaMigration[Any] = migration_between(old_snapshot(case), new_serializer(case))
    data, position, values = bytes.fromhex(case["oldDataHex"]), 0, []
    while position < len(data):
        value, position = migration.read(data, position)
        values.append(None if value is None else (value.a, value.c))
    old = [None if item is None else (item["fields"]["a"], item["fields"]["c"]) for item in case["oldValues"]]
    assert values == old


@pytest.mark.parametrize("name", sorted(NO_KRYO))
def test_kryo_round_trips_and_is_checked(name: str) -> None:
    case = CASES[name]
    snapshots = {}
    for key in ("oldSnapshotHex", "newSnapshotHex"):
        snapshots[key] = snapshot_from_bytes(bytes.fromhex(case[key]))
        assert snapshot_to_bytes(snapshots[key]).hex() == case[key]
    old = snapshots["oldSnapshotHex"]
    if isinstance(old, ts.KryoSerializerSnapshot):
        for new in (ts.StringSerializer(), ts.NullableSerializer(ts.StringSerializer()), ts.serializer_for(int | str)):
            compatibility = resolve_compatibility(old, new)
            assert compatibility.is_incompatible
            assert old.java_class in str(compatibility)
            assert "In Flink, give" in str(compatibility)
        with pytest.raises(UnresolvableSerializerError, match="Kryo"):
            old.restore_serializer()


def test_every_case_is_tested() -> None:
    assert (len(CASES), len(NO_KRYO)) == (67, 4)


def test_a_flink_pojo_round_trips_without_any_class() -> None:
    snapshot = snapshot_from_bytes(bytes.fromhex(POJO["snapshotHex"]))
    serializer = snapshot.restore_serializer()
    assert snapshot_to_bytes(serializer.snapshot_configuration()).hex() == POJO["snapshotHex"]
    for entry in POJO["values"]:
        data = bytes.fromhex(entry["hex"])
        value = serializer.from_bytes(data)
        assert serializer.to_bytes(value) == data
        if value is not None:
            fields = entry["value"]["fields"]
            assert value.longField == fields["longField"]
            assert value.listField == fields["listField"]
            assert (value.nested is None) == (fields["nested"] is None)
            assert fields["nested"] is None or value.nested.label == fields["nested"]["fields"]["label"]
