"""Unions evolve by the types of their members, independent of order."""

from __future__ import annotations

import enum
import itertools
from typing import Annotated, Any

import attrs
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import typeserializers as ts
from snapshots import (
    DataInputView,
    SerializationError,
    StateFormatError,
    TypeSerializerSchemaCompatibility,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.backends.evolving_serializers import LearningWordSerializer
from statebackend.testing.upgrades import migration_between
from typeserializers.kernel.known_serializers import restored_with

LONG, STRING, BYTES, BOOL, DOUBLE, INT = (
    ts.LongSerializer(),
    ts.StringSerializer(),
    ts.BytesSerializer(),
    ts.BooleanSerializer(),
    ts.DoubleSerializer(),
    ts.IntSerializer(),
)


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


def union(*members: ts.TypeSerializer[Any]) -> ts.UnionSerializer:
    return ts.UnionSerializer(members)


def compatibility_on(
    old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    return resolve_compatibility(snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration())), new)


def migrated(old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any], value: Any) -> Any:
    """The value read by the program after the compatibility result; both forms of migration agree."""
    compatibility, data = compatibility_on(old, new), old.to_bytes(value)
    if compatibility.is_with_reconfigured_serializer:
        reconfigured = compatibility.reconfigured_serializer
        read = reconfigured.from_bytes(data)
        assert reconfigured.to_bytes(read) == data
        return read
    if compatibility.is_as_is:
        return new.from_bytes(data)
    assert compatibility.is_after_migration, str(compatibility)
    restored = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration())).restore_serializer()
    migration = migration_between(restored, new)
    read = migration.to_value(data)
    assert new.from_bytes(migration.to_bytes(data)) == read
    return read


def rules(compatibility: TypeSerializerSchemaCompatibility[Any]) -> dict[str, str]:
    return {issue.rule: issue.path for issue in compatibility.issues}


