"""Migration of unknown serializers: adopted ones, and custom composites."""

from __future__ import annotations

import datetime
from collections.abc import Hashable, Sequence
from typing import Any

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError
from snapshots import (
    CompatibilityIssue,
    CompositeTypeSerializerSnapshot,
    DataInputView,
    DataOutputView,
    FieldCompatibility,
    SimpleTypeSerializerSnapshot,
    TypeSerializerSchemaCompatibility,
    TypeSerializerSnapshot,
    register_snapshot,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between


def stored(serializer: ts.TypeSerializer[Any]) -> TypeSerializerSnapshot[Any]:
    return snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))


class Celsius(float):
    """A temperature."""


class CelsiusSerializer(ts.TypeSerializer[Celsius]):
    """A hand-written serializer over the views that adopts the bytes of `DoubleSerializer`."""

    def serialize(self, value: Celsius, out: DataOutputView) -> None:
        out.write_long(round(value * 1000))

    def deserialize(self, source: DataInputView) -> Celsius:
        return Celsius(source.read_long() / 1000)

    def create_instance(self) -> Celsius:
        return Celsius(0)

    def snapshot_configuration(self) -> CelsiusSerializerSnapshot:
        return CelsiusSerializerSnapshot()


@register_snapshot("tests.CelsiusSerializerSnapshot")
class CelsiusSerializerSnapshot(SimpleTypeSerializerSnapshot[Celsius]):
    def create_serializer(self) -> CelsiusSerializer:
        return CelsiusSerializer()

    def adopt_schema(
        self, old_snapshot: TypeSerializerSnapshot[Any]
    ) -> TypeSerializerSchemaCompatibility[Celsius] | None:
        if not isinstance(old_snapshot.restore_serializer(), ts.DoubleSerializer):
            return None
        return TypeSerializerSchemaCompatibility.compatible_after_migration(
            [CompatibilityIssue("", FieldCompatibility.MIGRATE, "celsius", "kept in thousandths")]
        )


def test_an_adopting_serializer_gets_its_own_bytes_and_values() -> None:
    old, new = ts.DoubleSerializer(), CelsiusSerializer()
    assert resolve_compatibility(stored(old), new).is_after_migration
    assert resolve_compatibility(stored(ts.LongSerializer()), new).is_incompatible
    migration = migration_between(stored(old), new)
    assert migration.to_bytes(old.to_bytes(1.5)) == (1500).to_bytes(8, "big")
    value = migration.to_value(old.to_bytes(1.5))
    assert (type(value), value) == (Celsius, 1.5)


def test_adoption_works_inside_lists_and_records() -> None:
    @attrs.frozen
    class Reading:
        values: Any

    def reading(element: ts.TypeSerializer[Any]) -> ts.AttrsSerializer[Reading]:
        return ts.AttrsSerializer(Reading, field_serializers={"values": ts.ListSerializer(element)})

    old, new = reading(ts.DoubleSerializer()), reading(CelsiusSerializer())
    compatibility = resolve_compatibility(stored(old), new)
    assert [(issue.path, issue.rule) for issue in compatibility.issues] == [(".values[]", "celsius")]
    migration = migration_between(stored(old), new)
    value = migration.to_value(old.to_bytes(Reading([1.5, 2.5])))
    assert value == Reading([Celsius(1.5), Celsius(2.5)])
    assert {type(item) for item in value.values} == {Celsius}
    assert migration.to_bytes(old.to_bytes(Reading([1.5, 2.5]))) == new.to_bytes(value)


def test_an_adopted_date_is_migrated_to_the_new_type_also_as_a_value() -> None:
    old, new = ts.LocalDateSerializer(), ts.PythonDateSerializer()
    assert resolve_compatibility(stored(old), new).is_after_migration
    migration = migration_between(old, new)
    assert migration.to_value(old.to_bytes(ts.LocalDate(2024, 2, 29))) == datetime.date(2024, 2, 29)
    with pytest.raises(MigrationError):
        migration.to_value(old.to_bytes(ts.LocalDate(12024, 2, 29)))


class Pair(tuple[Any, Any]):
    """A custom container."""


class PairSerializer(ts.TypeSerializer[Any]):
    """A custom composite that writes the second part before the first."""

    def __init__(self, first: ts.TypeSerializer[Any], second: ts.TypeSerializer[Any]) -> None:
        self.first = first
        self.second = second

    def configuration(self) -> Hashable:
        return self.first, self.second

    def serialize(self, value: Any, out: DataOutputView) -> None:
        self.second.serialize(value[1], out)
        self.first.serialize(value[0], out)

    def deserialize(self, source: DataInputView) -> Any:
        second = self.second.deserialize(source)
        return Pair((self.first.deserialize(source), second))

    def create_instance(self) -> Any:
        return Pair((self.first.create_instance(), self.second.create_instance()))

    def snapshot_configuration(self) -> PairSerializerSnapshot:
        return PairSerializerSnapshot(self)


