"""POJOs of existing classes: fields, subclasses, and their evolution."""

import enum
from typing import Annotated, Any

import attrs
import pytest
from record_versions import compatibility_of, migrated, rules, written

import typeserializers as ts
from migration import SchemaMigration
from snapshots import (
    FieldCompatibility,
    SnapshotFormatError,
    UnresolvableSerializerError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between
from typeserializers import former_names
from typeserializers.kernel.known_serializers import restored_with

Int = Annotated[int, ts.IntSerializer()]


@attrs.define
class Base:
    __pojo_class__ = "golden.pojo.Base"
    id: Int


@attrs.define
class SubA(Base):
    __pojo_class__ = "golden.pojo.SubA"
    s: str | None = None


@attrs.define
class SubB(Base):
    __pojo_class__ = "golden.pojo.SubB"
    b: Int = 0


def test_every_kind_of_object_has_the_layout_of_flink() -> None:
    serializer = ts.PojoSerializer(Base, registered_subclasses=[SubB])
    id_field = b"\0\0\0\0\x05"
    assert serializer.to_bytes(None) == b"\x01"
    assert serializer.to_bytes(Base(5)) == b"\x02" + id_field
    assert serializer.to_bytes(SubB(5, 6)) == b"\x08\0\x02" + b"\0\0\0\0\x06" + id_field
    assert serializer.to_bytes(SubA(5)) == b"\x04\0\x10golden.pojo.SubA\x02" + id_field + b"\x01"
    for value in (None, Base(5), SubB(5, 6), SubA(5, "é"), SubA(5)):
        assert serializer.from_bytes(serializer.to_bytes(value)) == value
        assert serializer.copy(value) == value


def test_a_seen_subclass_is_in_the_snapshot_and_restored() -> None:
    serializer = ts.PojoSerializer(Base)
    data = serializer.to_bytes(SubA(1, "x"))
    snapshot = written(serializer)
    assert [part.name for part in snapshot.pojo.unregistered] == ["golden.pojo.SubA"]
    assert restored_with(snapshot, serializer).from_bytes(data) == SubA(1, "x")
    compatibility = compatibility_of(serializer, ts.PojoSerializer(Base, registered_subclasses=[SubA]))
    assert compatibility.is_with_reconfigured_serializer
    assert compatibility.reconfigured_serializer.from_bytes(data) == SubA(1, "x")


def test_an_inherited_field_has_its_declaring_class() -> None:
    snapshot = ts.PojoSerializer(SubA).snapshot_configuration()
    declaring = [(part.name, part.declaring_class) for part in snapshot.pojo.fields]
    assert declaring == [("id", "golden.pojo.Base"), ("s", "golden.pojo.SubA")]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x03", "not a kind of object"),
        (b"\x08\x07\x02", "tag 7"),
        (b"\x08\0\x02", "tag 0 .* no registered subclass"),
        (b"\x04\0\x03a.B\x01", "'a.B'"),
        (b"\x02\x01", "id is null"),
        (b"\x04\0\xff", "truncated"),
        (b"\x02\0\0", "PojoSerializer"),
        (b"", "PojoSerializer"),
    ],
)
def test_bytes_without_an_object_are_rejected(data: bytes, message: str) -> None:
    with pytest.raises(ts.StateFormatError, match=message):
        ts.PojoSerializer(Base).from_bytes(data)


@pytest.mark.parametrize("value", ["text", object(), Base(2**40), Base(None)])  # type: ignore[arg-type]
def test_invalid_values_are_rejected(value: Any) -> None:
    with pytest.raises(ts.SerializationError):
        ts.PojoSerializer(Base).to_bytes(value)


def version(**fields: Any) -> Any:
    namespace: dict[str, Any] = {"__annotations__": {}, "__pojo_class__": "golden.pojo.Versioned"}
    for name, declared in fields.items():
        hint, *default = declared if isinstance(declared, list) else [declared]
        namespace["__annotations__"][name] = hint
        if default:
            namespace[name] = default[0]
    return ts.PojoSerializer(attrs.define(type("Versioned", (), namespace)))


def test_fields_are_added_and_removed_with_their_defaults() -> None:
    old, new = version(a=int, b=str), version(a=int, c=[float, 7.5], d=[list[int], attrs.field(factory=list)])
    compatibility = compatibility_of(old, new)
    assert rules(compatibility) == {".c": "pojo-field-added", ".d": "pojo-field-added", ".b": "pojo-field-removed"}
    assert [issue.path for issue in compatibility.with_compatibility(FieldCompatibility.LOSSY)] == [".b"]
    assert migrated(old, new, old.record_class(1, "x")) == new.record_class(1, 7.5, [])


