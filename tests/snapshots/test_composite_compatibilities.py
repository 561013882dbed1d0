"""How the compatibility results of the parts become the result of the composite."""

from __future__ import annotations

import enum
import itertools

import pytest

import typeserializers as ts
from snapshots import (
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    SnapshotFormatError,
    TypeSerializerSchemaCompatibility,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
    worst_kind,
)
from snapshots.compatibility_report import compatibility_tree, split_path

LONG = ts.LongSerializer()
KINDS = list(CompatibilityKind)

OLD_ENUM, NEW_ENUM = enum.Enum("Kind", ["A"]), enum.Enum("Kind", ["B", "A"])

# For each compatibility result, an old and a new serializer with that result.
PARTS = {
    CompatibilityKind.AS_IS: (LONG, LONG),
    CompatibilityKind.WITH_RECONFIGURED_SERIALIZER: (ts.EnumSerializer(OLD_ENUM), ts.EnumSerializer(NEW_ENUM)),
    CompatibilityKind.AFTER_MIGRATION: (ts.RowSerializer([LONG], supports_row_kind=False), ts.RowSerializer([LONG])),
    CompatibilityKind.INCOMPATIBLE: (LONG, ts.IntSerializer()),
}


@pytest.mark.parametrize("kinds", list(itertools.product(KINDS, repeat=2)))
def test_the_worst_part_decides(kinds: tuple[CompatibilityKind, ...]) -> None:
    old = ts.TupleSerializer([PARTS[kind][0] for kind in kinds])
    new = ts.TupleSerializer([PARTS[kind][1] for kind in kinds])
    compatibility = resolve_compatibility(old.snapshot_configuration(), new)
    assert compatibility.kind is max(kinds)
    paths = {issue.path for issue in compatibility.issues}
    assert paths == {f"[{index}]" for index, kind in enumerate(kinds) if kind is not CompatibilityKind.AS_IS}
    if compatibility.is_with_reconfigured_serializer:
        reconfigured = compatibility.reconfigured_serializer
        value = tuple(NEW_ENUM["A"] if kind is not CompatibilityKind.AS_IS else 1 for kind in kinds)
        before = tuple(OLD_ENUM["A"] if kind is not CompatibilityKind.AS_IS else 1 for kind in kinds)
        assert reconfigured.from_bytes(old.to_bytes(before)) == value


def test_the_outer_check_counts_like_a_part() -> None:
    old = ts.RowSerializer([ts.EnumSerializer(OLD_ENUM)], supports_row_kind=False)
    new = ts.RowSerializer([ts.EnumSerializer(NEW_ENUM)])
    compatibility = resolve_compatibility(old.snapshot_configuration(), new)
    assert compatibility.is_after_migration
    assert {issue.compatibility for issue in compatibility.issues} == {
        FieldCompatibility.MIGRATE,
        FieldCompatibility.RECONFIGURE,
    }


COMPOSITES = [
    ts.ListSerializer(LONG),
    ts.SetSerializer(LONG),
    ts.FrozenSetSerializer(LONG),
    ts.MapSerializer(LONG, LONG),
    ts.TupleSerializer([LONG, LONG]),
    ts.EitherSerializer(LONG, LONG),
    ts.UnionSerializer([ts.BytesSerializer(), ts.StringSerializer()]),
    ts.GenericArraySerializer(LONG),
    ts.NullableSerializer(LONG),
    ts.RowSerializer([LONG, LONG]),
    ts.TimerSerializer(LONG, LONG),
    ts.TtlSerializer(LONG),
    LONG,
]


@pytest.mark.parametrize(("old", "new"), list(itertools.permutations(COMPOSITES, 2)))
def test_a_composite_of_another_class_is_never_accepted(old: ts.TypeSerializer, new: ts.TypeSerializer) -> None:
    compatibility = resolve_compatibility(old.snapshot_configuration(), new)
    assert compatibility.is_incompatible
    assert old.type_name in str(compatibility) or type(old).__name__ in str(compatibility)
    assert new.type_name in str(compatibility) or type(new).__name__ in str(compatibility)


# A row may have no fields. All other composites need at least one part.
@pytest.mark.parametrize("serializer", [part for part in COMPOSITES[:-1] if not isinstance(part, ts.RowSerializer)])
def test_a_snapshot_with_the_wrong_number_of_parts_is_rejected(serializer: ts.TypeSerializer) -> None:
    data = snapshot_to_bytes(serializer.snapshot_configuration())
    frame = bytes.fromhex("001457fd00000001")
    cut = data[: data.index(frame) + len(frame)] + bytes(4)
    with pytest.raises(SnapshotFormatError):
        snapshot_from_bytes(cut).restore_serializer()


@pytest.mark.parametrize("fields", [1, 3])
def test_another_number_of_fields_is_incompatible(fields: int) -> None:
    old = ts.TupleSerializer([LONG, LONG]).snapshot_configuration()
    compatibility = resolve_compatibility(old, ts.TupleSerializer([LONG] * fields))
    assert compatibility.is_incompatible
    assert [issue.rule for issue in compatibility.issues] == ["nested-count"]
    assert f"the state has 2 nested serializers, and the new serializer has {fields}" in str(compatibility)


