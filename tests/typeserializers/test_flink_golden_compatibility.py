"""Every compatibility result of Flink, and its consequences, except for two deliberate differences."""

from __future__ import annotations

import enum
import re
from typing import Any

import flink_values
import pytest

import typeserializers as ts
from snapshots import (
    CompatibilityKind,
    DataInputView,
    TypeSerializerSchemaCompatibility,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)

KINDS = {
    "AS_IS": CompatibilityKind.AS_IS,
    "RECONFIGURED": CompatibilityKind.WITH_RECONFIGURED_SERIALIZER,
    "AFTER_MIGRATION": CompatibilityKind.AFTER_MIGRATION,
    "INCOMPATIBLE": CompatibilityKind.INCOMPATIBLE,
    # Flink throws when an enum constant is removed. Here that is a compatibility result like any other.
    "EXCEPTION": CompatibilityKind.INCOMPATIBLE,
}

CASES = {case["id"]: case for case in flink_values.COMPATIBILITY}

# Flink misreads these values across composites.
REWRITTEN = [name for name, case in CASES.items() if "rewrittenHex" in case and case["group"] != "cross-composite"]


def enum_of(source: list[str]) -> type[enum.Enum]:
    constants = re.findall(r"\w+", source[0].partition("{")[2])
    return enum.Enum("E", constants)


def new_serializer(case: dict[str, Any]) -> ts.TypeSerializer[Any]:
    """The serializer of the new snapshot; enums are created from Java's source."""
    if "newSource" in case:
        serializer: ts.TypeSerializer[Any] = ts.EnumSerializer(enum_of(case["newSource"]), name="golden.evo.E")
        return ts.ListSerializer(serializer) if case["new"].startswith("List") else serializer
    return snapshot_from_bytes(bytes.fromhex(case["newSnapshotHex"])).restore_serializer()


def compatibility_of(case: dict[str, Any]) -> TypeSerializerSchemaCompatibility[Any]:
    old = snapshot_from_bytes(bytes.fromhex(case["oldSnapshotHex"]))
    resolve = ts.resolve_ttl_aware_compatibility if case.get("ttlAware") else resolve_compatibility
    return resolve(old, new_serializer(case))


def values_in(data: bytes, serializer: ts.TypeSerializer[Any]) -> list[Any]:
    source, values = DataInputView(data), []
    while source.remaining:
        values.append(serializer.deserialize(source))
    return values


@pytest.mark.parametrize("name", CASES)
def test_the_compatibility_equals_that_of_flink(name: str) -> None:
    case = CASES[name]
    compatibility = compatibility_of(case)
    # Flink accepts composites of another class, and misreads the bytes.
    expected = CompatibilityKind.INCOMPATIBLE if case["group"] == "cross-composite" else KINDS[case["verdict"]]
    assert compatibility.kind is expected, str(compatibility)
    if expected is not CompatibilityKind.AS_IS:
        assert compatibility.issues
        assert all(issue.reason for issue in compatibility.issues)


@pytest.mark.parametrize("name", CASES)
def test_both_snapshots_round_trip_to_the_byte(name: str) -> None:
    case = CASES[name]
    for data in (bytes.fromhex(case["oldSnapshotHex"]), bytes.fromhex(case["newSnapshotHex"])):
        snapshot = snapshot_from_bytes(data)
        assert snapshot_to_bytes(snapshot) == data
        assert snapshot_to_bytes(snapshot.restore_serializer().snapshot_configuration()) == data
    assert snapshot_to_bytes(new_serializer(case).snapshot_configuration()).hex() == case["newSnapshotHex"]


@pytest.mark.parametrize("name", REWRITTEN)
def test_old_data_is_read_and_rewritten_like_flink(name: str) -> None:
    case = CASES[name]
    compatibility, data = compatibility_of(case), bytes.fromhex(case["oldDataHex"])
    serializer = new_serializer(case)
    if compatibility.is_with_reconfigured_serializer:
        serializer = compatibility.reconfigured_serializer
        assert snapshot_to_bytes(serializer.snapshot_configuration()).hex() == case["reconfiguredSnapshotHex"]
    values = values_in(data, serializer)
    assert b"".join(map(serializer.to_bytes, values)).hex() == case["rewrittenHex"]
    if "newSource" in case:
        return
    assert values == flink_values.value_of(case["oldValues"]) or case["new"] == "byte[]"


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if "enum" in case["group"]])
def test_the_constants_are_equal_after_reconfiguration(name: str) -> None:
    case = CASES[name]
    compatibility = compatibility_of(case)
    if compatibility.is_incompatible:
        old, new = enum_of(case["oldSource"]), enum_of(case["newSource"])
        removed = [constant for constant in old.__members__ if constant not in new.__members__]
        assert removed
        assert all(constant in str(compatibility) for constant in removed)
        return
    serializer = compatibility.reconfigured_serializer if not compatibility.is_as_is else new_serializer(case)
    (values,) = [values_in(bytes.fromhex(case["oldDataHex"]), serializer)]
    flat = values[0] if isinstance(values[0], list) else values
    expected = flink_values.value_of(case["oldValues"])
    assert [constant.name for constant in flat] == (expected[0] if isinstance(expected[0], list) else expected)


def test_every_case_of_our_groups_is_tested() -> None:
    assert len(CASES) == 70