def same(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right


VALUES: dict[str, tuple[ts.TypeSerializer[Any], st.SearchStrategy[Any]]] = {
    "int": (LONG, st.integers(-(2**63), 2**63 - 1)),
    "bool": (BOOL, st.booleans()),
    "float": (DOUBLE, st.floats(allow_nan=False)),
    "str": (STRING, st.text(max_size=4)),
    "bytes": (BYTES, st.binary(max_size=4)),
    "list[str]": (ts.ListSerializer(STRING), st.lists(st.text(max_size=2), max_size=2)),
    "Colour": (ts.EnumSerializer(Colour), st.sampled_from(Colour)),
}


@settings(max_examples=examples(150))
@given(st.data())
def test_values_are_unchanged_for_any_added_and_reordered_members(data: st.DataObject) -> None:
    old_names = data.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    added = [name for name in sorted(VALUES) if name not in old_names and data.draw(st.booleans())]
    new_names = data.draw(st.permutations([*old_names, *added]))
    if len(new_names) == 1:
        return
    members = [VALUES[name][0] for name in old_names]
    old = union(*members) if len(members) > 1 else members[0]
    new = union(*[VALUES[name][0] for name in new_names])
    for name in old_names:
        value = data.draw(VALUES[name][1])
        assert same(migrated(old, new, value), value)
    expected = ["union-members-reordered"] if not added and new_names != old_names else []
    assert [rule for rule in rules(compatibility_on(old, new)) if rule == "union-members-reordered"] == expected


@pytest.mark.parametrize(
    "members", [(STRING, BYTES), (LONG, BOOL), (BOOL, LONG), (LONG, DOUBLE), (DOUBLE, BOOL), (LONG, STRING, BYTES)]
)
def test_every_order_reads_the_bytes_of_every_other_order(members: tuple[ts.TypeSerializer[Any], ...]) -> None:
    values = [True, False, 1, 0, 1.0, "text", b"text"]
    for old_order, new_order in itertools.permutations(itertools.permutations(members), 2):
        old, new = union(*old_order), union(*new_order)
        compatibility = compatibility_on(old, new)
        assert compatibility.is_with_reconfigured_serializer
        assert compatibility.reconfigured_serializer == old
        for value in values:
            if any(type(value) is member.python_type for member in members):
                assert same(migrated(old, new, value), value)


def test_a_hint_has_the_same_bytes_in_any_order_that_python_keeps() -> None:
    for hint, swapped in ((str | bytes, bytes | str), (int | bool | None, bool | int | None)):
        assert ts.serializer_for(hint) == ts.serializer_for(swapped)
        data = snapshot_to_bytes(ts.serializer_for(hint).snapshot_configuration())
        assert data == snapshot_to_bytes(ts.serializer_for(swapped).snapshot_configuration())


def test_state_in_the_order_of_a_hint_is_still_read() -> None:
    old = union(STRING, BYTES)
    for value in ("text", b"text"):
        assert same(migrated(old, ts.serializer_for(str | bytes), value), value)
        assert same(migrated(ts.NullableSerializer(old), ts.serializer_for(str | bytes | None), value), value)


def test_no_value_changes_its_type() -> None:
    rejected = compatibility_on(union(LONG, STRING), union(DOUBLE, STRING))
    assert rejected.is_incompatible
    assert rules(rejected)["union-member-removed"] == "{member int}"
    assert "float" in str(rejected)
    assert "Keep int in the union" in str(rejected)
    assert compatibility_on(union(STRING, BOOL), union(BYTES, BOOL)).is_incompatible
    assert rules(compatibility_on(LONG, union(DOUBLE, STRING))) == {"union-member-missing": ""}
    assert "Make int a member" in str(compatibility_on(LONG, union(DOUBLE, STRING)))


def test_a_member_may_widen_within_its_type() -> None:
    assert same(migrated(union(STRING, INT), union(LONG, STRING), 7), 7)
    assert compatibility_on(union(STRING, LONG), union(INT, STRING)).is_incompatible


def test_an_enum_that_grows_in_a_union_keeps_its_old_constants() -> None:
    old, new = enum.Enum("Status", ["LATE", "DONE"]), enum.Enum("Status", ["DONE", "PLANNED", "LATE"])
    unions = union(STRING, ts.EnumSerializer(old)), union(STRING, ts.EnumSerializer(new))
    assert compatibility_on(*unions).is_with_reconfigured_serializer
    for name in ("LATE", "DONE"):
        assert migrated(*unions, old[name]) is new[name]
    assert migrated(*unions, "text") == "text"


def test_the_inside_of_a_member_may_change_as_in_a_record() -> None:
    old = union(ts.ListSerializer(LONG), STRING)
    new = union(STRING, ts.ListSerializer(DOUBLE))
    assert migrated(old, new, [1, 2]) == [1.0, 2.0]
    assert migrated(old, new, "x") == "x"
    rejected = compatibility_on(old, union(STRING, ts.ListSerializer(BYTES)))
    assert any(issue.path == "{member list[bytes]}[]" for issue in rejected.issues), str(rejected)


def test_a_removed_member_is_rejected_with_its_name() -> None:
    rejected = compatibility_on(union(LONG, STRING, BYTES), union(STRING, LONG))
    assert rejected.is_incompatible
    assert rules(rejected)["union-member-removed"] == "{member bytes}"
    assert "Keep bytes in the union: str | int | bytes; or" in str(rejected)
    assert compatibility_on(union(LONG, STRING), LONG).is_incompatible


def record(class_name: str, /, **fields: Any) -> type[Any]:
    former = fields.pop("__former_names__", ())
    made = attrs.make_class(class_name, {field: attrs.field(type=hint) for field, hint in fields.items()}, frozen=True)
    setattr(made, "__former_names__", former)  # noqa: B010  (a class made here has no such attribute to declare)
    return made


def test_records_are_matched_by_their_names_and_former_names() -> None:
    cat, dog = record("Cat", name=str), record("Dog", name=str)
    old = union(ts.AttrsSerializer(cat), ts.AttrsSerializer(dog))
    hound = record("Hound", name=str, __former_names__=("Dog",))
    new = union(ts.AttrsSerializer(hound), ts.AttrsSerializer(cat))
    assert migrated(old, new, dog("Rex")) == hound("Rex")
    assert migrated(old, new, cat("Tom")) == cat("Tom")
    stranger = union(ts.AttrsSerializer(record("Hound", name=str)), ts.AttrsSerializer(cat))
    rejected = compatibility_on(old, stranger)
    assert rejected.is_incompatible
    assert "Hound" in str(rejected)
    assert '__former_names__ = ("Dog",)' in str(rejected)


def test_a_member_that_two_others_claim_is_rejected() -> None:
    cat = ts.AttrsSerializer(record("Cat", name=str))
    successors = [record(name, name=str, __former_names__=("Cat",)) for name in ("Lion", "Tiger")]
    old = union(cat, STRING)
    rejected = compatibility_on(old, union(*map(ts.AttrsSerializer, successors), STRING))
    assert rejected.is_incompatible
    assert rules(rejected)["union-member-ambiguous"] == "{member Cat}"
    assert "Lion or as Tiger" in str(rejected)
    successor = record("Pet", name=str, __former_names__=("Cat", "Dog"))
    dog = ts.AttrsSerializer(record("Dog", name=str))
    rejected = compatibility_on(union(cat, dog), union(ts.AttrsSerializer(successor), STRING))
    assert rejected.is_incompatible
    assert "union-member-ambiguous" in rules(rejected)


def test_two_members_of_one_name_are_rejected_by_the_constructor() -> None:
    first, second = record("Cat", name=str), record("Cat", age=int)
    with pytest.raises(ValueError, match=r"named Cat.*name="):
        union(ts.AttrsSerializer(first), ts.AttrsSerializer(second))
    named = union(ts.AttrsSerializer(first), ts.AttrsSerializer(second, name="other.Cat"))
    assert migrated(named, union(*reversed(named.member_serializers)), second(9)) == second(9)


def test_a_value_of_a_subclass_belongs_to_its_nearest_base() -> None:
    class Whole(int):
        pass

    class Truth(enum.IntEnum):
        NO = 0

    for serializer in (union(LONG, BOOL, STRING), union(BOOL, LONG, STRING)):
        assert type(serializer.from_bytes(serializer.to_bytes(True))) is bool
        assert type(serializer.from_bytes(serializer.to_bytes(1))) is int
        assert serializer.member_serializers[serializer.index_of(Whole(5))] == LONG
        assert serializer.member_serializers[serializer.index_of(Truth.NO)] == LONG
    base = record("Base", x=int)
    derived = attrs.make_class("Derived", {}, bases=(base,), frozen=True)
    grandchild = type("Grandchild", (derived,), {})
    for members in itertools.permutations([ts.AttrsSerializer(base), ts.AttrsSerializer(derived)]):
        serializer = union(*members)
        assert serializer.member_serializers[serializer.index_of(grandchild(1))].python_type is derived


def test_a_value_that_only_resembles_a_member_is_rejected() -> None:
    serializer = union(STRING, BYTES)
    for value in (bytearray(b"x"), memoryview(b"x"), 5, None):
        with pytest.raises(SerializationError, match="not one of str, bytes"):
            serializer.to_bytes(value)


def test_a_field_may_become_a_union_and_optional_at_once() -> None:
    for old_hint, new_hint, values in (
        (int, int | str, [5]),
        (int, int | str | None, [5]),
        (int | None, int | str | None, [5, None]),
        (int | str, int | str | None, [5, "x"]),
        (int | str, bytes | int | str | None, [5, "x"]),
        (list[int | str], list[str | bytes | int], [[5, "x"]]),
        (Annotated[int, INT], int | str, [5]),
    ):
        old, new = record("Holder", value=old_hint), record("Holder", value=new_hint)
        for value in values:
            read = migrated(ts.AttrsSerializer(old), ts.AttrsSerializer(new), old(value))
            assert same(read.value, value)
    for old_hint, new_hint in ((int | None, int | str), (int | str | None, int | str), (int | str, int)):
        old, new = record("Holder", value=old_hint), record("Holder", value=new_hint)
        assert compatibility_on(ts.AttrsSerializer(old), ts.AttrsSerializer(new)).is_incompatible


def test_a_member_of_several_types_is_split_or_rejected() -> None:
    assert ts.serializer_for(Annotated[int | str, "a note"] | bytes) == ts.serializer_for(int | str | bytes)
    assert ts.serializer_for(Annotated[int | None, "a note"] | bytes) == ts.serializer_for(int | bytes | None)
    either = ts.EitherSerializer(LONG, STRING)
    for member in (union(LONG, STRING), ts.NullableSerializer(LONG), either):
        with pytest.raises(ValueError, match="of several types itself"):
            union(BYTES, member)


def test_none_is_a_member_only_if_named() -> None:
    serializer = union(LONG, ts.VoidSerializer())
    assert serializer.from_bytes(serializer.to_bytes(None)) is None
    assert migrated(serializer, union(ts.VoidSerializer(), STRING, LONG), None) is None
    with pytest.raises(SerializationError):
        union(LONG, STRING).to_bytes(None)


@attrs.frozen
class Leaf:
    weight: int


@attrs.frozen
class Branch:
    left: Branch | Leaf
    right: int | Branch


def test_a_record_may_be_a_member_of_a_union_in_itself() -> None:
    serializer = ts.serializer_for(Branch)
    tree = Branch(Branch(Leaf(1), 2), Branch(Leaf(3), 4))
    assert serializer.from_bytes(serializer.to_bytes(tree)) == tree
    restored = restored_with(snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration())), serializer)
    assert restored.from_bytes(serializer.to_bytes(tree)) == tree
    assert compatibility_on(serializer, serializer).is_as_is


