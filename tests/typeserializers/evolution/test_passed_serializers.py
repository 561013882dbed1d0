"""A restored snapshot depends on the passed serializers only."""

from __future__ import annotations

import enum
from typing import Annotated

import attrs
import pytest

import typeserializers as ts
from snapshots import UnresolvableSerializerError, snapshot_from_bytes, snapshot_to_bytes
from typeserializers.kernel.known_serializers import restored_with


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class LongerColour(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


@attrs.frozen
class Paint:
    colour: Colour
    litres: int


@attrs.frozen
class OtherPaint:
    colour: Colour
    litres: int


@attrs.frozen
class Pickled:
    text: str


def test_a_record_is_restored_by_the_passed_serializer_whatever_else_exists() -> None:
    one, other = (ts.AttrsSerializer(paint, name="passed.Paint") for paint in (Paint, OtherPaint))
    snapshot = snapshot_from_bytes(snapshot_to_bytes(one.snapshot_configuration()))
    data = one.to_bytes(Paint(Colour.RED, 3))
    assert restored_with(snapshot, ts.ListSerializer(one)).from_bytes(data) == Paint(Colour.RED, 3)
    assert restored_with(snapshot, other, ts.LongSerializer()).from_bytes(data) == OtherPaint(Colour.RED, 3)
    stand_in = snapshot.restore_serializer().from_bytes(data)
    assert type(stand_in) not in (Paint, OtherPaint)
    assert (type(stand_in.colour) is Colour, stand_in.colour.name, stand_in.litres) == (False, "RED", 3)


def test_an_enum_is_the_passed_one_with_exactly_its_constants() -> None:
    short, long = ts.EnumSerializer(Colour, name="passed.Colour"), ts.EnumSerializer(LongerColour, name="passed.Colour")
    snapshot = snapshot_from_bytes(snapshot_to_bytes(short.snapshot_configuration()))
    for known, expected in (((long, short), Colour), ((long,), LongerColour)):
        assert restored_with(snapshot, *known).python_type is expected
    assert restored_with(snapshot_from_bytes(snapshot_to_bytes(long.snapshot_configuration())), short).name == long.name
    assert snapshot.restore_serializer().python_type not in (Colour, LongerColour)


def test_a_pickle_is_unpickled_only_if_a_passed_serializer_allows_it() -> None:
    serializer = ts.PickleSerializer(Pickled)
    data, snapshot = serializer.to_bytes(Pickled("a")), serializer.snapshot_configuration()
    with pytest.raises(UnresolvableSerializerError, match="unpickled only on request"):
        snapshot.restore_serializer().from_bytes(data)
    converting = ts.ConvertingSerializer(ts.StringSerializer(), {ts.ListSerializer(serializer): str})
    for known in (serializer, ts.NullableSerializer(serializer), converting):
        assert restored_with(snapshot, known).from_bytes(data) == Pickled("a")
    with pytest.raises(UnresolvableSerializerError):
        restored_with(snapshot, ts.PickleSerializer(Paint)).from_bytes(data)


@attrs.frozen
class Base:
    __pojo_class__ = "passed.Base"
    id: Annotated[int, ts.IntSerializer()]


@attrs.frozen
class Sub(Base):
    __pojo_class__ = "passed.Sub"
    extra: Annotated[int, ts.IntSerializer()]


def test_a_subclass_is_found_through_its_base_class() -> None:
    serializer = ts.PojoSerializer(Base)
    data = serializer.to_bytes(Sub(1, 2))
    snapshot = snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))
    fresh = ts.PojoSerializer(Base)
    assert restored_with(snapshot, fresh).from_bytes(data) == Sub(1, 2)
    assert not fresh.unregistered_subclasses
    assert type(snapshot.restore_serializer().from_bytes(data)) is not Sub
