"""Allowed changes of a record between two versions of a program, and the migration of its values."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import re
from typing import Annotated, Any, ClassVar, NamedTuple

import attrs
import msgspec
import pydantic
import pytest
from record_versions import compatibility_of, migrated, rules

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from snapshots import (
    CompatibilityIssue,
    FieldCompatibility,
    SnapshotFormatError,
    TypeSerializerSchemaCompatibility,
    compatibility_tree,
    format_tree,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between
from typeserializers import former_names
from typeserializers.records.record_serializer import AttrsSerializerSnapshot

RENAMED_AND_CONVERTED = former_names("late") | ts.converted_by(repr)


def record(**fields: Any) -> Any:
    """An attrs class called Flight with these fields: a hint, or a hint and an attrs field."""
    namespace: dict[str, Any] = {"__annotations__": {}}
    for name, declared in fields.items():
        hint, *default = declared if isinstance(declared, list) else [declared]
        namespace["__annotations__"][name] = hint
        if default:
            namespace[name] = default[0]
    return attrs.frozen(type("Flight", (), namespace))


def serializers(old: Any, new: Any) -> tuple[ts.TypeSerializer[Any], ts.TypeSerializer[Any]]:
    return ts.serializer_for(old), ts.serializer_for(new)


def test_an_unchanged_record_is_as_is_and_every_field_is_in_the_tree() -> None:
    old, new = serializers(record(a=int, b=str), record(a=int, b=str))
    compatibility = compatibility_of(old, new)
    assert compatibility.is_as_is
    assert compatibility.issues == ()
    assert [child["path"] for child in compatibility_tree(compatibility).to_dict()["children"]] == [".a", ".b"]
    assert format_tree(compatibility) == "compatible as is\n├─ .a: compatible as is\n└─ .b: compatible as is"


def test_a_declared_rename_is_compatible_as_is() -> None:
    old, new = record(a=int, late=float), record(a=int, minutes=[float, attrs.field(metadata=former_names("late"))])
    compatibility = compatibility_of(*serializers(old, new))
    assert compatibility.is_as_is
    assert rules(compatibility) == {".minutes": "field-renamed"}
    assert ts.serializer_for(new).from_bytes(ts.serializer_for(old).to_bytes(old(1, 2.5))) == new(1, 2.5)


def test_an_undeclared_rename_is_rejected_or_lossy_and_the_report_names_the_declaration() -> None:
    old = record(minutes_late=int)
    rejected = compatibility_of(*serializers(old, record(minutes_delayed=int)))
    assert rejected.is_incompatible
    assert 'former_names("minutes_late")' in str(rejected)
    lossy = compatibility_of(*serializers(old, record(minutes_delayed=[int, 0])))
    assert lossy.is_after_migration
    (issue,) = lossy.with_compatibility(FieldCompatibility.LOSSY)
    assert (issue.path, issue.rule) == (".minutes_late", "field-removed")
    assert "rename to minutes_delayed" in issue.fix


class FlightTuple(NamedTuple):
    later: list[int | None]


class FlightModel(pydantic.BaseModel):
    later: Annotated[list[int | None], former_names("delay")]


@pytest.mark.parametrize("new_class", [FlightTuple, FlightModel])
def test_the_printed_declaration_can_be_pasted_into_any_class(new_class: Any) -> None:
    old = record(late=list[int | None])
    new_class.__former_names__ = ("Flight",)
    compatibility = compatibility_of(*serializers(old, new_class))
    [advice] = re.findall(r"declare the rename: (later: .*)$", str(compatibility), re.MULTILINE)
    assert ("delay" in advice) is (new_class is FlightModel), "former names stay"
    program: dict[str, Any] = {"Annotated": Annotated, "former_names": former_names}
    exec(compile(f"class Flight:\n    {advice}", "pasted", "exec", dont_inherit=True), program)
    assert compatibility_of(*serializers(old, attrs.frozen(program["Flight"]))).is_as_is


def test_an_advised_rename_keeps_the_serializer_and_the_former_names_of_the_field() -> None:
    old = record(a=int, seats=Annotated[int, ts.IntSerializer()])
    hint = Annotated[int, ts.IntSerializer(), former_names("chairs")]
    advice = str(compatibility_of(*serializers(old, record(a=int, seat=[hint, 0]))))
    assert 'declare seat: Annotated[int, IntSerializer(), former_names("chairs", "seats")]' in advice


def test_a_report_names_the_attributes_of_a_class_as_it_declares_them() -> None:
    old, new = record(column_612062=int), record(column_612062=str, b=[str, "column_612062"])
    compatibility = compatibility_of(*serializers(old, new))
    assert rules(compatibility) == {".column_612062": "field-type-changed", ".b": "field-added"}
    assert "default 'column_612062'" in str(compatibility)


def test_added_fields_get_their_default_or_a_new_value_of_the_factory() -> None:
    old = record(a=int)
    new = record(a=int, b=[str, "new"], c=[list[int], attrs.field(factory=lambda: [7])], d=[float | None, None])
    pair = serializers(old, new)
    assert compatibility_of(*pair).is_after_migration
    first, second = migrated(*pair, old(1)), migrated(*pair, old(1))
    assert first == new(1, "new", [7], None)
    assert first.c is not second.c


def test_an_added_field_without_a_default_is_rejected_by_name() -> None:
    compatibility = compatibility_of(*serializers(record(a=int), record(a=int, b=str)))
    assert compatibility.is_incompatible
    assert rules(compatibility) == {".b": "field-added-without-default"}


@pytest.mark.parametrize(
    ("old", "advised"),
    [
        ({"a": int, "origin": str}, "origin"),
        ({"a": int, "origin": str, "seats": int}, "origin"),
        ({"a": int, "origin": str, "gate": str}, None),
        ({"a": int, "seats": int}, None),
    ],
)
def test_the_only_removed_field_that_fits_a_new_one_is_advised_as_a_likely_rename(
    old: dict[str, Any], advised: str | None
) -> None:
    before = record(**old)
    compatibility = compatibility_of(*serializers(before, record(a=int, b=str)))
    found = re.findall(r"Give it a default, or, if (\w+) was renamed, declare it: (b: .*)$", str(compatibility), re.M)
    assert [name for name, _ in found] == [name for name in (advised,) if name]
    for _, code in found:
        program: dict[str, Any] = {"Annotated": Annotated, "former_names": former_names}
        exec(compile(f"class Flight:\n    a: int\n    {code}", "pasted", "exec", dont_inherit=True), program)
        after = attrs.frozen(program["Flight"])
        values = {"a": 1, "origin": "JFK", "seats": 2}
        assert migrated(*serializers(before, after), before(**{name: values[name] for name in old})) == after(1, "JFK")


def test_a_default_that_needs_the_other_fields_is_not_advised_again() -> None:
    class Computed(pydantic.BaseModel):
        a: int
        b: int = pydantic.Field(default_factory=lambda values: values["a"])

    Computed.__name__ = Computed.__qualname__ = "Flight"
    factory = attrs.Factory(lambda flight: flight.a, takes_self=True)
    for new in (record(a=int, b=[int, attrs.field(default=factory)]), Computed):
        [issue] = compatibility_of(*serializers(record(a=int), new)).issues
        assert issue.path == ".b"
        assert issue.fix == "Give it a default that does not need the other fields"


def test_removed_reordered_and_added_fields_at_once() -> None:
    old = record(a=int, b=str, c=float, d=bytes)
    new = record(d=bytes, a=int, e=[int, 5])
    pair = serializers(old, new)
    assert rules(compatibility_of(*pair)) == {
        ".e": "field-added",
        ".b": "field-removed",
        ".c": "field-removed",
        "": "fields-reordered",
    }
    assert migrated(*pair, old(1, "é", 0.5, b"x")) == new(b"x", 1, 5)


def test_swapped_names_are_followed_once_and_then_compatible_as_is() -> None:
    old = record(a=int, b=int)
    new = record(
        a=[int, attrs.field(metadata=former_names("b"))],
        b=[int, attrs.field(metadata=former_names("a"))],
    )
    pair = serializers(old, new)
    assert compatibility_of(*pair).is_after_migration
    assert migrated(*pair, old(1, 2)) == new(2, 1)
    assert compatibility_of(pair[1], pair[1]).is_as_is
    assert compatibility_of(pair[1], pair[1]).issues == ()


def test_a_cycle_of_names_is_followed() -> None:
    old = record(a=int, b=int, c=int)
    new = record(
        a=[int, attrs.field(metadata=former_names("b"))],
        b=[int, attrs.field(metadata=former_names("c"))],
        c=[int, attrs.field(metadata=former_names("a"))],
    )
    assert migrated(*serializers(old, new), old(1, 2, 3)) == new(2, 3, 1)


def test_a_name_moved_to_a_new_field_is_followed() -> None:
    old = record(late=int, minutes=int)
    new = record(
        minutes=[int, attrs.field(metadata=former_names("late"))],
        hours=[int, attrs.field(metadata=former_names("minutes"))],
    )
    assert migrated(*serializers(old, new), old(1, 2)) == new(1, 2)


def test_a_former_name_that_is_a_field_again_is_skipped_for_the_next() -> None:
    old = record(late=int, delay=int)
    new = record(late=int, minutes=[int, attrs.field(metadata=former_names("late", "delay"))])
    assert migrated(*serializers(old, new), old(1, 2)) == new(1, 2)


def test_a_former_name_that_would_lose_a_field_is_ambiguous() -> None:
    old = record(late=int, minutes=int)
    compatibility = compatibility_of(
        *serializers(old, record(minutes=[int, attrs.field(metadata=former_names("late"))]))
    )
    assert compatibility.is_incompatible
    assert rules(compatibility) == {".late": "ambiguous-rename"}


def test_a_field_added_again_with_another_type_is_rejected_until_the_old_one_is_gone() -> None:
    first, second, third = record(a=int, note=str), record(a=int), record(a=int, note=[float, 0.5])
    assert rules(compatibility_of(*serializers(first, third))) == {".note": "field-type-changed"}
    assert compatibility_of(*serializers(first, second)).is_after_migration
    assert compatibility_of(*serializers(second, third)).is_after_migration
    assert migrated(*serializers(second, third), second(1)) == third(1, 0.5)


@pytest.mark.parametrize(
    ("old_hint", "new_hint", "old_value", "new_value"),
    [
        (Annotated[int, ts.ByteSerializer()], Annotated[int, ts.ShortSerializer()], -128, -128),
        (Annotated[int, ts.IntSerializer()], int, -(2**31), -(2**31)),
        (Annotated[int, ts.IntSerializer()], float, 7, 7.0),
        (int, float, 2**53 + 1, float(2**53)),
        (int, Annotated[float, ts.FloatSerializer()], 2**24 + 1, float(2**24)),
        (Annotated[float, ts.FloatSerializer()], float, 0.5, 0.5),
        (int, Annotated[int, ts.BigIntSerializer()], 2**62, 2**62),
        (int, decimal.Decimal, 2**62, decimal.Decimal(2**62)),
        (Annotated[int, ts.BigIntSerializer()], decimal.Decimal, 10**30, decimal.Decimal(10**30)),
        (str, bytes, "é😀", "é😀".encode()),
        (bytes, str, "é😀".encode(), "é😀"),
        (Annotated[str, ts.CharSerializer()], str, "é", "é"),
    ],
)
def test_fields_are_widened_inside_of_any_container(
    old_hint: Any, new_hint: Any, old_value: Any, new_value: Any
) -> None:
    def optional(hint: Any) -> Any:
        return hint | None if isinstance(hint, type) else Annotated[Any, ts.NullableSerializer(ts.serializer_for(hint))]

    def built(hint: Any) -> Any:
        return record(
            plain=hint,
            listed=list[hint],
            mapped=dict[str, hint],
            tupled=tuple[int, hint],
            optional=optional(hint),
            missing=optional(hint),
            either=ts.Left[str] | ts.Right[hint],
            elements=set[hint],
        )

    old, new = built(old_hint), built(new_hint)
    compatibility = compatibility_of(*serializers(old, new))
    assert compatibility.is_after_migration, str(compatibility)
    assert {issue.rule for issue in compatibility.issues} == {"field-widened"}
    paths = {issue.path for issue in compatibility.issues}
    assert {".plain", ".listed[]", ".mapped{value}", ".tupled[1]", ".optional", ".either.right"} <= paths

    def values(item: Any) -> tuple[Any, ...]:
        return item, [item], {"k": item}, (1, item), item, None, ts.Right(item), {item}

    assert migrated(*serializers(old, new), old(*values(old_value))) == new(*values(new_value))


def test_invalid_text_bytes_stop_the_migration() -> None:
    old, new = record(a=bytes), record(a=str)
    migration: SchemaMigration[Any] = migration_between(*serializers(old, new))
    with pytest.raises(MigrationError, match="utf-8"):
        migration.to_bytes(ts.serializer_for(old).to_bytes(old(b"\xff")))


@pytest.mark.parametrize(("old_hint", "new_hint"), [(int, Annotated[int, ts.IntSerializer()]), (float, int)])
def test_a_narrowed_field_is_rejected_as_narrowed(old_hint: Any, new_hint: Any) -> None:
    compatibility = compatibility_of(*serializers(record(a=old_hint), record(a=new_hint)))
    assert rules(compatibility) == {".a": "field-type-narrowed"}


def test_a_field_may_become_optional_and_not_required() -> None:
    assert compatibility_of(*serializers(record(a=int), record(a=float | None))).is_after_migration
    plain = record(a=int)
    assert migrated(*serializers(plain, record(a=float | None)), plain(3)).a == 3.0
    assert rules(compatibility_of(*serializers(record(a=int | None), record(a=int)))) == {".a": "field-became-required"}
    plain = record(a=list[str])
    listed = serializers(plain, record(a=list[str | None]))
    assert rules(compatibility_of(*listed)) == {".a[]": "field-became-optional"}
    assert migrated(*listed, plain(["x"])).a == ["x"]


def test_nested_records_evolve_in_every_container() -> None:
    old_stop = record(airport=str, minutes=int)
    new_stop = record(airport=str, minutes=float, gate=[str | None, None])

    def flight(stop: Any) -> Any:
        return record(
            one=stop,
            many=list[stop],
            named=dict[str, stop],
            keyed=dict[stop, int],
            pair=tuple[stop, stop],
            maybe=stop | None,
            either=ts.Left[stop] | ts.Right[int],
            distinct=set[stop],
            frozen=frozenset[stop],
            plain=stop | int,
        )

    old, new = flight(old_stop), flight(new_stop)
    pair = serializers(old, new)
    compatibility = compatibility_of(*pair)
    assert compatibility.is_after_migration, str(compatibility)
    assert rules(compatibility)[".many[].minutes"] == "field-widened"
    assert rules(compatibility)[".keyed{key}.gate"] == "field-added"

    def value(cls: Any, make: Any) -> Any:
        stop = make("JFK", 5)
        return cls(
            stop, [stop, make("ä", 1)], {"x": stop}, {stop: 1}, (stop, stop), stop, ts.Left(stop), {stop},
            frozenset({stop}), stop,
        )  # fmt: skip

    expected = value(new, lambda airport, minutes: new_stop(airport, float(minutes)))
    assert migrated(*pair, value(old, old_stop)) == expected


def test_map_keys_that_become_equal_are_rejected() -> None:
    old, new = record(a=dict[int, str]), record(a=dict[float, str])
    data = ts.serializer_for(old).to_bytes(old({2**53: "x", 2**53 + 1: "y"}))
    migration: SchemaMigration[Any] = migration_between(*serializers(old, new))
    with pytest.raises(MigrationError, match="9007199254740992 and 9007199254740993 become equal"):
        migration.to_bytes(data)
    with pytest.raises(MigrationError, match="9007199254740992 and 9007199254740993 become equal"):
        migration.to_value(data)


def test_dataclasses_and_named_tuples_evolve_equally_and_into_each_other() -> None:
    @dataclasses.dataclass
    class Flight:
        a: int
        b: str

    class_one: Any = Flight

    class Tupled(NamedTuple):
        a: float
        title: Annotated[str, former_names("b")]
        c: bool = True

        __former_names__ = ("Flight",)

    old, new = serializers(class_one, Tupled)
    found = rules(compatibility_of(old, new))
    assert found == {"": "record-renamed", ".a": "field-widened", ".title": "field-renamed", ".c": "field-added"}
    assert migrated(old, new, class_one(1, "x")) == Tupled(1.0, "x", True)


def test_metadata_of_an_optional_field_may_be_inside_of_the_optional() -> None:
    class Old(NamedTuple):
        late: int | None
        gate: str | None

    class Tupled(NamedTuple):
        minutes: Annotated[str, RENAMED_AND_CONVERTED] | None
        exit: Annotated[str | None, former_names("gate")] | None

        __former_names__ = ("Old",)

    class Model(pydantic.BaseModel):
        minutes: Annotated[str, RENAMED_AND_CONVERTED] | None
        exit: Annotated[str, former_names("gate")] | None

        __former_names__: ClassVar[tuple[str, ...]] = ("Old",)

    class Struct(msgspec.Struct):
        minutes: Annotated[str, RENAMED_AND_CONVERTED] | None
        exit: Annotated[str, former_names("gate")] | None

        __former_names__: ClassVar[tuple[str, ...]] = ("Old",)

    for new_class in (Tupled, Model, Struct):
        old, new = serializers(Old, new_class)
        for value, minutes in ((7, "7"), (None, "None")):  # a converter gets None, too
            converted = migrated(old, new, Old(value, "A1"))
            assert (converted.minutes, converted.exit) == (minutes, "A1")


@pytest.mark.parametrize("metadata", [former_names("a"), ts.converted_by(str)])
def test_metadata_of_a_part_of_a_field_is_rejected(metadata: Any) -> None:
    part = Annotated[str, metadata]
    for hint in (list[part], dict[str, part], list[part] | None, Annotated[list[part], former_names("b")], part | int):
        with pytest.raises(ts.UnknownTypeError, match=r"Flight\.a: former_names and converted_by belong to the field"):
            ts.serializer_for(record(a=hint))


def test_a_renamed_class_needs_its_former_name() -> None:
    @attrs.frozen
    class Plane:
        a: int

    rejected = compatibility_of(ts.serializer_for(record(a=int)), ts.serializer_for(Plane))
    assert rejected.is_incompatible
    assert '__former_names__ = ("Flight",)' in str(rejected)
    declared = ts.AttrsSerializer(Plane, former_names=("Flight",))
    assert compatibility_of(ts.serializer_for(record(a=int)), declared).is_as_is
    assert compatibility_of(ts.serializer_for(record(a=int)), ts.AttrsSerializer(Plane, name="Flight")).is_as_is


def test_former_names_given_as_one_string_are_rejected() -> None:
    with pytest.raises(ts.UnknownTypeError, match="tuple of names"):
        ts.serializer_for(attrs.frozen(type("Odd", (), {"__annotations__": {}, "__former_names__": "Flight"})))


def enums() -> tuple[type[enum.Enum], type[enum.Enum]]:
    return enum.Enum("Status", ["LATE", "DONE"]), enum.Enum("Status", ["DONE", "PLANNED", "LATE"])


def test_an_enum_that_grows_in_a_record_reconfigures_all_levels() -> None:
    old_status, new_status = enums()
    pair = serializers(record(s=old_status, many=list[old_status]), record(s=new_status, many=list[new_status]))
    compatibility = compatibility_of(*pair)
    assert compatibility.is_with_reconfigured_serializer
    assert rules(compatibility) == {".s": "enum-constants-added", ".many[]": "enum-constants-added"}
    value = pair[0].shape.record_class(old_status["DONE"], [old_status["LATE"]])  # type: ignore[attr-defined]
    read = compatibility.reconfigured_serializer.from_bytes(pair[0].to_bytes(value))
    assert (read.s, read.many) == (new_status["DONE"], [new_status["LATE"]])


def test_an_enum_of_another_class_name_is_rejected_unless_declared() -> None:
    old_status, _ = enums()
    renamed = enum.Enum("State", ["LATE", "DONE"])
    compatibility = compatibility_of(*serializers(record(s=old_status), record(s=renamed)))
    assert compatibility.is_incompatible
    [issue] = compatibility.issues
    assert "Status" in issue.reason
    assert issue.reason.index("Status") < issue.reason.index("State")


def test_an_enum_that_grows_while_a_field_is_added_is_migrated_by_name() -> None:
    old_status, new_status = enums()
    old, new = record(s=old_status), record(s=new_status, extra=[int, 0])
    assert compatibility_of(*serializers(old, new)).is_after_migration
    assert migrated(*serializers(old, new), old(old_status["DONE"])) == new(new_status["DONE"], 0)


def test_the_snapshot_of_a_record_needs_no_class_to_be_read() -> None:
    old = record(a=int, b=[str, "x"], c=[list[int], attrs.field(factory=list)])
    data = ts.serializer_for(old).to_bytes(old(1, "é", [2]))
    snapshot = ts.serializer_for(old).snapshot_configuration()
    assert isinstance(snapshot, AttrsSerializerSnapshot)
    snapshot.record = attrs.evolve(snapshot.record, name="gone.Elsewhere")
    restored = snapshot_from_bytes(snapshot_to_bytes(snapshot)).restore_serializer()
    value = restored.from_bytes(data)
    assert (value.a, value.b, value.c) == (1, "é", [2])
    assert type(value).__name__ == "Elsewhere"
    assert restored.to_bytes(value) == data


def test_a_snapshot_of_version_1_is_read_and_written_unchanged() -> None:
    def utf(text: str) -> bytes:
        return len(text).to_bytes(2, "big") + text.encode()

    long = utf("org.apache.flink.api.common.typeutils.base.LongSerializer$LongSerializerSnapshot") + b"\0\0\0\x03"
    field = utf("a") + bytes(4) + b"\0" + long
    data = utf("statebackend.AttrsSerializerSnapshot") + b"\0\0\0\x01" + utf("Flight") + b"\0\0\0\x01" + field
    snapshot = snapshot_from_bytes(data)
    assert snapshot_to_bytes(snapshot) == data
    assert snapshot.restore_serializer().from_bytes(bytes(7) + b"\x01").a == 1
    assert snapshot.resolve_schema_compatibility(ts.serializer_for(record(a=int))).is_as_is


@pytest.mark.parametrize("name", ["a b", "x=print()", "class", "", "a.b", "__slots__", "__class__", "\ufb01"])
def test_an_invalid_field_name_is_rejected(name: str) -> None:
    snapshot = ts.serializer_for(record(a=int)).snapshot_configuration()
    assert isinstance(snapshot, AttrsSerializerSnapshot)
    (field,) = snapshot.record.fields
    snapshot.record = attrs.evolve(snapshot.record, fields=(attrs.evolve(field, name=name),))
    with pytest.raises(SnapshotFormatError, match="without a name"):
        snapshot_from_bytes(snapshot_to_bytes(snapshot))


def test_a_factory_with_changing_results_leaves_the_snapshot_unchanged() -> None:
    numbers = iter(range(1000))
    cls = record(a=[int, attrs.field(factory=lambda: next(numbers))])
    first = snapshot_to_bytes(ts.serializer_for(cls).snapshot_configuration())
    assert first == snapshot_to_bytes(ts.serializer_for(cls).snapshot_configuration())


def test_a_null_in_a_required_field_stops_the_migration() -> None:
    old, new = record(a=str), record(a=[bytes, b""], b=[int, 0])
    migration: SchemaMigration[Any] = migration_between(*serializers(old, new))
    with pytest.raises(MigrationError):
        migration.to_bytes(b"\x00")
    same, more = record(a=str), record(a=str, b=[int, 0])
    with pytest.raises(MigrationError, match="null"):
        migration_between(*serializers(same, more)).to_bytes(b"\x00")
    with pytest.raises(MigrationError, match="null"):
        migration_between(*serializers(same, more)).to_value(b"\x00")


def test_the_tree_has_the_fix_below_a_path() -> None:
    issue = CompatibilityIssue(".a", FieldCompatibility.REJECT, "a-rule", "it is so", "make it otherwise")
    compatibility: Any = TypeSerializerSchemaCompatibility.incompatible(issue)
    assert format_tree(compatibility).splitlines() == [
        "incompatible",
        "└─ .a: incompatible [a-rule] it is so",
        "     fix: make it otherwise",
    ]


def test_a_name_that_a_field_got_back_and_lost_again_may_be_used_again() -> None:
    """The field was renamed from worst to late, back to worst, and to legs; then another field is called worst."""
    old = record(worst=[int, attrs.field(metadata=former_names("late", "worst"))])
    new = record(
        legs=[int, attrs.field(default=0, metadata=former_names("worst", "late"))], worst=[int, attrs.field(default=7)]
    )
    assert migrated(*serializers(old, new), old(42)) == new(legs=42, worst=7)