def test_a_record_in_a_union_in_itself_evolves_with_it() -> None:
    def program(with_note: bool) -> type[Any]:
        if not with_note:

            @attrs.frozen
            class Twig:
                next: Twig | Leaf

            return Twig

        @attrs.frozen
        class Twig:  # type: ignore[no-redef]
            next: Twig | Leaf | str
            note: str = "none"

        return Twig

    old, new = program(with_note=False), program(with_note=True)
    read = migrated(ts.AttrsSerializer(old), ts.AttrsSerializer(new), old(old(Leaf(3))))
    assert read == new(new(Leaf(3)))


def test_a_stored_union_is_duplicated_with_any_members() -> None:
    # A program cannot declare an optional member or two members of one class, but stored state may have them.
    learning = ts.NullableSerializer(LearningWordSerializer())
    written = ts.UnionSerializer.as_written([learning, STRING, ts.StringSerializer()])
    restored = snapshot_from_bytes(snapshot_to_bytes(written.snapshot_configuration())).restore_serializer()
    duplicate = restored.duplicate()
    assert duplicate is not restored
    assert duplicate == restored
    assert duplicate.from_bytes(b"\0\1" + STRING.to_bytes("x")) == "x"
    assert union(LONG, STRING).duplicate() == union(LONG, STRING)


