"""Random record classes and evolutions: the compatibility result agrees with the effect on stored values.

A record is a list of fields of random types. An evolution is a list of steps. Each step declares its effect on the
class and on the values, and its severity. The expected result follows from the steps alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import attrs
import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import typeserializers as ts
from migration import SchemaMigration
from snapshots import CompatibilityKind, resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes
from statebackend.testing.upgrades import migration_between
from typeserializers import former_names

pytestmark = pytest.mark.slow

LONGS = st.integers(-(2**63), 2**63 - 1)
INTS = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SmallInt = Annotated[int, ts.IntSerializer()]


@attrs.frozen
class Kind:
    """A field type: its hint, its values, and a wider one with the conversion."""

    hint: Any
    values: st.SearchStrategy[Any]
    wider: Any = None
    widen: Callable[[Any], Any] | None = None


SCALARS = [
    Kind(SmallInt, INTS, int, int),
    Kind(int, LONGS, float, float),
    Kind(float, st.floats(allow_nan=False)),
    Kind(str, TEXT, bytes, str.encode),
    Kind(bool, st.booleans()),
]


def containers_of(kind: Kind) -> list[Kind]:
    wider, widen = kind.wider, kind.widen or (lambda item: item)
    return [
        Kind(
            list[kind.hint],
            st.lists(kind.values, max_size=3),
            wider and list[wider],
            lambda v: [widen(x) for x in v],
        ),
        Kind(
            dict[str, kind.hint],
            st.dictionaries(TEXT, kind.values, max_size=3),
            wider and dict[str, wider],
            lambda v: {k: widen(x) for k, x in v.items()},
        ),
        Kind(
            tuple[bool, kind.hint],
            st.tuples(st.booleans(), kind.values),
            wider and tuple[bool, wider],
            lambda v: (v[0], widen(v[1])),
        ),
        Kind(
            Annotated[Any, ts.NullableSerializer(ts.serializer_for(kind.hint))],
            st.none() | kind.values,
            wider and Annotated[Any, ts.NullableSerializer(ts.serializer_for(wider))],
            lambda v: None if v is None else widen(v),
        ),
    ]


KINDS = SCALARS + [made for kind in SCALARS for made in containers_of(kind)]
KINDS += [made for kind in containers_of(SCALARS[0]) for made in containers_of(kind)[:2]]


NO_DEFAULT = object()
RETYPED = set[str]
STEPS = ["rename", "widen", "remove", "add", "add bare", "move", "retype"]


@attrs.define
class Evolved:
    """A field during evolution: before, after, and the effect on its values."""

    kind: Kind
    old_name: str | None
    name: str
    hint: Any
    convert: Callable[[Any], Any] = lambda value: value
    former: tuple[str, ...] = ()
    default: Any = NO_DEFAULT


def make_class(fields: list[tuple[str, Any, Any, tuple[str, ...]]]) -> Any:
    """A record class of (name, hint, default, former names); keyword-only, so that defaults may be anywhere."""
    made = {
        name: attrs.field(type=hint, default=default, metadata=former_names(*former))
        for name, hint, default, former in fields
    }
    return attrs.make_class("Random", made, frozen=True, kw_only=True)


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Any, Any, dict[str, Any], dict[str, Any], CompatibilityKind]:
    """An old and a new class, the fields of an old value and of its migrated form, and the expected result."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=5))
    fields = [Evolved(kind, f"f{index}", f"f{index}", kind.hint) for index, kind in enumerate(kinds)]
    old_class = make_class([(item.name, item.hint, attrs.NOTHING, ()) for item in fields])
    old_values = {item.name: draw(item.kind.values) for item in fields}
    steps = draw(st.lists(st.sampled_from(STEPS), max_size=4))
    for number, step in enumerate(steps):
        item = draw(st.sampled_from(fields)) if fields else None
        if step in ("add", "add bare"):
            made = draw(st.sampled_from(SCALARS))
            default = draw(made.values) if step == "add" else NO_DEFAULT
            added = Evolved(made, None, f"new{number}", made.hint, default=default)
            fields.insert(draw(st.integers(0, len(fields))), added)
        elif item is None or item.old_name is None:
            continue
        elif step == "rename":
            item.former, item.name = (*item.former, item.name), f"g{number}"
        elif step == "remove":
            fields.remove(item)
        elif step == "move":
            fields.remove(item)
            fields.insert(draw(st.integers(0, len(fields))), item)
        elif step == "retype":
            item.hint = RETYPED
        elif item.kind.wider is not None and item.kind.widen is not None:
            item.hint, item.convert = item.kind.wider, item.kind.widen
    new_class = make_class(
        [(item.name, item.hint, attrs.NOTHING if item.default is NO_DEFAULT else item.default, item.former)
         for item in fields]
    )  # fmt: skip
    new_values = {
        item.name: item.default if item.old_name is None else item.convert(old_values[item.old_name]) for item in fields
    }
    return old_class, new_class, old_values, new_values, expected_compatibility(len(kinds), fields)


def expected_compatibility(old_count: int, fields: list[Evolved]) -> CompatibilityKind:
    """The expected result for the evolved fields."""
    if any(item.hint is RETYPED or (item.old_name is None and item.default is NO_DEFAULT) for item in fields):
        return CompatibilityKind.INCOMPATIBLE
    kept = [item.old_name for item in fields if item.old_name is not None]
    is_same = len(kept) == len(fields) == old_count and kept == sorted(kept)
    if is_same and all(item.hint is item.kind.hint for item in fields):
        return CompatibilityKind.AS_IS
    return CompatibilityKind.AFTER_MIGRATION


@settings(max_examples=examples(300))
@given(evolutions())
def test_the_compatibility_equals_the_effect_on_the_bytes(
    drawn: tuple[Any, Any, dict[str, Any], dict[str, Any], CompatibilityKind],
) -> None:
    old_class, new_class, old_values, new_values, expected = drawn
    old, new = ts.AttrsSerializer(old_class), ts.AttrsSerializer(new_class)
    data = old.to_bytes(old_class(**old_values))
    snapshot = snapshot_from_bytes(snapshot_to_bytes(old.snapshot_configuration()))
    compatibility = resolve_compatibility(snapshot, new)
    assert compatibility.kind is expected, str(compatibility)
    if expected is CompatibilityKind.INCOMPATIBLE:
        return
    value = new_class(**new_values)
    if expected is CompatibilityKind.AS_IS:
        assert new.from_bytes(data) == value
        assert new.to_bytes(value) == data
    migration: SchemaMigration[Any] = migration_between(snapshot, new)
    assert migration.to_value(data) == value
    assert migration.to_bytes(data) == new.to_bytes(value)


@settings(max_examples=examples(100))
@given(evolutions(), st.data())
def test_a_migration_of_damaged_bytes_returns_a_value_or_an_error(
    drawn: tuple[Any, Any, dict[str, Any], dict[str, Any], CompatibilityKind], data: st.DataObject
) -> None:
    old_class, new_class, old_values, _, expected = drawn
    if expected is CompatibilityKind.INCOMPATIBLE:
        return
    old, new = ts.AttrsSerializer(old_class), ts.AttrsSerializer(new_class)
    encoded = bytearray(old.to_bytes(old_class(**old_values)))
    if not encoded:
        return
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    migration: SchemaMigration[Any] = migration_between(old, new)
    try:
        value = migration.to_value(bytes(encoded))
    except ts.StateFormatError:
        return
    try:
        migrated = migration.to_bytes(bytes(encoded))
    except ts.StateFormatError:
        return
    again = new.from_bytes(migrated)
    assert again == value or repr(again) == repr(value)