def test_a_frame_of_another_format_is_rejected() -> None:
    data = snapshot_to_bytes(ts.ListSerializer(LONG).snapshot_configuration())
    for other in ("000de703", "000de705"):
        with pytest.raises(SnapshotFormatError, match="911108"):
            snapshot_from_bytes(data.replace(bytes.fromhex("000de704"), bytes.fromhex(other)))
    for other in ("001457fc", "001457fe"):
        with pytest.raises(SnapshotFormatError, match="1333245"):
            snapshot_from_bytes(data.replace(bytes.fromhex("001457fd"), bytes.fromhex(other)))
    nested = bytes.fromhex("001457fd00000001")
    for version in (0, 2):
        with pytest.raises(SnapshotFormatError, match="the version of the nested snapshots"):
            snapshot_from_bytes(data.replace(nested, nested[:-1] + bytes((version,))))
    outer = bytes.fromhex("000de70400000001")
    for version in (0, 2):
        with pytest.raises(SnapshotFormatError, match=f"outer version {version}"):
            snapshot_from_bytes(data.replace(outer, outer[:-1] + bytes((version,))))


@pytest.mark.parametrize("version", [1, 2])
def test_a_composite_without_a_frame_is_rejected_with_advice(version: int) -> None:
    name = b"ListSerializerSnapshot"
    data = snapshot_to_bytes(ts.ListSerializer(LONG).snapshot_configuration())
    place = data.index(name) + len(name)
    assert data[place : place + 4] == b"\0\0\0\3"
    with pytest.raises(SnapshotFormatError, match=f"version {version} of a composite snapshot has no frame"):
        snapshot_from_bytes(data[: place + 3] + bytes([version]) + data[place + 4 :])


def test_a_result_has_a_serializer_exactly_if_it_reconfigures() -> None:
    with pytest.raises(ValueError, match="a reconfigured serializer: only"):
        TypeSerializerSchemaCompatibility(CompatibilityKind.WITH_RECONFIGURED_SERIALIZER)
    with pytest.raises(ValueError, match="a reconfigured serializer: only"):
        TypeSerializerSchemaCompatibility(CompatibilityKind.AS_IS, (), LONG)
    with pytest.raises(ValueError, match="has no reconfigured"):
        _ = TypeSerializerSchemaCompatibility.compatible_as_is().reconfigured_serializer
    assert worst_kind([]) is CompatibilityKind.AS_IS


def test_an_incompatible_result_does_not_only_merge_values() -> None:
    issue = CompatibilityIssue("", FieldCompatibility.MIGRATE, "custom", "two constants became one", merges_values=True)
    assert TypeSerializerSchemaCompatibility.compatible_after_migration([issue]).only_merges_values
    assert not TypeSerializerSchemaCompatibility.incompatible(issue).only_merges_values


def test_a_result_is_printed_and_available_as_data() -> None:
    issue = CompatibilityIssue(".a", FieldCompatibility.LOSSY, "field-removed", "it is gone", "Declare a rename").below(
        "[]"
    )
    compatibility = TypeSerializerSchemaCompatibility.compatible_after_migration([issue])
    assert str(compatibility) == (
        "compatible after migration\n  [].a: removed (data loss) [field-removed] it is gone. Declare a rename"
    )
    data = compatibility.to_dict()
    assert data["kind"] == "AFTER_MIGRATION"
    assert data["issues"] == [
        {
            "path": "[].a",
            "compatibility": "LOSSY",
            "rule": "field-removed",
            "reason": "it is gone",
            "fix": "Declare a rename",
        }
    ]
    assert compatibility.with_compatibility(FieldCompatibility.LOSSY) == (issue,)


def test_an_invalid_path_is_one_node_in_the_tree() -> None:
    assert split_path(".legs[].origin{key}<left>") == [".legs", "[]", ".origin", "{key}", "<left>"]
    assert split_path("odd.name") == ["odd.name"]
    assert split_path(".a odd") == [".a odd"]
    assert split_path(".a[x odd") == [".a", "[x odd"]
    assert split_path("") == []


def test_issues_and_unchanged_fields_at_one_path_share_its_node() -> None:
    issues = [
        CompatibilityIssue(".legs[].origin", FieldCompatibility.MIGRATE, "first", "reason"),
        CompatibilityIssue(".legs[].target", FieldCompatibility.LOSSY, "second", "reason"),
        CompatibilityIssue(".legs[].origin", FieldCompatibility.AS_IS, "third", "reason"),
    ]
    compatibility = TypeSerializerSchemaCompatibility(
        CompatibilityKind.AFTER_MIGRATION, tuple(issues), unchanged=(".legs[].number", ".delay")
    )
    root = compatibility_tree(compatibility)
    assert list(root.children) == [".legs", ".delay"]
    inside = root.children[".legs"].children["[]"]
    assert list(inside.children) == [".number", ".origin", ".target"]
    assert [issue.rule for issue in inside.children[".origin"].issues] == ["first", "third"]
    assert inside.children[".origin"].path == ".legs[].origin"
    worst = {name: node.worst for name, node in inside.children.items()}
    assert worst == {
        ".number": FieldCompatibility.AS_IS,
        ".origin": FieldCompatibility.MIGRATE,
        ".target": FieldCompatibility.LOSSY,
    }
    assert (root.worst, root.children[".delay"].worst) == (FieldCompatibility.LOSSY, FieldCompatibility.AS_IS)