def test_a_union_has_a_minimal_length_and_may_be_of_fixed_length() -> None:
    assert union(LONG, DOUBLE).length == 9
    assert union(LONG, STRING).length == -1
    assert union(LONG, BOOL).length == -1
    assert (union(LONG, STRING).minimum_length, union(STRING, LONG).minimum_length) == (2, 2)
    assert (union(LONG, STRING, BYTES).minimum_length, union(LONG, DOUBLE).minimum_length) == (3, 9)
    assert union(LONG, STRING).is_immutable_type
    assert not union(LONG, ts.ListSerializer(LONG)).is_immutable_type
    with pytest.raises(ValueError, match="at least two"):
        union(LONG)


def test_a_readable_null_of_a_member_is_not_none() -> None:
    # A member that accepts None does not add None to a union that does not declare it.
    serializer = union(LONG, STRING)
    for data in (b"\0\0",):
        with pytest.raises(StateFormatError, match="without None"):
            serializer.from_bytes(data)
        with pytest.raises(StateFormatError, match="without None"):
            serializer.deserialize(DataInputView(data))
    with_none = union(STRING, ts.VoidSerializer())
    assert with_none.from_bytes(b"\1\0") is None
    assert with_none.deserialize(DataInputView(b"\1\0")) is None


def test_no_migration_exists_for_a_union_with_a_removed_member() -> None:
    for old, new in ((union(LONG, STRING), union(STRING, BYTES)), (LONG, union(STRING, BYTES))):
        with pytest.raises(ValueError, match="'incompatible' has no plan"):
            migration_between(old, new)
