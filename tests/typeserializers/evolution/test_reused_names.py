"""A declared rename when another field, member or type has the old name: applied, or rejected as ambiguous."""

from __future__ import annotations

import enum
import re
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

import typeserializers as ts
from snapshots import TypeSerializerSchemaCompatibility, resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes
from statebackend.testing.upgrades import migration_between
from typeserializers import former_names


def record(class_name: str, /, *, formerly: tuple[str, ...] = (), **fields: Any) -> type[Any]:
    """A mutable attrs class; a field is a hint, or a hint and an attrs field or default."""
    namespace: dict[str, Any] = {"__annotations__": {}, "__former_names__": formerly}
    for name, declared in fields.items():
        hint, *default = declared if isinstance(declared, list) else [declared]
        namespace["__annotations__"][name] = hint
        if default:
            namespace[name] = default[0]
    return attrs.define(type(class_name, (), namespace))


def renamed(*names: str, default: Any = 0) -> list[Any]:
    return [int, attrs.field(default=default, metadata=former_names(*names))]


def compatibility(old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any]) -> TypeSerializerSchemaCompatibility[Any]:
    written = snapshot_to_bytes(old.snapshot_configuration())
    return resolve_compatibility(snapshot_from_bytes(written), new)


def restored(old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any], value: Any) -> Any:
    """The value that the new serializer reads from the old one's bytes."""
    result = compatibility(old, new)
    assert not result.is_incompatible, str(result)
    data = old.to_bytes(value)
    if result.is_after_migration:
        migration = migration_between(old, new)
        assert new.from_bytes(migration.to_bytes(data)) == migration.to_value(data)
        return migration.to_value(data)
    reader = result.reconfigured_serializer if result.is_with_reconfigured_serializer else new
    return reader.from_bytes(data)


def rejected_paths(result: TypeSerializerSchemaCompatibility[Any], rule: str) -> list[str]:
    assert result.is_incompatible
    return [issue.path for issue in result.issues if issue.rule == rule]


FIRST = record("Delay", late=int)
SECOND = record("Delay", minutes=renamed("late"))
THIRD = record("Delay", minutes=renamed("late"), late=[int, 7])


@pytest.mark.parametrize("family", [ts.AttrsSerializer, ts.PojoSerializer])
def test_the_declaring_field_takes_the_value_and_the_one_with_the_name_is_added(family: Any) -> None:
    first, second, third = family(FIRST), family(SECOND), family(THIRD)
    step_by_step = restored(second, third, restored(first, second, FIRST(late=42)))
    assert restored(first, third, FIRST(late=42)) == step_by_step == THIRD(minutes=42, late=7)
    assert "continues as minutes" in str(compatibility(first, third))
    assert restored(third, third, THIRD(minutes=1, late=2)) == THIRD(minutes=1, late=2)


def test_a_field_that_reuses_the_name_needs_a_default_like_an_added_field() -> None:
    new = record("Delay", late=int, minutes=renamed("late"))
    result = compatibility(ts.serializer_for(FIRST), ts.serializer_for(new))
    assert rejected_paths(result, "field-added-without-default") == [".late"]
    assert "continues as minutes" in str(result)


def test_two_renames_from_one_name_are_ambiguous() -> None:
    new = record("Delay", minutes=renamed("late"), late=renamed("tardy"))
    result = compatibility(ts.serializer_for(FIRST), ts.serializer_for(new))
    assert rejected_paths(result, "ambiguous-rename") == [".minutes"]


def test_a_declaration_over_a_state_with_both_names_is_ambiguous_unless_the_state_has_it_too() -> None:
    undeclared = record("Delay", minutes=int, late=int)
    result = compatibility(ts.serializer_for(undeclared), ts.serializer_for(THIRD))
    assert rejected_paths(result, "ambiguous-rename") == [".minutes"]


def test_former_names_are_followed_from_the_newest_in_the_state() -> None:
    second = record("Delay", minutes=renamed("late"), late=[int, 7])
    third = record("Delay", hours=renamed("late", "minutes"), minutes=[int, 8], late=[int, 9])
    assert restored(*map(ts.serializer_for, (second, third)), second(1, 2)) == third(hours=1, minutes=8, late=2)


def test_a_converter_for_the_old_name_follows_the_rename() -> None:
    def unchanged(values: dict[str, Any]) -> dict[str, Any]:
        return values

    new = ts.AttrsSerializer(THIRD, schema_version=2, converters={1: unchanged})
    assert restored(ts.AttrsSerializer(FIRST), new, FIRST(late=42)) == THIRD(minutes=42, late=7)


