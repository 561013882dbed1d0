"""Recursive records, directly or through others, evolve at every depth."""

import enum
from typing import Any

import attrs
import pytest
from record_versions import compatibility_of, migrated, rules

import typeserializers as ts
from migration import MigrationError
from statebackend.testing.upgrades import migration_between
from typeserializers import former_names


class OldStatus(enum.Enum):
    LATE = 1
    DONE = 2


class NewStatus(enum.Enum):
    DONE = 1
    PLANNED = 2
    LATE = 3


def status(statuses: type[enum.Enum]) -> ts.EnumSerializer[Any]:
    return ts.EnumSerializer(statuses, name="Status")


def first_version() -> ts.AttrsSerializer[Any]:
    @attrs.define
    class Node:
        label: str
        status: OldStatus
        children: "list[Node]"

    return ts.AttrsSerializer(Node, field_serializers={"status": status(OldStatus)})


def second_version() -> ts.AttrsSerializer[Any]:
    @attrs.define
    class Node:
        title: str = attrs.field(metadata=former_names("label"))
        status: NewStatus = NewStatus.DONE
        children: "list[Node]" = attrs.field(factory=list)
        weight: float = 1.0

    return ts.AttrsSerializer(Node, field_serializers={"status": status(NewStatus)})


def tree(serializer: ts.AttrsSerializer[Any], statuses: Any, *more: Any) -> Any:
    node = serializer.record_class
    leaf = node("leaf", statuses["DONE"], [], *more)
    return node("root", statuses["LATE"], [leaf, node("é", statuses["LATE"], [leaf], *more)], *more)


def test_a_recursive_record_evolves_at_every_depth() -> None:
    old, new = first_version(), second_version()
    compatibility = compatibility_of(old, new)
    assert compatibility.is_after_migration, str(compatibility)
    assert rules(compatibility)[".weight"] == "field-added"
    assert migrated(old, new, tree(old, OldStatus)) == tree(new, NewStatus, 1.0)


def test_a_recursive_record_is_reconfigured_at_every_depth() -> None:
    @attrs.define
    class Node:
        label: str
        status: NewStatus
        children: "list[Node]"

    old = first_version()
    new = ts.AttrsSerializer(Node, field_serializers={"status": status(NewStatus)})
    compatibility = compatibility_of(old, new)
    assert compatibility.is_with_reconfigured_serializer, str(compatibility)
    reconfigured = compatibility.reconfigured_serializer
    assert reconfigured.from_bytes(old.to_bytes(tree(old, OldStatus))) == tree(new, NewStatus)
    assert reconfigured.to_bytes(tree(new, NewStatus)) == old.to_bytes(tree(old, OldStatus))
    assert compatibility_of(reconfigured, new).is_with_reconfigured_serializer


def mutual_version(statuses: Any) -> ts.AttrsSerializer[Any]:
    @attrs.define
    class Inner:
        up: "Outer | None"

    @attrs.define
    class Outer:
        status: Any
        inner: Inner | None

    # Neither class can be found from within the other's annotations: they are local to this function.
    Inner.__annotations__["up"] = Outer | None
    return ts.AttrsSerializer(Outer, field_serializers={"status": status(statuses)})


def test_mutually_recursive_records_are_both_reconfigured() -> None:
    old, new = mutual_version(OldStatus), mutual_version(NewStatus)
    compatibility = compatibility_of(old, new)
    assert compatibility.is_with_reconfigured_serializer, str(compatibility)

    def value(serializer: ts.AttrsSerializer[Any], statuses: Any) -> Any:
        outer = serializer.record_class
        inner: Any = serializer.fields[1].serializer
        make = inner.inner.record_class
        return outer(statuses["DONE"], make(outer(statuses["LATE"], make(None))))

    reconfigured = compatibility.reconfigured_serializer
    assert reconfigured.from_bytes(old.to_bytes(value(old, OldStatus))) == value(new, NewStatus)
    assert reconfigured.to_bytes(value(new, NewStatus)) == old.to_bytes(value(old, OldStatus))


@pytest.mark.extended
def test_a_value_nested_deeper_than_the_stack_is_rejected_without_a_crash() -> None:
    old, new = first_version(), second_version()
    node = old.record_class
    value = node("x", OldStatus.DONE, [])
    for _ in range(5):
        value = node("x", OldStatus.DONE, [value])
    assert old.from_bytes(old.to_bytes(value)) == value
    one = b"\x02x\0\0\0\0\0\0\0\x01"
    deep = one * 100_000 + one[:-1] + b"\0"
    for read in (old.from_bytes, new.from_bytes):
        with pytest.raises(ts.StateFormatError):
            read(deep)
    with pytest.raises(MigrationError):
        migration_between(old, new).to_value(deep)
