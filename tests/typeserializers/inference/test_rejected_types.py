"""Rejections on both sides of a limit: names before and after the right one, a part and the composite."""

from __future__ import annotations

import enum
from typing import Annotated, Any

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError
from snapshots import (
    DataInputView,
    DataOutputView,
    SerializationError,
    SnapshotFormatError,
    StateFormatError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between
from typeserializers.evolution.record_evolution import resolve_part
from typeserializers.kernel.references import ReferenceSerializerSnapshot

LONG, STRING, INT = ts.LongSerializer(), ts.StringSerializer(), ts.IntSerializer()


@attrs.frozen
class Narrow:
    size: Annotated[int, INT]


@attrs.frozen
class Wide:
    size: int


@pytest.mark.parametrize("arity", [b"1", b"3", b"0", b"9"])
def test_a_tuple_of_another_class_than_its_fields_is_rejected(arity: bytes) -> None:
    data = snapshot_to_bytes(ts.TupleSerializer([LONG, STRING]).snapshot_configuration())
    assert data.count(b"Tuple2") == 1
    with pytest.raises(SnapshotFormatError, match=f"Tuple{arity.decode()}' with 2 fields"):
        snapshot_from_bytes(data.replace(b"Tuple2", b"Tuple" + arity))


def test_an_empty_tuple_is_its_mark_or_a_zero() -> None:
    serializer = ts.Tuple0Serializer()
    for byte in range(256):
        data = bytes((byte,))
        for read in (serializer.from_bytes, lambda data: serializer.deserialize(DataInputView(data))):
            if byte in (0, 0x2A):
                assert read(data) == ()
                continue
            with pytest.raises(StateFormatError, match="the empty tuple is"):
                read(data)


def test_a_rejection_of_a_part_is_that_of_the_composite() -> None:
    error = SerializationError("Inner", ("value: is not right",))
    assert ts.ListSerializer(LONG).serialization_error([1], error) is error
    other = ts.ListSerializer(LONG).serialization_error(["x"], TypeError("wrong"))
    assert other.problems[0].startswith("[0]: 'x'")
    assert LONG.serialization_error(5, TypeError("wrong")).problems == ("TypeError: wrong",)


def test_becoming_optional_does_not_make_another_type_compatible() -> None:
    assert resolve_part(LONG.snapshot_configuration(), ts.NullableSerializer(STRING)).is_incompatible
    assert resolve_part(LONG.snapshot_configuration(), ts.NullableSerializer(INT)).is_incompatible
    for fitting in (LONG, ts.DoubleSerializer()):
        compatibility = resolve_part(LONG.snapshot_configuration(), ts.NullableSerializer(fitting))
        assert compatibility.is_after_migration
        assert compatibility.issues[0].rule == "field-became-optional"


def test_a_member_of_a_union_is_reconfigured_with_the_union() -> None:
    old = ts.UnionSerializer([STRING, ts.EnumSerializer(enum.Enum("Kind", ["A", "B"]), name="kinds.Kind")])
    new_enum = enum.Enum("Kind", ["B", "C", "A"])
    for members in ([STRING, new_enum], [new_enum, STRING]):
        parts = [ts.EnumSerializer(part, name="kinds.Kind") if part is new_enum else part for part in members]
        compatibility = resolve_compatibility(old.snapshot_configuration(), ts.UnionSerializer(parts))
        serializer = compatibility.reconfigured_serializer
        for constant in old.member_serializers[1].enum_class:
            data = old.to_bytes(constant)
            assert serializer.from_bytes(data) is new_enum[constant.name]
            assert serializer.to_bytes(new_enum[constant.name]) == data
        assert serializer.from_bytes(serializer.to_bytes(new_enum["C"])) is new_enum["C"]
        assert serializer.from_bytes(old.to_bytes("x")) == "x"


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_a_reference_of_an_unknown_version_is_rejected(version: int) -> None:
    snapshot = ReferenceSerializerSnapshot()
    snapshot.read_snapshot(1, DataInputView(b"\0\1a"))
    assert snapshot.name == "a"
    with pytest.raises(SnapshotFormatError, match=f"version {version}"):
        snapshot.read_snapshot(version, DataInputView(b"\0\1a"))


def test_bytes_without_a_failing_part_have_a_reason() -> None:
    old = ts.AttrsSerializer(Narrow, name="widths.Width")
    migration = migration_between(old, ts.AttrsSerializer(Wide, name="widths.Width"))
    data = old.to_bytes(Narrow(7))
    assert migration.to_value(data) == Wide(7)
    assert migration.to_bytes(data) == migration.new.to_bytes(Wide(7))
    for convert in (migration.to_value, migration.to_bytes):
        for cut in range(len(data)):
            with pytest.raises(MigrationError):
                convert(data[:cut])
        with pytest.raises(MigrationError, match="another serializer wrote these bytes"):
            convert(data + b"\0")


@attrs.frozen
class Labelled:
    label: str
    note: str | None = None


def test_none_is_rejected_in_a_required_field_even_if_its_serializer_could_write_it() -> None:
    serializer = ts.AttrsSerializer(Labelled)
    for misfit in (Labelled(None), Labelled(None, "x")):  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match="label"):
            serializer.to_bytes(misfit)
        with pytest.raises(SerializationError, match="label"):
            serializer.serialize(misfit, DataOutputView())
    data = serializer.to_bytes(Labelled("", None))
    assert serializer.from_bytes(data) == Labelled("", None)
    assert data[0] == 1
    for read in (serializer.from_bytes, lambda data: serializer.deserialize(DataInputView(data))):
        with pytest.raises(StateFormatError, match="label"):
            read(b"\0" + data[1:])


