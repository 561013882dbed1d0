"""A failed migration names the path inside the value, and migrated bytes are read back as a check."""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import pytest

import typeserializers as ts
from migration import CONVERSIONS, Conversion, MigrationError, SchemaMigration
from migration.conversion import RewritingConversion, Write
from migration.schema_migration import must_be_read_back
from snapshots import CustomPlan, PartsPlan, resolve_compatibility
from snapshots.compatibility import AS_IS
from statebackend.testing.upgrades import migration_between
from typeserializers import converted_by
from typeserializers.evolution.record_evolution import resolve_part
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter

Int = Annotated[int, ts.IntSerializer()]


def migration(old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any]) -> SchemaMigration[Any]:
    snapshot = old.snapshot_configuration()
    assert resolve_compatibility(snapshot, new).is_after_migration
    return migration_between(snapshot, new)


def rejected(value: str) -> int:
    raise ValueError("never")


@attrs.frozen
class Old:
    text: str


@attrs.frozen
class New:
    text: int = attrs.field(metadata=converted_by(rejected))


def record(record_class: type, **fields: ts.TypeSerializer[Any]) -> ts.AttrsSerializer[Any]:
    return ts.AttrsSerializer(record_class, name="failing.Record", field_serializers=fields)


INSIDE = [
    (lambda inner: inner, lambda value: value, ""),
    (ts.ListSerializer, lambda value: [value], "[0]"),
    (ts.NullableSerializer, lambda value: value, ""),
    (lambda inner: ts.MapSerializer(ts.StringSerializer(), inner), lambda value: {"k": value}, "['k']"),
    (lambda inner: ts.TupleSerializer([ts.LongSerializer(), inner]), lambda value: (1, value), "[1]"),
    (ts.TtlSerializer, lambda value: ts.TtlValue(value, 7), ""),
]


@pytest.mark.parametrize(("around", "value", "path"), INSIDE)
def test_the_path_leads_to_the_field_and_names_converter_error_and_value(around: Any, value: Any, path: str) -> None:
    old, new = around(record(Old)), around(record(New))
    data = old.to_bytes(value(Old("lost")))
    reported = "the converter rejected raised ValueError: never (the old value is 'lost')"
    expected = f"{path}.text: MalformedDataError: {reported}"
    for convert in (migration(old, new).to_bytes, migration(old, new).to_value):
        with pytest.raises(MigrationError) as failed:
            convert(data)
        assert f": {expected}" in str(failed.value)


@attrs.define
class Inner:
    __pojo_class__ = "failing.Inner"
    id: Int


@attrs.define
class WiderInner:
    __pojo_class__ = "failing.Inner"
    id: Int
    more: Int = 7


@attrs.define
class Holder:
    inner: Inner


@attrs.define
class WiderHolder:
    inner: WiderInner


@attrs.define
class OptionalHolder:
    inner: WiderInner | None


@pytest.mark.parametrize("new_class", [WiderHolder, OptionalHolder])
def test_a_required_part_is_migrated_and_a_null_in_its_place_is_damage(new_class: Any) -> None:
    old = ts.AttrsSerializer(Holder, name="failing.Holder")
    new = ts.AttrsSerializer(new_class, name="failing.Holder")
    for convert in (migration(old, new).to_value, lambda data: new.from_bytes(migration(old, new).to_bytes(data))):
        assert convert(old.to_bytes(Holder(Inner(3)))) == new_class(WiderInner(3, 7))
        with pytest.raises(MigrationError, match="inner is null, but the field was not optional"):
            convert(b"\x01")


@attrs.frozen
class Text:
    text: str


@attrs.frozen
class Number:
    text: int


def test_a_required_part_goes_through_the_converter_of_its_serializer() -> None:
    converting = ts.ConvertingSerializer(ts.LongSerializer(), {ts.StringSerializer(): int})
    old, new = record(Text), record(Number, text=converting)
    assert migration(old, new).to_value(old.to_bytes(Text("12"))) == Number(12)
    assert new.from_bytes(migration(old, new).to_bytes(old.to_bytes(Text("12")))) == Number(12)
    with pytest.raises(MigrationError, match=r"\.text: .*the converter int raised ValueError: invalid literal"):
        migration(old, new).to_bytes(old.to_bytes(Text("twelve")))