def test_a_declared_rename_keeps_the_values_though_flink_would_lose_them() -> None:
    old, new = version(a=int, z=str), version(a=int, b=[str, attrs.field(metadata=former_names("z"))])
    assert compatibility_of(old, new).is_after_migration
    assert migrated(old, new, old.record_class(1, "x")) == new.record_class(1, "x")


def test_a_widened_field_is_rejected_like_in_flink() -> None:
    assert compatibility_of(version(a=Int), version(a=int)).is_incompatible


def test_an_enum_without_a_former_constant_is_rejected_where_flink_fails_later() -> None:
    def pojo(*constants: str) -> Any:
        return version(e=Annotated[Any, ts.EnumSerializer(enum.Enum("E", constants), name="golden.pojo.E")])

    assert compatibility_of(pojo("A", "B"), pojo("A", "B", "C")).is_with_reconfigured_serializer
    assert compatibility_of(pojo("A", "B"), pojo("A")).is_incompatible


def test_an_unregistered_subclass_that_evolved_is_migrated_where_flink_misreads() -> None:
    @attrs.define
    class Parent:
        __pojo_class__ = "golden.pojo.Parent"
        id: int

    old = ts.PojoSerializer(Parent)

    @attrs.define
    class Child(Parent):
        __pojo_class__ = "golden.pojo.Child"
        s: str

    data = old.to_bytes(Child(1, "x"))
    snapshot = written(old)

    @attrs.define
    class NewParent:
        __pojo_class__ = "golden.pojo.Parent"
        id: int

    @attrs.define
    class NewChild(NewParent):
        __pojo_class__ = "golden.pojo.Child"
        s: str
        more: int = 9

    new = ts.PojoSerializer(NewParent)
    compatibility = snapshot.resolve_schema_compatibility(new)
    assert compatibility.is_after_migration, str(compatibility)
    migration: SchemaMigration[Any] = migration_between(snapshot, new)
    assert migration.to_value(data) == NewChild(1, "x", 9)


def test_a_removed_subclass_is_rejected_by_name() -> None:
    @attrs.define
    class Lonely:
        __pojo_class__ = "golden.pojo.Base"
        id: Int

    compatibility = compatibility_of(ts.PojoSerializer(Base, registered_subclasses=[SubA]), ts.PojoSerializer(Lonely))
    assert compatibility.is_incompatible
    assert rules(compatibility)["<golden.pojo.SubA>"] == "pojo-subclass-missing"


def test_a_record_in_a_pojo_must_be_a_pojo_too() -> None:
    @attrs.define
    class Plain:
        a: int

    with pytest.raises(ts.UnknownTypeError, match="__pojo_class__"):
        version(a=list[Plain])
    nested = ts.serializer_for(list[Base])
    assert nested == ts.ListSerializer(ts.PojoSerializer(Base))


def test_an_unknown_inner_serializer_is_rejected_by_field_when_used() -> None:
    data = snapshot_to_bytes(version(a=int, b=str).snapshot_configuration())
    unknown = data.replace(b"LongSerializer$LongSerializerSnapshot", b"LongSerializer$GoneSerializerSnapshot")
    snapshot: Any = snapshot_from_bytes(unknown)
    assert snapshot_to_bytes(snapshot) == unknown
    compatibility = snapshot.resolve_schema_compatibility(version(a=int, b=str))
    assert rules(compatibility) == {".a": "serializer-unreadable"}
    with pytest.raises(UnresolvableSerializerError, match="GoneSerializerSnapshot"):
        snapshot.restore_serializer()


def test_a_damaged_frame_is_rejected() -> None:
    data = snapshot_to_bytes(version(a=int).snapshot_configuration())
    for damaged in (data[:-1], data + b"\0", data.replace(bytes.fromhex("000004f2c69a3d70"), bytes(8))):
        with pytest.raises(SnapshotFormatError):
            snapshot_from_bytes(damaged)


def test_a_removed_field_with_unreadable_values_is_rejected() -> None:
    # Their bytes are between those of other fields. A reader that cannot read them does not find their end.
    constants = ts.EnumSerializer(enum.Enum("E", "A xyz"), name="golden.pojo.E")
    old, new = version(a=int, e=Annotated[Any, constants]), version(a=int)
    data = snapshot_to_bytes(old.snapshot_configuration())
    assert not resolve_compatibility(snapshot_from_bytes(data), new).is_incompatible
    # A Java constant may have a name that no Python constant can have.
    compatibility = resolve_compatibility(snapshot_from_bytes(data.replace(b"xyz", b"mro")), new)
    assert compatibility.is_incompatible
    assert [(one.path, one.rule) for one in compatibility.with_compatibility(FieldCompatibility.REJECT)] == [
        (".e", "pojo-field-unreadable")
    ]