@register_snapshot("tests.PairSerializerSnapshot")
class PairSerializerSnapshot(CompositeTypeSerializerSnapshot[Any, PairSerializer]):
    outer_serializer_class = PairSerializer

    def nested_serializers(self, outer: PairSerializer) -> Sequence[ts.TypeSerializer[Any]]:
        return outer.first, outer.second

    def create_outer_serializer(self, nested: Sequence[ts.TypeSerializer[Any]]) -> PairSerializer:
        return PairSerializer(nested[0], nested[1])


def versions() -> tuple[ts.AttrsSerializer[Any], ts.AttrsSerializer[Any]]:
    old = attrs.make_class("Part", {"a": attrs.field(type=int)}, frozen=True)
    new = attrs.make_class("Part", {"a": attrs.field(type=float), "b": attrs.field(type=str, default="x")}, frozen=True)
    return ts.AttrsSerializer(old), ts.AttrsSerializer(new)


@pytest.mark.parametrize(
    ("around", "hold"),
    [
        (lambda part: PairSerializer(ts.StringSerializer(), part), lambda item: Pair(("k", item))),
        (lambda part: ts.GenericArraySerializer(part, "Part"), lambda item: [item, None, item]),
        (lambda part: ts.RowSerializer([part, ts.LongSerializer()]), lambda item: ts.Row(item, 3)),
        (lambda part: ts.RowSerializer([part], ["p"]), lambda item: ts.Row.named(p=item)),
        (lambda part: ts.EitherSerializer(part, ts.LongSerializer()), ts.Left),
        (lambda part: ts.UnionSerializer([ts.StringSerializer(), part]), lambda item: item),
        (lambda part: ts.SetSerializer(part), lambda item: {item}),
        (lambda part: ts.FrozenSetSerializer(part), lambda item: frozenset({item})),
        (lambda part: ts.TtlSerializer(part), lambda item: ts.TtlValue(item, 5)),
        (lambda part: ts.TimerSerializer(part, ts.LongSerializer()), lambda item: ts.Timer(5, item, 6)),
        (lambda part: ts.NullableSerializer(part), lambda item: item),
        (lambda part: ts.ListSerializer(ts.ListSerializer(part)), lambda item: [[item], []]),
        (lambda part: ts.ArrayListSerializer(part), lambda item: [item]),
        (
            lambda part: ts.MapSerializer(part, ts.MapSerializer(ts.LongSerializer(), part)),
            lambda item: {item: {1: item}},
        ),
        (lambda part: ts.TupleSerializer([part, part]), lambda item: (item, item)),
    ],
)
def test_a_record_evolves_inside_every_composite(around: Any, hold: Any) -> None:
    old_part, new_part = versions()
    old, new = around(old_part), around(new_part)
    compatibility = resolve_compatibility(stored(old), new)
    assert compatibility.is_after_migration, str(compatibility)
    data = old.to_bytes(hold(old_part.record_class(3)))
    migration = migration_between(stored(old), new)
    value = migration.to_value(data)
    assert value == hold(new_part.record_class(3.0, "x"))
    assert type(value) is type(new.from_bytes(new.to_bytes(value)))
    assert migration.to_bytes(data) == new.to_bytes(value)


def test_lists_of_either_class_adopt_each_other_while_their_elements_evolve() -> None:
    old_part, new_part = versions()
    old, new = ts.ArrayListSerializer(old_part), ts.ListSerializer(new_part)
    assert resolve_compatibility(stored(old), new).is_after_migration
    assert migration_between(old, new).to_value(old.to_bytes([old_part.record_class(1)])) == [
        new_part.record_class(1.0)
    ]


def test_a_type_nested_deeper_than_python_blocks_is_migrated() -> None:
    old, new = versions()
    old_value, new_value = old.record_class(1), new.record_class(1.0)
    deep_old: ts.TypeSerializer[Any] = old
    deep_new: ts.TypeSerializer[Any] = new
    for _ in range(25):
        deep_old, deep_new = ts.ListSerializer(deep_old), ts.ListSerializer(deep_new)
        old_value, new_value = [old_value, old_value][:1], [new_value]
    migration = migration_between(deep_old, deep_new)
    assert migration.to_value(deep_old.to_bytes(old_value)) == new_value
    assert migration.to_bytes(deep_old.to_bytes(old_value)) == deep_new.to_bytes(new_value)


@pytest.mark.parametrize("cut", [0, 1, 5, 12])
def test_truncated_and_trailing_bytes_are_rejected(cut: int) -> None:
    old_part, new_part = versions()
    old, new = ts.ListSerializer(old_part), ts.ListSerializer(new_part)
    data = old.to_bytes([old_part.record_class(7)] * 2)
    migration = migration_between(old, new)
    for damaged in (data[:cut], data + b"\0" * (cut + 1)):
        with pytest.raises(MigrationError):
            migration.to_bytes(damaged)
        with pytest.raises(MigrationError):
            migration.to_value(damaged)
