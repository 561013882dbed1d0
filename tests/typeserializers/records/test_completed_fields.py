"""Completion of old records: a compatible result never leads to a rejected default, factory or zero."""

import attrs
import pytest

from migration import MigrationError
from snapshots import UnresolvableSerializerError
from snapshots.compatibility import FieldCompatibility
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import SerializationError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from statebackend.testing.upgrades import migration_between
from typeserializers import AttrsSerializer, LongSerializer, PickleSerializer, PojoSerializer


def test_a_factory_with_invalid_results_is_rejected_by_the_compatibility_check():
    made = ["a"]

    @attrs.frozen
    class Before:
        kept: int

    @attrs.frozen
    class After:
        kept: int
        text: str = attrs.field(factory=lambda: made[0])

    old, new = AttrsSerializer(Before, name="made.Record"), AttrsSerializer(After, name="made.Record")
    assert old.snapshot_configuration().resolve_schema_compatibility(new).is_after_migration
    for unfit, reported in ((None, "None, but the field is not optional"), (5, "5 is not a str")):
        made[0] = unfit
        (issue,) = old.snapshot_configuration().resolve_schema_compatibility(new).issues
        assert (issue.path, issue.compatibility, issue.rule) == (
            ".text",
            FieldCompatibility.REJECT,
            "field-default-unfit",
        )
        assert reported in issue.reason
    made.clear()
    (issue,) = old.snapshot_configuration().resolve_schema_compatibility(new).issues
    assert "its factory failed (IndexError" in issue.reason
    with pytest.raises(SerializationError, match=r"\.text: its default cannot be written: list index"):
        snapshot_to_bytes(new.snapshot_configuration())


def test_a_factory_that_returns_none_during_a_migration_stops_it():
    answers = ["a"]

    @attrs.frozen
    class Before:
        kept: int

    @attrs.frozen
    class After:
        kept: int
        text: str = attrs.field(factory=lambda: answers[-1])

    old, new = AttrsSerializer(Before, name="made.Record"), AttrsSerializer(After, name="made.Record")
    migration = migration_between(old, new)
    data = old.to_bytes(Before(1))
    assert new.from_bytes(migration.to_bytes(data)) == After(1, "a")
    answers.append(None)
    with pytest.raises(MigrationError, match=r"\.text: its default factory returned None"):
        migration.to_bytes(data)


def test_a_field_of_a_pojo_without_a_default_needs_a_type_with_a_zero():
    class Fraction:
        def __init__(self, value):
            self.value = value

    @attrs.define
    class Before:
        __pojo_class__ = "zero.Pojo"
        kept: int

    @attrs.define
    class After:
        __pojo_class__ = "zero.Pojo"
        kept: int
        added: object

    old = PojoSerializer(Before).snapshot_configuration()
    cases = ((PickleSerializer(Fraction), True), (LongSerializer(), False))
    for serializer, is_rejected in cases:
        new = PojoSerializer(After, field_serializers={"added": serializer})
        compatibility = old.resolve_schema_compatibility(new)
        assert compatibility.is_incompatible is is_rejected
        assert ("pojo-field-added-without-default" in str(compatibility)) is is_rejected


def test_a_removed_field_that_cannot_be_skipped_is_rejected_by_the_compatibility_check():
    @attrs.frozen
    class Unreadable:
        kept: int
        gone: int

    @attrs.frozen
    class Kept:
        kept: int

    class FromElsewhere(SimpleTypeSerializerSnapshot):
        def create_serializer(self):
            raise UnresolvableSerializerError("nothing here reads it")

    class Foreign(LongSerializer):
        def snapshot_configuration(self):
            return FromElsewhere()

    old = AttrsSerializer(Unreadable, name="stepped.Record", field_serializers={"gone": Foreign()})
    compatibility = old.snapshot_configuration().resolve_schema_compatibility(
        AttrsSerializer(Kept, name="stepped.Record")
    )
    assert compatibility.is_incompatible
    assert ".gone: incompatible [field-unreadable] nothing here reads it" in str(compatibility)
