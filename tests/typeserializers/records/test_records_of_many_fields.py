"""Snapshots with very many fields, and with names that no class can have."""

from __future__ import annotations

import re
import string
import sys
from typing import Annotated

import attrs
import pytest

from snapshots import (
    SimpleTypeSerializerSnapshot,
    SnapshotFormatError,
    register_snapshot,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from typeserializers import AttrsSerializer, IntSerializer
from typeserializers.pojos.pojo_shape import stand_in_shape
from typeserializers.records.record_serializer import stand_in_class


def steps_of_restoring(count: int) -> int:
    """The number of Python lines that run to restore, read and check a record of that many fields."""
    names = [f"field{number}" for number in range(count)]
    serializer = AttrsSerializer(attrs.make_class("Wide", {name: attrs.field(type=int, default=0) for name in names}))
    data = snapshot_to_bytes(serializer.snapshot_configuration()).replace(b"Wide", b"Gone")
    steps = 0

    def count_line(frame: object, event: str, argument: object) -> object:
        nonlocal steps
        steps += 1
        return count_line

    former = sys.gettrace()
    sys.settrace(count_line)  # type: ignore[arg-type]
    try:
        snapshot = snapshot_from_bytes(data)
        snapshot.restore_serializer()
        resolve_compatibility(snapshot, serializer)
    finally:
        sys.settrace(former)
    return steps


def test_restoring_a_record_is_linear_in_its_fields() -> None:
    assert steps_of_restoring(400) < 2.2 * steps_of_restoring(200)


def test_a_stand_in_compiles_nothing_quadratic_in_its_fields() -> None:
    made = stand_in_class("my.Wide", ["a", "b"])
    assert "__eq__" not in made.__dict__
    assert "__repr__" not in made.__dict__


def test_a_stand_in_is_equal_by_its_fields_and_shows_them() -> None:
    made = stand_in_class("my.Point", ["x", "y"])
    assert made(x=1, y=2) == made(x=1, y=2)
    assert hash(made(x=1, y=2)) == hash(made(x=1, y=2))
    assert made(x=1, y=2) != made(x=1, y=3)
    assert made(x=1, y=2) != stand_in_class("my.Point", ["x", "y"])(x=1, y=2)
    assert repr(made(x=1, y="a")) == "Point(x=1, y='a')"
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        made(x=1, y=2).x = 3


@attrs.frozen
class Crafted:
    nameone1: int
    nametwo2: int


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("__slots__", "x"),
        ("__class__", "x"),
        ("__eq__", "x"),
        ("\ufb01", "fi"),
        ("class", "x"),
        ("x", "x"),
        ("x\n", "y"),
        ("", "y"),
    ],
)
def test_names_that_no_class_can_have_are_damage(first: str, second: str) -> None:
    def put(data: bytes, old: bytes, name: str) -> bytes:
        encoded = name.encode()
        return data.replace(len(old).to_bytes(2, "big") + old, len(encoded).to_bytes(2, "big") + encoded)

    data = snapshot_to_bytes(AttrsSerializer(Crafted).snapshot_configuration()).replace(b"Crafted", b"Missing")
    data = put(put(data, b"nameone1", first), b"nametwo2", second)
    with pytest.raises(SnapshotFormatError, match=re.escape("the bytes are damaged")):
        snapshot_from_bytes(data).restore_serializer()


@pytest.mark.parametrize("first", ["self", "__slots__", "\ufb01", "class", "", "x y", "field_0"])
def test_any_names_of_a_java_class_become_attributes(first: str) -> None:
    fields = [(name, "org.example.Missing", IntSerializer()) for name in (first, "fi")]
    shape = stand_in_shape("org.example.Missing", fields)
    first_attribute, second_attribute = (part.record_field.name for part in shape.fields)
    assert first_attribute != second_attribute
    arguments = {part.record_field.argument: 1 for part in shape.fields}
    assert shape.record_class(**arguments) is not None


@pytest.mark.usefixtures("own_registrations")
def test_the_shortest_possible_fields_are_not_rejected_as_too_many() -> None:
    class BriefSerializer(IntSerializer):
        """Has the shortest snapshot."""

        def snapshot_configuration(self) -> BriefSerializerSnapshot:
            return BriefSerializerSnapshot()

    @register_snapshot("x")
    class BriefSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
        serializer_class = BriefSerializer

    brief = attrs.field(type=Annotated[int, BriefSerializer()])  # type: ignore[call-overload]
    serializer = AttrsSerializer(attrs.make_class("Brief", dict.fromkeys(string.ascii_letters, brief)))
    snapshot = snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))
    assert resolve_compatibility(snapshot, serializer).is_as_is
