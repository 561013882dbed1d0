"""Structs of msgspec as records, and rejected ones."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import attrs
import msgspec
import pytest

import typeserializers as ts
from migration.schema_migration import MigrationError
from statebackend.testing.upgrades import migration_between

T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    content: T


class Even(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


class Base(msgspec.Struct):
    x: int


class Derived(Base, kw_only=True):
    __former_names__ = ("Older",)
    y: int
    tags: list[str] = []


class Unset(msgspec.Struct):
    x: int | msgspec.UnsetType = msgspec.UNSET


def test_keyword_only_fields_round_trip() -> None:
    serializer = ts.AttrsSerializer(Derived)
    value = Derived(1, y=2, tags=["a"])
    assert serializer.from_bytes(serializer.to_bytes(value)) == value
    assert [part.name for part in serializer.fields] == ["x", "y", "tags"]
    assert serializer.shape.former_names == ("Older",)
    tags = serializer.fields[2]
    assert tags.make_default() == []
    assert tags.make_default() is not tags.make_default()


def test_a_post_init_that_rejects_old_data_is_reported_by_the_migration_with_the_value() -> None:
    old_even = attrs.make_class("Even", {"number": attrs.field(type=int), "gone": attrs.field(type=int, default=0)})
    old = ts.AttrsSerializer(old_even)
    migration = migration_between(old, ts.serializer_for(Even))
    assert migration.to_bytes(old.to_bytes(old_even(2)))
    with pytest.raises(MigrationError, match=r"(?s)odd.*number=3|number=3.*odd"):
        migration.to_bytes(old.to_bytes(old_even(3)))


@pytest.mark.parametrize(
    ("struct", "message"),
    [
        (msgspec.Struct, "any struct could be meant by Struct"),
        (Box[int], r"A generic class is stored under its own name, whatever its parameters: write a subclass"),
        (Box, r"\.content: no serializer is known for ~?T"),
        (Unset, r"\.x.*: no serializer is known for UnsetType"),
    ],
)
def test_an_ambiguous_struct_is_rejected_with_advice(struct: Any, message: str) -> None:
    with pytest.raises(ts.UnknownTypeError, match=message):
        ts.serializer_for(list[struct])
