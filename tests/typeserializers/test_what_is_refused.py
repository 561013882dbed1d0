"""Refusals that one side alone would not show: a name before and behind the right one, a part and the whole."""

from __future__ import annotations

import enum
from typing import Annotated

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from snapshots import (
    DataInputView,
    SerializationError,
    SnapshotFormatError,
    StateFormatError,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from typeserializers.part_evolution import resolve_part
from typeserializers.references import ReferenceSerializerSnapshot

LONG, STRING, INT = ts.LongSerializer(), ts.StringSerializer(), ts.IntSerializer()


@attrs.frozen
class Narrow:
    size: Annotated[int, INT]


@attrs.frozen
class Wide:
    size: int


@pytest.mark.parametrize("arity", [b"1", b"3", b"0", b"9"])
def test_a_tuple_of_another_class_than_its_fields_is_refused(arity: bytes) -> None:
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


def test_a_refusal_of_a_part_is_that_of_the_whole() -> None:
    error = SerializationError("Inner", ("value: is not right",))
    assert ts.ListSerializer(LONG).serialization_error([1], error) is error
    other = ts.ListSerializer(LONG).serialization_error(["x"], TypeError("wrong"))
    assert other.problems[0].startswith("[0]: 'x'")
    assert LONG.serialization_error(5, TypeError("wrong")).problems == ("TypeError: wrong",)


def test_becoming_optional_does_not_make_another_type_fit() -> None:
    assert resolve_part(LONG.snapshot_configuration(), ts.NullableSerializer(STRING)).is_incompatible
    assert resolve_part(LONG.snapshot_configuration(), ts.NullableSerializer(INT)).is_incompatible
    for fitting in (LONG, ts.DoubleSerializer()):
        verdict = resolve_part(LONG.snapshot_configuration(), ts.NullableSerializer(fitting))
        assert verdict.is_after_migration
        assert verdict.findings[0].rule == "field-became-optional"


def test_a_member_of_a_union_is_reconfigured_with_it() -> None:
    old = ts.UnionSerializer([STRING, ts.EnumSerializer(enum.Enum("Kind", ["A", "B"]), name="kinds.Kind")])
    new_enum = enum.Enum("Kind", ["B", "C", "A"])
    for members in ([STRING, new_enum], [new_enum, STRING]):
        parts = [ts.EnumSerializer(part, name="kinds.Kind") if part is new_enum else part for part in members]
        verdict = resolve_compatibility(old.snapshot_configuration(), ts.UnionSerializer(parts))
        serializer = verdict.reconfigured_serializer
        for constant in old.member_serializers[1].enum_class:
            data = old.to_bytes(constant)
            assert serializer.from_bytes(data) is new_enum[constant.name]
            assert serializer.to_bytes(new_enum[constant.name]) == data
        assert serializer.from_bytes(serializer.to_bytes(new_enum["C"])) is new_enum["C"]
        assert serializer.from_bytes(old.to_bytes("x")) == "x"


@pytest.mark.parametrize("version", [-1, 0, 2])
def test_a_reference_of_an_unknown_version_is_refused(version: int) -> None:
    snapshot = ReferenceSerializerSnapshot()
    snapshot.read_snapshot(1, DataInputView(b"\0\1a"))
    assert snapshot.name == "a"
    with pytest.raises(SnapshotFormatError, match=f"version {version}"):
        snapshot.read_snapshot(version, DataInputView(b"\0\1a"))


def test_bytes_that_no_part_is_to_blame_for_fail_with_their_reason() -> None:
    migration = SchemaMigration(
        ts.AttrsSerializer(Narrow, name="widths.Width"), ts.AttrsSerializer(Wide, name="widths.Width")
    )
    data = migration.old.to_bytes(Narrow(7))
    assert migration.to_value(data) == Wide(7)
    assert migration.to_bytes(data) == migration.new.to_bytes(Wide(7))
    for convert in (migration.to_value, migration.to_bytes):
        for cut in range(len(data)):
            with pytest.raises(MigrationError):
                convert(data[:cut])
        with pytest.raises(MigrationError, match="written by another serializer"):
            convert(data + b"\0")
