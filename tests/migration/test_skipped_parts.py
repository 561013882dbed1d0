"""A removed field is skipped: nothing is unpickled, and no class validates the value."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError, SchemaMigration
from snapshots import resolve_compatibility
from snapshots.envelope import snapshot_from_bytes, snapshot_to_bytes
from statebackend.testing.upgrades import migration_between
from typeserializers import converted_by

ran: list[str] = []


def note(what: str) -> None:
    """A function of the module, because pickling a method of the list would copy the list."""
    ran.append(what)


class Trap:
    """Executes code when it is unpickled."""

    def __reduce__(self) -> Any:
        return note, ("unpickled",)

    __hash__ = object.__hash__


@pytest.fixture(autouse=True)
def nothing_ran() -> None:
    ran.clear()


@attrs.frozen
class Old:
    before: str
    dropped: Any
    after: str


@attrs.frozen
class New:
    before: str
    after: str


@attrs.frozen
class Rejecting:
    trap: Any

    def __attrs_post_init__(self) -> None:
        if self.trap is not None and not isinstance(self.trap, Trap):
            raise ValueError("no trap")


def records(dropped: ts.TypeSerializer[Any], new_class: type = New) -> tuple[Any, Any]:
    old = ts.AttrsSerializer(Old, name="skipped.Record", field_serializers={"dropped": dropped})
    return old, ts.AttrsSerializer(new_class, name="skipped.Record")


def trap() -> ts.TypeSerializer[Any]:
    return ts.PickleSerializer(Trap)


def rejecting() -> ts.TypeSerializer[Any]:
    return ts.AttrsSerializer(Rejecting, field_serializers={"trap": trap()})


CASES = [
    (trap, Trap),
    (lambda: ts.NullableSerializer(trap()), Trap),
    (lambda: ts.NullableSerializer(trap()), lambda: None),
    (lambda: ts.ListSerializer(trap()), lambda: [Trap(), Trap()]),
    (lambda: ts.MapSerializer(trap(), trap()), lambda: {Trap(): Trap(), Trap(): None}),
    (lambda: ts.FrozenSetSerializer(trap()), lambda: frozenset([Trap(), Trap()])),
    (lambda: ts.TupleSerializer([ts.LongSerializer(), trap()]), lambda: (1, Trap())),
    (lambda: ts.UnionSerializer([ts.LongSerializer(), trap()]), Trap),
    (lambda: ts.UnionSerializer([ts.LongSerializer(), trap()]), lambda: 7),
    (lambda: ts.EitherSerializer(trap(), trap()), lambda: ts.Right(Trap())),
    (rejecting, lambda: Rejecting(Trap())),
    (lambda: ts.ListSerializer(rejecting()), lambda: [Rejecting(Trap())]),
]


@pytest.mark.parametrize(("dropped", "value"), CASES)
def test_dropped_fields_are_not_unpickled(dropped: Any, value: Any) -> None:
    old, new = records(dropped())
    data, snapshot = old.to_bytes(Old("a", value(), "z")), snapshot_to_bytes(old.snapshot_configuration())
    restored = snapshot_from_bytes(snapshot)
    assert resolve_compatibility(restored, new).is_after_migration
    migration = migration_between(restored, new)
    assert migration.to_value(data) == New("a", "z")
    assert new.from_bytes(migration.to_bytes(data)) == New("a", "z")
    for end in range(len(data)):
        with pytest.raises(MigrationError):
            migration.to_bytes(data[:end])
    assert not ran


@attrs.frozen
class OldNode:
    children: list[OldNode]
    dropped: Any
    name: str


@attrs.frozen
class NewNode:
    children: list[NewNode]
    name: str


@attrs.frozen
class Leaf:
    name: str


@pytest.mark.parametrize("new_class", [NewNode, Leaf])
def test_a_recursive_record_is_skipped_at_every_depth(new_class: Any) -> None:
    old = ts.AttrsSerializer(OldNode, name="skipped.Node", field_serializers={"dropped": trap()})
    new: Any = ts.AttrsSerializer(new_class, name="skipped.Node")
    tree = OldNode([OldNode([], Trap(), "inner")], Trap(), "outer")
    data, snapshot = old.to_bytes(tree), snapshot_to_bytes(old.snapshot_configuration())
    restored = snapshot_from_bytes(snapshot)
    assert resolve_compatibility(restored, new).is_after_migration
    expected = Leaf("outer") if new_class is Leaf else NewNode([NewNode([], "inner")], "outer")
    migration = migration_between(restored, new)
    assert migration.to_value(data) == expected
    assert new.from_bytes(migration.to_bytes(data)) == expected
    assert not ran


@attrs.frozen
class Counted:
    before: str
    dropped: int = attrs.field(metadata=converted_by(lambda old: 1))
    after: str = ""


def test_a_converter_that_needs_to_unpickle_is_rejected_by_the_compatibility_check() -> None:
    old, _ = records(ts.ListSerializer(trap()))
    snapshot = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration()))
    data = old.to_bytes(Old("a", [Trap()], "z"))

    def versioned(*sources: ts.TypeSerializer[Any]) -> ts.AttrsSerializer[New]:
        converters = {1: lambda fields: {"before": fields["before"], "after": fields["after"]}}
        return ts.AttrsSerializer(
            New, name="skipped.Record", schema_version=2, converters=converters, source_serializers=sources
        )

    def converted(*sources: ts.TypeSerializer[Any]) -> ts.AttrsSerializer[Counted]:
        return ts.AttrsSerializer(Counted, name="skipped.Record", source_serializers=sources)

    for make in (converted, versioned):
        compatibility = resolve_compatibility(snapshot, make())
        assert compatibility.is_incompatible
        assert [issue.path for issue in compatibility.issues if issue.rule == "pickle-class"] == [".dropped"]
        assert "source_serializers=[PickleSerializer(Trap)]" in str(compatibility)
        assert not ran
        chosen = make(trap())
        compatibility = resolve_compatibility(snapshot, chosen)
        assert compatibility.is_after_migration, str(compatibility)
        SchemaMigration.of_compatibility(snapshot, chosen, compatibility).to_value(data)
        assert ran == ["unpickled"]
        ran.clear()


@attrs.frozen
class OldPojo:
    __pojo_class__ = "skipped.Pojo"
    dropped: Any
    name: str


@attrs.frozen
class NewPojo:
    __pojo_class__ = "skipped.Pojo"
    name: str


def test_a_field_of_a_pojo_is_skipped_too() -> None:
    old = ts.PojoSerializer(OldPojo, field_serializers={"dropped": ts.ListSerializer(trap())})
    data, snapshot = old.to_bytes(OldPojo([Trap()], "a")), snapshot_to_bytes(old.snapshot_configuration())
    restored, new = snapshot_from_bytes(snapshot), ts.PojoSerializer(NewPojo)
    assert resolve_compatibility(restored, new).is_after_migration
    assert migration_between(restored, new).to_value(data) == NewPojo("a")
    assert not ran
    # A removed record field whose values are POJOs that also have a removed field.
    outer, without = records(old)
    trap()
    data, snapshot = (
        outer.to_bytes(Old("a", OldPojo([Trap()], "b"), "z")),
        snapshot_to_bytes(outer.snapshot_configuration()),
    )
    restored = snapshot_from_bytes(snapshot)
    assert migration_between(restored, without).to_value(data) == New("a", "z")
    assert not ran
