"""Which field of an old record a field of the new one continues.

By name, then by declared former names; never by position and never by guess. One case needs the declarations that were
in force when the state was written, which the snapshot therefore has: a field may be declared a former name that still
exists as a field of its own, as when two fields swap their names. If the old field of the same name already declared
it, nothing has happened since. If it did not, the declaration is news, and the field continues the one it names,
provided that the old field of its own name goes on elsewhere too; otherwise one of the two would be lost, and the
declaration is ambiguous.

    old: a, b     new: a (formerly b), b (formerly a)             a continues b, b continues a
    old: a (formerly b), b (formerly a)     new: the same         a continues a, b continues b
    old: late, minutes_late     new: minutes_late (formerly late)     ambiguous
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from attrs import frozen


class NamedField(Protocol):
    """What matching needs to know of a field."""

    @property
    def name(self) -> str: ...

    @property
    def former_names(self) -> tuple[str, ...]: ...


F = TypeVar("F", bound=NamedField)


@frozen
class FieldMatch(Generic[F]):
    """Which old field a new field takes over: ``old_index`` is None for an added one."""

    new: F
    old_index: int | None


def match_fields(old_fields: Sequence[NamedField], new_fields: Sequence[F]) -> list[FieldMatch[F]]:
    """For each new field the old one that it continues, in the order of the new fields."""
    index_of = {part.name: index for index, part in enumerate(old_fields)}
    moved = _moved_names(old_fields, new_fields)
    taken = {index_of[name] for name in moved.values()}
    taken |= {index_of[part.name] for part in new_fields if part.name in index_of and part.name not in moved}
    matches = []
    for part in new_fields:
        index = index_of.get(moved.get(part.name, part.name))
        if index is None:
            for former in part.former_names:
                candidate = index_of.get(former)
                if candidate is not None and candidate not in taken:
                    index = candidate
                    taken.add(candidate)
                    break
        matches.append(FieldMatch(part, index))
    return matches


def _moved_names(old_fields: Sequence[NamedField], new_fields: Sequence[NamedField]) -> dict[str, str]:
    """New names that exist in the old record as well but continue another field of it: new name -> old name."""
    old = {part.name: part for part in old_fields}
    moved: dict[str, str] = {}
    for part in new_fields:
        if part.name not in old:
            continue
        news = [name for name in part.former_names if name in old and name not in old[part.name].former_names]
        if len(news) == 1:
            moved[part.name] = news[0]
    added = {
        name: part.name for part in new_fields if part.name not in old for name in part.former_names if name in old
    }
    # Only names that are handed on in a circle, or on to a new field, lose nothing; every other claim is left alone.
    while True:
        claims = Counter(moved.values())
        lost = [name for name, origin in moved.items() if claims[origin] > 1 or not (name in claims or name in added)]
        if not lost:
            return moved
        for name in lost:
            del moved[name]