def test_swapped_fields_of_a_pojo_are_rejected_because_its_snapshot_has_no_declarations() -> None:
    old = record("Delay", late=int, minutes=int)
    swapped = record("Delay", late=renamed("minutes"), minutes=renamed("late"))
    result = compatibility(ts.PojoSerializer(old), ts.PojoSerializer(swapped))
    assert rejected_paths(result, "pojo-rename-ambiguous") == [".late", ".minutes"]


def renamed_enum(name: str, *formerly: str) -> Any:
    made: Any = enum.Enum(name, "A")
    made.__former_names__ = formerly
    return made


CAT = record("Cat", name=str)
LION = record("Lion", formerly=("Cat",), name=str)


@pytest.mark.parametrize("old", [CAT | str, CAT])
def test_a_member_whose_name_a_new_member_declares_is_ambiguous(old: Any) -> None:
    result = compatibility(ts.serializer_for(old), ts.serializer_for(CAT | LION | str))
    assert rejected_paths(result, "union-member-ambiguous") == ["{member Cat}"]
    assert "Cat could continue as Cat or as Lion" in str(result)


def test_members_under_both_names_in_the_state_are_unchanged() -> None:
    both = ts.serializer_for(CAT | LION | str)
    grown = ts.serializer_for(CAT | LION | str | bytes)
    for value in (CAT("Tom"), LION("Leo"), "x"):
        assert restored(both, grown, value) == value


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (CAT, record("Lion", formerly=("Felis",), name=str)),
        (CAT | str, record("Lion", formerly=("Felis",), name=str) | str),
        (renamed_enum("Cat"), renamed_enum("Lion", "Felis")),
        (ts.PojoSerializer(CAT), ts.PojoSerializer(record("Lion", formerly=("Felis",), name=str))),
    ],
)
def test_the_advice_to_declare_a_former_name_keeps_those_that_are_declared(old: Any, new: Any) -> None:
    result = compatibility(
        *(one if isinstance(one, ts.TypeSerializer) else ts.serializer_for(one) for one in (old, new))
    )
    assert re.search(r'__former_names__ = \("Felis", "(test_reused_names\.)?Cat"\) on Lion', str(result))


@pytest.mark.parametrize("new", [int | str, list[int] | str, enum.Enum("Colour", "RED") | str])
def test_no_former_name_is_advised_on_a_member_that_the_old_one_cannot_continue_as(new: Any) -> None:
    result = compatibility(ts.serializer_for(CAT | str), ts.serializer_for(new))
    assert rejected_paths(result, "union-member-removed") == ["{member Cat}"]
    assert "__former_names__" not in str(result)


def test_swapped_members_are_ambiguous() -> None:
    cat, dog = record("Cat", formerly=("Dog",), name=str), record("Dog", formerly=("Cat",), name=str)
    result = compatibility(ts.serializer_for(CAT | record("Dog", name=str)), ts.serializer_for(cat | dog))
    assert rejected_paths(result, "union-member-ambiguous") == ["{member Cat}", "{member Dog}"]


def test_a_renamed_member_that_cannot_be_restored_is_reported_with_the_cause() -> None:
    changed = record("Lion", formerly=("Cat",), name=int)
    for old, new in ((CAT | str, changed | str), (CAT, changed | str)):
        result = compatibility(ts.serializer_for(old), ts.serializer_for(new))
        assert rejected_paths(result, "field-type-changed") == ["{member Lion}.name"]
        assert "__former_names__" not in str(result)


def test_a_subclass_of_a_pojo_that_a_new_one_declares_as_its_former_name_is_rejected() -> None:
    def animals(*names: tuple[str, tuple[str, ...]]) -> ts.PojoSerializer[Any]:
        base = attrs.define(type("Animal", (), {"__annotations__": {"legs": int}, "__pojo_class__": "Animal"}))
        made = [
            attrs.define(type(name, (base,), {"__pojo_class__": name, "__former_names__": former}))
            for name, former in names
        ]
        return ts.PojoSerializer(base, registered_subclasses=made)

    old, new = animals(("Cat", ())), animals(("Cat", ()), ("Lion", ("Cat",)))
    assert rejected_paths(compatibility(old, new), "pojo-subclass-renamed") == ["<Cat>"]
    assert compatibility(new, new).is_as_is


