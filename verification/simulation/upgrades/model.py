"""The documented rules: what a stored value becomes under another version, or that the change must be rejected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from verification.simulation.upgrades.types import (
    REQUIRED,
    EnumType,
    Field,
    ListOf,
    MapOf,
    OptionalOf,
    Record,
    RecordValue,
    Scalar,
    TupleOf,
    Type,
    UnionOf,
)

__all__ = ["Collision", "Rejected", "conversion"]

Convert = Callable[[Any], Any]


class Rejected(Exception):
    """The change must be rejected before a start.

    ``may_be_applied`` is a conversion that is also correct, where the classes are ambiguous.
    """

    def __init__(self, reason: str, may_be_applied: Convert | None = None) -> None:
        super().__init__(reason)
        self.may_be_applied = may_be_applied


class Collision(Exception):
    """Two stored keys become equal, so the restore must be rejected when it reads them."""


_PROMOTIONS: Final[Mapping[tuple[str, str], Convert]] = {
    ("int32", "int"): int,
    ("int32", "float"): float,
    ("int32", "decimal"): Decimal,
    ("int", "float"): float,
    ("int", "decimal"): Decimal,
    ("str", "bytes"): str.encode,
    ("bytes", "str"): bytes.decode,
}


def conversion(old: Type, new: Type) -> Convert:
    """Return the function from old plain values to new ones. Raises `Rejected`."""
    if isinstance(new, OptionalOf):
        convert = conversion(old.item if isinstance(old, OptionalOf) else old, new.item)
        return lambda value: None if value is None else convert(value)
    if isinstance(new, UnionOf):
        before = old.members if isinstance(old, UnionOf) else (old,)
        if not set(before) <= set(new.members):
            raise Rejected(f"{old} is not part of {new}")
        return _same
    if type(old) is not type(new):
        raise Rejected(f"{old} became {new}")
    return _BY_TYPE[type(new)](old, new)


def _same(value: Any) -> Any:
    return value


def _of_scalar(old: Scalar, new: Scalar) -> Convert:
    if old == new:
        return _same
    if (old.kind, new.kind) not in _PROMOTIONS:
        raise Rejected(f"{old.kind} became {new.kind}")
    return _PROMOTIONS[old.kind, new.kind]


def _of_list(old: ListOf, new: ListOf) -> Convert:
    convert = conversion(old.item, new.item)
    return lambda value: [convert(item) for item in value]


def _of_map(old: MapOf, new: MapOf) -> Convert:
    # As in Flink, every value of a map may be None, whatever its type.
    before, after = (one.value.item if isinstance(one.value, OptionalOf) else one.value for one in (old, new))
    key, item = conversion(old.key, new.key), conversion(before, after)

    def convert(value: Any) -> Any:
        made = {key(name): None if part is None else item(part) for name, part in value.items()}
        if len(made) < len(value):
            raise Collision(f"keys of {value} become one")
        return made

    return convert


def _of_tuple(old: TupleOf, new: TupleOf) -> Convert:
    if len(old.items) != len(new.items):
        raise Rejected("another length of a tuple")
    converts = [conversion(*both) for both in zip(old.items, new.items, strict=True)]
    return lambda value: tuple(convert(item) for convert, item in zip(converts, value, strict=True))


def _of_enum(old: EnumType, new: EnumType) -> Convert:
    names = {name for name, _ in new.constants}
    # Stored values have canonical names, never that of an alias.
    lost = set(old.names) - names
    if lost or old.name != new.name:
        raise Rejected(f"the constants {sorted(lost)} are gone")
    return new.canonical


def _of_record(old: Record, new: Record) -> Convert:
    if old.name != new.name and old.name not in new.former:
        raise Rejected(f"{old.name} became {new.name}")
    there = {one.name: one for one in old.fields}
    declared = {one.name: one for one in new.fields}
    sources: dict[str, Field | None] = {one.name: there.get(one.name) for one in new.fields}
    for one in new.fields:
        known = there[one.name].former if one.name in there else ()
        former = [name for name in one.former if name in there and name not in known]
        if not former:
            continue
        [first, *others] = former
        if others or one.name in there or (first in declared and declared[first].former):
            # Several fields could be meant. The result must be the author's choice or a rejection. A field that was
            # renamed without a declaration counts as a new one.
            meant = {(it.identity, it.name): it for it in old.fields}
            by_identity = {
                it.name: next(
                    (meant[it.identity, name] for name in (it.name, *it.former) if (it.identity, name) in meant), None
                )
                for it in new.fields
            }
            raise Rejected(f"{one.name} could be any of {former}", may_be_applied=_of_fields(new, by_identity))
        sources[one.name] = there[first]
        if first in declared:
            # A new field uses the name again.
            sources[first] = None
    return _of_fields(new, sources)


def _of_fields(new: Record, sources: Mapping[str, Field | None]) -> Convert:
    """Return the conversion that fills each new field from its source, or with its default."""
    converts: dict[str, Callable[[RecordValue], Any]] = {}
    for one in new.fields:
        source = sources[one.name]
        if source is None and one.default is REQUIRED:
            raise Rejected(f"{one.name} is new and has no default")
        converts[one.name] = (
            _always(one.default) if source is None else _taken(source, conversion(source.type, one.type))
        )
    return lambda value: RecordValue({name: convert(value) for name, convert in converts.items()})


def _always(default: Any) -> Callable[[RecordValue], Any]:
    return lambda value: default


def _taken(source: Field, convert: Convert) -> Callable[[RecordValue], Any]:
    return lambda value: convert(value[source.name])


_BY_TYPE: Final[Mapping[type, Callable[[Any, Any], Convert]]] = {
    Scalar: _of_scalar,
    ListOf: _of_list,
    MapOf: _of_map,
    TupleOf: _of_tuple,
    EnumType: _of_enum,
    Record: _of_record,
}
