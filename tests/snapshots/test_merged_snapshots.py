"""Merged snapshots of several writers of one state, and combinations that cannot be merged."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import pytest

import typeserializers as ts
from snapshots import SimpleTypeSerializerSnapshot, snapshot_from_bytes, snapshot_to_bytes
from snapshots.composite import merge_snapshots

Int = Annotated[int, ts.IntSerializer()]


@attrs.define
class Animal:
    __pojo_class__ = "merged.Animal"
    legs: Int = 4


@attrs.define
class Cat(Animal):
    __pojo_class__ = "merged.Cat"
    lives: Int = 9


@attrs.define
class Dog(Animal):
    __pojo_class__ = "merged.Dog"
    tricks: Int = 0


@attrs.define
class OtherCat(Animal):
    __pojo_class__ = "merged.Cat"
    lives: int = 9


@attrs.define
class Zoo:
    name: str
    star: Animal | None = None


def animals(*met: Any, registered: Any = ()) -> ts.PojoSerializer[Any]:
    serializer = ts.PojoSerializer(Animal, registered_subclasses=registered)
    for value in met:
        serializer.to_bytes(value)
    return serializer


def merged(one: ts.TypeSerializer[Any], other: ts.TypeSerializer[Any]) -> Any:
    """Merge in both orders, through bytes. Both results must be equal."""
    first, second = (snapshot_from_bytes(snapshot_to_bytes(it.snapshot_configuration())) for it in (one, other))
    there, back = merge_snapshots(first, second), merge_snapshots(second, first)
    assert (there is None) == (back is None)
    return there


WRAPPED = [
    lambda inner: inner,
    ts.ListSerializer,
    ts.NullableSerializer,
    ts.TtlSerializer,
    lambda inner: ts.MapSerializer(ts.StringSerializer(), inner),
    lambda inner: ts.TupleSerializer([ts.LongSerializer(), inner]),
    lambda inner: ts.AttrsSerializer(Zoo, field_serializers={"star": ts.NullableSerializer(inner)}),
    lambda inner: ts.ConvertingSerializer(inner, {ts.LongSerializer(): Animal}),
]


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_separately_seen_subclasses_are_merged_wherever_the_class_occurs(wrapped: Any) -> None:
    cats, dogs, both = (wrapped(animals(*met)) for met in ([Cat()], [Dog()], [Cat(), Dog()]))
    expected = snapshot_to_bytes(both.snapshot_configuration())
    assert snapshot_to_bytes(merged(cats, dogs)) == expected
    assert snapshot_to_bytes(merged(both, dogs)) == expected
    assert merged(cats, wrapped(ts.PojoSerializer(Dog))) is None


def test_tags_are_merged_if_they_mean_the_same_classes() -> None:
    registered = merged(animals(registered=[Cat]), animals(registered=[Cat, Dog])).pojo
    assert [part.name for part in registered.registered] == ["merged.Cat", "merged.Dog"]
    assert merged(animals(registered=[Cat]), animals(registered=[Dog])) is None
    assert merged(animals(registered=[Cat, Dog]), animals(registered=[Dog, Cat])) is None
    assert merged(animals(registered=[Cat, Dog]), animals(registered=[Dog])) is None


def test_a_subclass_may_have_a_tag_in_one_snapshot_and_none_in_the_other() -> None:
    pojo = merged(animals(registered=[Cat]), animals(Cat(), Dog())).pojo
    assert [part.name for part in pojo.registered] == ["merged.Cat"]
    assert [part.name for part in pojo.unregistered] == ["merged.Cat", "merged.Dog"]


@pytest.mark.parametrize("tagged", [False, True])
def test_a_subclass_with_two_shapes_has_no_merged_snapshot(tagged: bool) -> None:
    other = animals(registered=[OtherCat]) if tagged else animals(OtherCat())
    assert merged(animals(Cat()), other) is None


def test_an_unknown_snapshot_merges_with_an_equal_one_only() -> None:
    def with_unknown_field(lives: bytes) -> Any:
        data = snapshot_to_bytes(animals(Cat()).snapshot_configuration())
        return snapshot_from_bytes(data.replace(b"IntSerializerSnapshot", lives))

    known, unknown = with_unknown_field(b"IntSerializerSnapshot"), with_unknown_field(b"Int5erializerSnapshot")
    assert merge_snapshots(unknown, with_unknown_field(b"Int5erializerSnapshot")) is not None
    assert merge_snapshots(unknown, with_unknown_field(b"Int6erializerSnapshot")) is None
    assert merge_snapshots(unknown, known) is None
    assert merge_snapshots(known, unknown) is None


def test_composites_of_another_class_length_or_configuration_are_not_merged() -> None:
    assert merged(ts.ListSerializer(animals(Cat())), ts.SetSerializer(animals(Dog()))) is None
    assert merged(ts.TupleSerializer([animals(Cat())]), ts.TupleSerializer([animals(Dog()), animals()])) is None
    rows = [ts.RowSerializer([animals(one)], supports_row_kind=kind) for one, kind in ((Cat(), True), (Dog(), False))]
    assert merged(rows[0], rows[1]) is None
    assert merged(rows[0], ts.RowSerializer([animals(Dog())])) is not None


def test_records_that_differ_in_more_than_learned_parts_are_not_merged() -> None:
    def zoo(serializer: Any, **options: Any) -> Any:
        return ts.AttrsSerializer(Zoo, field_serializers={"star": ts.NullableSerializer(serializer)}, **options)

    assert merged(zoo(animals(Cat())), zoo(animals(Dog()))) is not None
    assert merged(zoo(animals(Cat())), zoo(animals(Dog()), name="another.Zoo")) is None
    assert merged(zoo(animals(Cat())), zoo(animals(Dog()), schema_version=2)) is None


def test_a_snapshot_without_merge_rules_merges_with_an_equal_one_only() -> None:
    assert merged(ts.LongSerializer(), ts.LongSerializer()) is not None
    assert merged(ts.LongSerializer(), ts.IntSerializer()) is None
    assert (
        SimpleTypeSerializerSnapshot.merged_with(
            ts.LongSerializer().snapshot_configuration(), ts.LongSerializer().snapshot_configuration()
        )
        is None
    )