def test_ttl_changes_only_between_states_of_one_shape() -> None:
    ttl = ts.TtlSerializer(LONG)
    list_of, map_of = ts.ListSerializer, lambda inner: ts.MapSerializer(STRING, inner)
    for prior, new in (
        (list_of(LONG), LONG),
        (LONG, list_of(LONG)),
        (map_of(LONG), LONG),
        (LONG, map_of(LONG)),
        (list_of(LONG), map_of(LONG)),
        (map_of(LONG), list_of(LONG)),
        (list_of(LONG), list_of(list_of(ttl))),
    ):
        assert ts.resolve_ttl_aware_compatibility(prior.snapshot_configuration(), new).is_incompatible
    for same in (ttl, list_of(ttl), map_of(ttl)):
        assert ts.resolve_ttl_aware_compatibility(same.snapshot_configuration(), same).is_as_is
    for prior, new in ((LONG, ttl), (ttl, LONG), (list_of(LONG), list_of(ttl)), (map_of(ttl), map_of(LONG))):
        assert ts.resolve_ttl_aware_compatibility(prior.snapshot_configuration(), new).is_after_migration


@pytest.mark.parametrize("nanos", [4_999_999, 6_000_000, 999_999_999, 0, -1, 1_005_000_000])
def test_a_timestamp_has_equal_milliseconds_in_both_places(nanos: int) -> None:
    for fitting in (5_000_000, 5_999_999):
        assert ts.SqlTimestamp(1005, fitting).nanos == fitting
    with pytest.raises(ValueError, match="does not match epoch_milli 1005"):
        ts.SqlTimestamp(1005, nanos)


@pytest.mark.parametrize(
    "serializer",
    [
        ts.TtlSerializer(LONG),
        ts.TupleSerializer([LONG, STRING]),
        ts.NullableSerializer(LONG),
        ts.TimerSerializer(STRING, LONG),
        ts.AttrsSerializer(Labelled),
    ],
)
def test_a_copy_of_an_immutable_value_is_the_value(serializer: ts.TypeSerializer[Any]) -> None:
    value = Labelled("x") if isinstance(serializer, ts.AttrsSerializer) else serializer.create_instance()
    assert serializer.is_immutable_type
    assert serializer.copy(value) is value


def test_a_copy_of_a_mutable_value_shares_nothing_mutable() -> None:
    inner = ts.ListSerializer(LONG)
    for serializer, value, changed in (
        (ts.TtlSerializer(inner), ts.TtlValue([1], 5), lambda copied: copied.value),
        (ts.TupleSerializer([inner, LONG]), ([1], 2), lambda copied: copied[0]),
        (ts.NullableSerializer(inner), [1], lambda copied: copied),
        (ts.EitherSerializer(inner, LONG), ts.Left([1]), lambda copied: copied.value),
    ):
        assert not serializer.is_immutable_type
        copied = serializer.copy(value)
        assert copied == value
        changed(copied).append(2)
        assert copied != value


@pytest.mark.parametrize("misfit", [None, 5, b"a", ["a"]])
def test_a_string_value_is_a_str(misfit: Any) -> None:
    serializer = ts.StringValueSerializer()
    with pytest.raises(SerializationError):
        serializer.to_bytes(misfit)
    with pytest.raises(SerializationError):
        serializer.serialize(misfit, DataOutputView())


@attrs.define
class Changeable:
    text: str


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        (set[list[int]], r"the type: a list\[int\] is not hashable and cannot be an element of a set; write a tuple"),
        (list[frozenset[tuple[int, dict[str, int]]]], r"^\[\]: a dict\[str, int\] is not hashable"),
        (dict[set[int], str], r"cannot be the key of a map; write a frozenset"),
        (set[Changeable], r"a frozen class in place of Changeable"),
    ],
)
def test_unhashable_elements_are_rejected_where_a_hash_is_needed(hint: Any, message: str) -> None:
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.serializer_for(hint)


def test_hashable_values_may_be_elements_or_keys() -> None:
    for hint in (set[tuple[int, str]], dict[frozenset[int] | str, int], set[Labelled], frozenset[int | None]):
        ts.serializer_for(hint)