def avro(name: str, *fields: tuple[str, Any, dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": hint, **extra} for field, hint, extra in fields],
        **more,
    }


def test_an_alias_whose_name_is_in_use_again_is_ambiguous() -> None:
    old = avro("Delay", ("late", "long", {}))
    new = avro("Delay", ("minutes", "long", {"aliases": ["late"], "default": 0}), ("late", "long", {"default": 7}))
    result = compatibility(ts.AvroSerializer(old), ts.AvroSerializer(new))
    assert rejected_paths(result, "avro-rename-ambiguous") == [".late"]
    assert compatibility(ts.AvroSerializer(new), ts.AvroSerializer(new)).is_as_is


def test_a_field_with_its_own_name_in_the_data_does_not_take_the_value_of_its_alias() -> None:
    old = avro("Delay", ("late", "long", {}), ("minutes", "long", {}))
    new = avro("Delay", ("minutes", "long", {"aliases": ["late"], "default": 0}))
    assert restored(ts.AvroSerializer(old), ts.AvroSerializer(new), {"late": 42, "minutes": 5}) == {"minutes": 5}


def test_branches_under_both_names_in_the_data_are_unchanged() -> None:
    lion = avro("Lion", ("mane", "long", {"default": 9}), aliases=["Cat"])
    cat = avro("Cat", ("lives", "long", {"default": 0}))
    old = avro("House", ("pet", ["null", lion, cat], {}))
    new = avro("House", ("pet", ["null", lion, cat], {}), ("rooms", "long", {"default": 1}))
    read = restored(ts.AvroSerializer(old), ts.AvroSerializer(new), {"pet": {"lives": 3}})
    assert read == {"pet": {"lives": 3}, "rooms": 1}
    before = avro("House", ("pet", ["null", cat], {}))
    result = compatibility(ts.AvroSerializer(before), ts.AvroSerializer(old))
    assert rejected_paths(result, "avro-rename-ambiguous") == [".pet<Cat>"]


@st.composite
def histories(draw: st.DrawFn) -> list[dict[int, list[str]]]:
    """Versions of a record: for each field its number, then its names, the newest last."""
    version: dict[int, list[str]] = {0: ["a"]}
    versions = [version]
    for number in range(1, draw(st.integers(1, 4)) + 1):
        version = {key: list(names) for key, names in version.items()}
        used = {names[-1] for names in version.values()}
        free = [name for name in "abcd" if name not in used]
        renames = draw(st.booleans())
        if renames and free:
            names = version[draw(st.sampled_from(sorted(version)))]
            names.append(draw(st.sampled_from(free)))
        elif free:
            version[number] = [draw(st.sampled_from(free))]
        versions.append(version)
    return versions


def version_of(fields: dict[int, list[str]]) -> type[Any] | None:
    """The class of a version, whose fields declare all former names; None if two declare the same."""
    declared = [name for names in fields.values() for name in dict.fromkeys(names[:-1])]
    if len(declared) != len(set(declared)):
        return None
    return record(
        "Delay",
        **{names[-1]: renamed(*dict.fromkeys(names[-2::-1]), default=-number) for number, names in fields.items()},
    )


@given(histories())
def test_a_restore_over_several_versions_equals_single_steps_or_is_rejected(
    versions: list[dict[int, list[str]]],
) -> None:
    classes = [version_of(version) for version in versions]
    if classes[0] is None or classes[-1] is None:
        return
    old, new = ts.AttrsSerializer(classes[0]), ts.AttrsSerializer(classes[-1])
    if compatibility(old, new).is_incompatible:
        return
    read = restored(old, new, classes[0](a=42))
    assert {number: getattr(read, names[-1]) for number, names in versions[-1].items()} == {
        number: 42 if number == 0 else -number for number in versions[-1]
    }


def test_a_field_that_reused_the_name_can_be_removed_while_the_declaration_stays() -> None:
    third, fourth = ts.AttrsSerializer(THIRD), ts.AttrsSerializer(SECOND)
    assert restored(third, fourth, THIRD(minutes=42, late=7)) == SECOND(minutes=42)
    assert "field-removed" in {issue.rule for issue in compatibility(third, fourth).issues}


def test_a_new_field_does_not_take_the_value_of_a_name_that_moved_twice() -> None:
    old = record("Delay", worst=int, late=int)
    new = record("Delay", late=renamed("worst"), minutes=renamed("late"), worst=[int, 7])
    given, made = ts.AttrsSerializer(old), ts.AttrsSerializer(new)
    assert restored(given, made, old(worst=1, late=2)) == new(late=1, minutes=2, worst=7)
