"""Allowed changes of an enum, and the migration of old bytes."""

from __future__ import annotations

import enum

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import typeserializers as ts
from migration import SchemaMigration
from snapshots import (
    DataInputView,
    DataOutputView,
    FieldCompatibility,
    SnapshotFormatError,
    StateFormatError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)


def enum_of(*names: str, name: str = "Colour") -> type[enum.Enum]:
    return enum.Enum(name, list(names))


def compatibility_of(old: list[str], new: type[enum.Enum]):
    written = snapshot_to_bytes(ts.EnumSerializer(enum_of(*old), name="Colour").snapshot_configuration())
    return resolve_compatibility(snapshot_from_bytes(written), ts.EnumSerializer(new, name="Colour"))


def migrated(old: list[str], new: type[enum.Enum]) -> list[enum.Enum]:
    """Returns the new constant of each old constant, read from bytes that were migrated."""
    written = ts.EnumSerializer(enum_of(*old), name="Colour")
    after = ts.EnumSerializer(new, name="Colour")
    compatibility = compatibility_of(old, new)
    assert compatibility.is_after_migration
    migration: SchemaMigration[enum.Enum] = SchemaMigration(written, after, compatibility.plan)
    return [after.from_bytes(migration.to_bytes(written.to_bytes(constant))) for constant in written.enum_class]


names = st.lists(st.sampled_from("ABCDEFG"), unique=True, min_size=1)


@given(old=names, new=names)
def test_the_compatibility_describes_the_effect_on_the_bytes(old: list[str], new: list[str]) -> None:
    before, after = enum_of(*old), enum_of(*new)
    compatibility = compatibility_of(old, after)
    written = [ts.EnumSerializer(before).to_bytes(constant) for constant in before]
    removed = [name for name in old if name not in new]
    assert compatibility.is_incompatible == bool(removed)
    assert compatibility.is_as_is == (old == new)
    if removed:
        assert all(name in str(compatibility) for name in removed)
        return
    serializer = ts.EnumSerializer(after) if compatibility.is_as_is else compatibility.reconfigured_serializer
    assert [serializer.from_bytes(data).name for data in written] == old
    assert [serializer.to_bytes(after[name]) for name in old] == written
    assert all(serializer.from_bytes(serializer.to_bytes(constant)) is constant for constant in after)
    # From now on, the reconfigured order is written.
    assert resolve_compatibility(serializer.snapshot_configuration(), serializer).is_as_is


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ("ABC", "ABC", []),
        ("ABC", "BAC", ["enum-constants-reordered"]),
        ("ABC", "ABCD", ["enum-constants-added"]),
        ("ABC", "DCBA", ["enum-constants-added"]),
    ],
)
def test_a_result_names_the_changes(old: str, new: str, rules: list[str]) -> None:
    compatibility = compatibility_of(list(old), enum_of(*new))
    assert [issue.rule for issue in compatibility.issues] == rules
    assert {issue.compatibility for issue in compatibility.issues} <= {FieldCompatibility.RECONFIGURE}


def test_a_removed_constant_similar_to_a_new_one_has_a_hint() -> None:
    compatibility = compatibility_of(["CRIMSON", "GREEN"], enum_of("CRIMSONS", "GREEN"))
    (issue,) = compatibility.issues
    assert (issue.compatibility, issue.rule) == (FieldCompatibility.REJECT, "enum-constants-removed")
    assert "CRIMSON" in issue.reason
    assert "keep CRIMSON as an alias" in issue.fix


def test_an_alias_declares_a_rename() -> None:
    class Colour(enum.Enum):
        CRIMSON = 1
        RED = CRIMSON
        GREEN = 2

    compatibility = compatibility_of(["GREEN", "RED"], Colour)
    serializer = compatibility.reconfigured_serializer
    assert [issue.rule for issue in compatibility.issues] == ["enum-constant-renamed"]
    assert serializer.from_bytes(b"\0\0\0\1") is Colour.CRIMSON
    assert serializer.to_bytes(Colour.CRIMSON) == b"\0\0\0\1"
    assert serializer.constants == ("GREEN", "CRIMSON")


def test_two_constants_merged_into_one_are_migrated() -> None:
    class Colour(enum.Enum):
        RED = 1
        CRIMSON = RED

    assert migrated(["CRIMSON", "RED"], Colour) == [Colour.RED, Colour.RED]


def test_an_order_that_names_one_constant_twice_is_rejected() -> None:
    class Colour(enum.Enum):
        RED = 1
        CRIMSON = RED

    with pytest.raises(ValueError, match="must be distinct names"):
        ts.EnumSerializer(Colour, ["RED", "CRIMSON"])


def test_two_constants_merged_into_a_third_are_migrated() -> None:
    class Colour(enum.Enum):
        SCARLET = 1
        RED = SCARLET
        CRIMSON = RED
        BLUE = 2

    assert migrated(["RED", "CRIMSON", "BLUE"], Colour) == [Colour.SCARLET, Colour.SCARLET, Colour.BLUE]