class OneWayConversion(Conversion):
    """Writes more bytes than the new serializer reads."""

    def emit_value(self, reader: ReadEmitter) -> str:
        return self.old.emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        value = self.emit_value(reader)

        def write(writer: WriteEmitter) -> None:
            writer.fixed("q", value)
            writer.append("b'more'")

        return write


class OneWayPlan(CustomPlan):
    """A plan with custom code."""

    def conversion(self, old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any], plans: Any) -> Conversion:
        return OneWayConversion(plans, self, old, new)


WIDENED = resolve_part(ts.IntSerializer().snapshot_configuration(), ts.LongSerializer()).plan


def test_bytes_that_their_serializer_does_not_read_completely_are_rejected() -> None:
    old = ts.IntSerializer()
    with pytest.raises(MigrationError, match="does not read all bytes that it wrote"):
        SchemaMigration(old, ts.LongSerializer(), OneWayPlan()).to_bytes(old.to_bytes(1))


def test_trailing_old_bytes_and_unconvertible_ones_have_different_errors() -> None:
    long = SchemaMigration(ts.IntSerializer(), ts.LongSerializer(), WIDENED)
    with pytest.raises(MigrationError, match="the old value ends at byte 4 of 5"):
        long.to_bytes(b"\0\0\0\1\0")
    with pytest.raises(MigrationError, match="the old value ends at byte 4 of 5"):
        long.to_value(b"\0\0\0\1\0")
    with pytest.raises(MigrationError, match="unreadable"):
        long.to_bytes(b"\0\0\0")


class Plain(ts.LongSerializer):
    """A third-party serializer whose behaviour is unknown."""


class OwnList(ts.ListSerializer[Any]):
    """Another unknown serializer."""


@attrs.frozen
class Hooked:
    text: str

    def __attrs_post_init__(self) -> None:
        """May reject a value."""


def converting() -> ts.TypeSerializer[Any]:
    return ts.ConvertingSerializer(ts.LongSerializer(), {ts.StringSerializer(): int})


@attrs.frozen
class PojoWithAHook:
    __pojo_class__ = "failing.Hooked"
    id: Int

    def __attrs_post_init__(self) -> None:
        """May reject a value."""


READ_BACK = [
    (ts.LongSerializer(), False),
    (record(Text), False),
    (ts.AttrsSerializer(WiderHolder, name="failing.Holder"), False),
    (ts.MapSerializer(ts.StringSerializer(), ts.ListSerializer(record(Text))), False),
    (ts.ListSerializer(Plain()), True),
    (OwnList(ts.LongSerializer()), True),
    (record(Text, text=ts.NullableSerializer(converting())), True),
    (record(New), True),
    (ts.AttrsSerializer(Text, schema_version=2, converters={1: dict}), True),
    (ts.TtlSerializer(ts.ListSerializer(record(Hooked))), True),
    (ts.NullableSerializer(ts.PojoSerializer(PojoWithAHook)), True),
]


@pytest.mark.parametrize(("new", "expected"), READ_BACK)
def test_new_bytes_are_read_back_only_where_needed(new: Any, expected: bool) -> None:
    assert must_be_read_back(SchemaMigration(new, new, AS_IS).conversion) is expected


def test_bytes_of_third_party_code_are_always_read_back() -> None:
    old, new = ts.ListSerializer(ts.IntSerializer()), ts.ListSerializer(ts.LongSerializer())
    assert not must_be_read_back(SchemaMigration(old, new, PartsPlan((WIDENED,))).conversion)
    assert must_be_read_back(SchemaMigration(old, new, PartsPlan((OneWayPlan(),))).conversion)
    for table in (
        attrs.evolve(CONVERSIONS, by_plan={**CONVERSIONS.by_plan, OneWayPlan: OneWayConversion}),
        attrs.evolve(CONVERSIONS, by_composite={ts.SetSerializer: OneWayConversion}),
    ):
        assert must_be_read_back(SchemaMigration(old, new, PartsPlan((WIDENED,)), table).conversion)


def test_the_passed_table_decides_how_a_plan_is_executed() -> None:
    table = attrs.evolve(CONVERSIONS, by_plan={**CONVERSIONS.by_plan, type(WIDENED): RewritingConversion})
    old = ts.StringSerializer()
    migration = SchemaMigration(old, ts.BytesSerializer(), WIDENED, table)
    with pytest.raises(MigrationError, match="cannot write this value"):
        migration.to_bytes(old.to_bytes("a"))
