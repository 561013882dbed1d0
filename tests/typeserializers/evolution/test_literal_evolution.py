"""Allowed changes of a literal, and the migration of stored values."""

from __future__ import annotations

import enum
from typing import Any, Literal

import attrs
import pytest

import typeserializers as ts
from migration import MigrationError
from snapshots import (
    SerializationError,
    StateFormatError,
    TypeSerializerSchemaCompatibility,
    resolve_compatibility,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from statebackend.testing.upgrades import migration_between
from typeserializers import converted_by


def compatibility(old: Any, new: Any) -> TypeSerializerSchemaCompatibility[Any]:
    written = snapshot_to_bytes(ts.serializer_for(old).snapshot_configuration())
    return resolve_compatibility(snapshot_from_bytes(written), ts.serializer_for(new))


def restored(old: Any, new: Any, value: Any) -> Any:
    before, after, result = ts.serializer_for(old), ts.serializer_for(new), compatibility(old, new)
    assert not result.is_incompatible, str(result)
    data = before.to_bytes(value)
    if result.is_after_migration:
        return migration_between(before, after).to_value(data)
    return (result.reconfigured_serializer if result.is_with_reconfigured_serializer else after).from_bytes(data)


def restored_status(old: type[Any], new: type[Any], status: Any) -> Any:
    return restored(old, new, old(status)).status


def rules(result: TypeSerializerSchemaCompatibility[Any]) -> dict[str, str]:
    return {issue.path: issue.rule for issue in result.issues}


def record(hint: Any, **options: Any) -> type[Any]:
    return attrs.make_class("Order", {"status": attrs.field(type=hint, **options)}, frozen=True)


def colour(**values: int) -> Any:
    make_enum: Any = enum.Enum
    return make_enum("Colour", values)


def test_only_values_of_the_literal_are_written_and_read() -> None:
    order, unchecked = record(Literal["open", "done"]), record(str)
    serializer = ts.serializer_for(order)
    with pytest.raises(SerializationError, match=r"\.status: 'zzz' is not one of 'open', 'done'"):
        serializer.to_bytes(order("zzz"))
    with pytest.raises(StateFormatError, match="'zzz' is not one of 'open', 'done'"):
        serializer.from_bytes(ts.serializer_for(unchecked).to_bytes(unchecked("zzz")))


def test_bytes_equal_those_of_the_type() -> None:
    for hint, kind, value in ((Literal["a", "b"], str, "b"), (Literal[1, 2], int, 2), (Literal[b"x"], bytes, b"x")):
        assert ts.serializer_for(hint).to_bytes(value) == ts.serializer_for(kind).to_bytes(value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (Literal["a", "b"], Literal["a"]),
        (Literal["a", "b"] | None, Literal["a"] | None),
        (list[Literal["a", "b"]], list[Literal["a"]]),
        (Literal["b", 1], Literal["a", 1]),
        (Literal[1, 2], Literal[1]),
    ],
)
def test_removed_values_are_rejected(old: Any, new: Any) -> None:
    result = compatibility(old, new)
    assert result.is_incompatible
    assert "literal-values-removed" in rules(result).values()


def test_more_values_or_another_order_are_compatible_as_is() -> None:
    assert compatibility(Literal["a", "b"], Literal["c", "b", "a"]).is_as_is
    assert restored(Literal["a", "b"], Literal["c", "b", "a"], "b") == "b"


def test_a_literal_becomes_its_type_and_the_reverse_if_the_stored_values_allow_it() -> None:
    assert compatibility(Literal["a", "b"], str).is_as_is
    assert rules(compatibility(str, Literal["a", "b"])) == {"": "became-literal"}
    assert restored(str, Literal["a", "b"], "b") == "b"
    with pytest.raises(MigrationError, match="'zzz' is not one of 'a', 'b'"):
        restored(str, Literal["a", "b"], "zzz")


def test_a_field_may_widen_or_become_optional_like_its_type() -> None:
    for old, new, rule in (
        (Literal[1, 2], float, "field-widened"),
        (Literal[1, 2], Literal[1, 2, 3] | None, "field-became-optional"),
    ):
        assert rules(compatibility(record(old), record(new))) == {".status": rule}
        assert restored_status(record(old), record(new), 2) == 2


def test_a_converter_replaces_removed_values() -> None:
    new = record(Literal["open"], metadata=converted_by(lambda status: "open"))
    assert restored_status(record(Literal["open", "done"]), new, "done") == "open"


def test_enum_constants_are_matched_by_name() -> None:
    first, second = colour(RED=1, BLUE=2, GREEN=3), colour(NEW=4, BLUE=2, RED=1, GREEN=3)
    assert compatibility(Literal[first.RED, first.BLUE], Literal[second.BLUE]).is_incompatible
    old, new = Literal[first.RED, first.BLUE], Literal[second.BLUE, second.RED]
    assert compatibility(old, new).is_with_reconfigured_serializer
    assert restored(old, new, first.BLUE) is second.BLUE
    assert restored(tuple[old, int], tuple[new, int], (first.RED, 5)) == (second.RED, 5)
    assert restored_status(record(old), record(new | None), first.RED) is second.RED