def test_another_enum_is_rejected_unless_it_declares_the_former_name() -> None:
    old = ts.EnumSerializer(enum_of("A"), name="old.Name").snapshot_configuration()
    compatibility = resolve_compatibility(old, ts.EnumSerializer(enum_of("A"), name="new.Name"))
    assert [issue.rule for issue in compatibility.issues] == ["enum-class"]
    moved = ts.EnumSerializer(enum_of("A"), name="new.Name", former_names=["old.Name"])
    assert resolve_compatibility(old, moved).is_as_is

    class Renamed(enum.Enum):
        __former_names__ = ("old.Name",)
        A = 1
        B = 2

    assert resolve_compatibility(old, ts.EnumSerializer(Renamed)).is_with_reconfigured_serializer


def test_one_text_is_no_list_of_former_names() -> None:
    class Renamed(enum.Enum):
        __former_names__ = "old.Name"
        A = 1

    @attrs.frozen
    class Record:
        n: int

    message = r"former names are a tuple of names; write \('old.Name',\)"
    with pytest.raises(ts.UnknownTypeError, match=f"Renamed: {message}"):
        ts.EnumSerializer(Renamed)
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.EnumSerializer(enum_of("A"), former_names="old.Name")
    with pytest.raises(ts.UnknownTypeError, match=f"Record: {message}"):
        ts.AttrsSerializer(Record, former_names="old.Name")  # type: ignore[arg-type]


def test_state_without_its_class_is_read_by_a_stand_in_and_written_by_the_new_serializer() -> None:
    written = ts.EnumSerializer(enum_of("A", "B"), name="gone.Enum$Inner")
    data = written.to_bytes(written.enum_class["B"])
    snapshot = snapshot_to_bytes(written.snapshot_configuration()).replace(b"gone.Enum", b"lost.Enum")
    restored = snapshot_from_bytes(snapshot).restore_serializer()
    value = restored.from_bytes(data)
    assert value.name == "B"
    assert type(value).__name__ == "Inner"
    new = ts.EnumSerializer(enum_of("B", "A"), name="lost.Enum$Inner")
    assert new.from_bytes(new.to_bytes(value)) is new.enum_class["B"]
    renamed = ts.EnumSerializer(enum_of("B", "A"), name="new.Enum", former_names=["lost.Enum$Inner"])
    assert renamed.from_bytes(renamed.to_bytes(value)) is renamed.enum_class["B"]
    with pytest.raises(StateFormatError, match="is not a constant of"):
        ts.EnumSerializer(enum_of("B", "A"), name="other.Enum").to_bytes(value)
    with pytest.raises(StateFormatError, match="does not have"):
        ts.EnumSerializer(enum_of("A"), name="lost.Enum$Inner").to_bytes(value)


def test_flags_and_other_enums_are_rejected_with_their_constants() -> None:
    class Access(enum.Flag):
        READ = 1
        WRITE = 2

    serializer = ts.EnumSerializer(Access)
    assert serializer.from_bytes(serializer.to_bytes(Access.WRITE)) is Access.WRITE
    with pytest.raises(StateFormatError, match="READ, WRITE"):
        serializer.to_bytes(Access.READ | Access.WRITE)
    with pytest.raises(ts.UnknownTypeError, match="Flag"):
        ts.serializer_for(Access)
    with pytest.raises(ts.UnknownTypeError, match="no constants"):
        ts.serializer_for(enum.Enum("Nothing", []))


def test_an_int_enum_is_not_an_int() -> None:
    class Level(enum.IntEnum):
        LOW = 0
        HIGH = 1

    serializer = ts.EnumSerializer(Level)
    assert serializer.from_bytes(serializer.to_bytes(Level.HIGH)) is Level.HIGH
    with pytest.raises(StateFormatError, match="is not a constant of"):
        serializer.to_bytes(1)


def test_a_record_with_an_enum_is_reconfigured_with_it() -> None:
    old_enum = enum_of("A", "B")
    new_enum = enum_of("B", "C", "A")

    fields = {"colour": attrs.field(type=old_enum), "count": attrs.field(type=int)}
    Item = attrs.make_class("Item", fields, frozen=True)  # noqa: N806
    before = ts.AttrsSerializer(Item)
    data = before.to_bytes(Item(old_enum["B"], 5))
    after = ts.AttrsSerializer(Item, field_serializers={"colour": ts.EnumSerializer(new_enum)})
    compatibility = resolve_compatibility(before.snapshot_configuration(), after)
    assert compatibility.is_with_reconfigured_serializer
    assert compatibility.reconfigured_serializer.from_bytes(data) == Item(new_enum["B"], 5)
    assert compatibility.issues[0].path == ".colour"


@pytest.mark.parametrize("constants", [["A", "A"], ["A", "X"], []])
def test_constants_must_belong_to_the_class(constants: list[str]) -> None:
    with pytest.raises(ValueError, match="constants"):
        ts.EnumSerializer(enum_of("A", "B"), constants)


@pytest.mark.parametrize("constants", [[], ["A", "A"], ["A", "B", "A"]])
def test_a_snapshot_with_impossible_constants_is_rejected(constants: list[str]) -> None:
    out = DataOutputView()
    out.write_utf("Colour")
    out.write_int(len(constants))
    for constant in constants:
        out.write_utf(constant)
    snapshot = ts.EnumSerializer(enum_of("A"), name="Colour").snapshot_configuration()
    with pytest.raises(SnapshotFormatError, match=f"the {len(constants)} constants of the enum Colour"):
        snapshot.read_snapshot(3, DataInputView(out.to_bytes()))
