"""Which key groups, and which keys, can hold the rows that a query asks for.

A key lies in the key group that its hash says. So where a query says which values every column of the key has, or which
key groups it wants, the other groups need not be read, and where it names keys, other rows need not be decoded.
Nothing here decides which rows a query gets: Spark looks at all conditions again, and what is not understood here
prunes nothing.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from statebackend.api.key_columns import columns_of_key
from statebackend.api.key_groups import KeyGroupRange
from statebackend.api.key_hash import KeyHashError, key_group_hasher
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["EVERYTHING", "KeyCondition", "WantedKeys", "wanted_keys"]

MAX_KEYS: Final = 10_000
"""How many keys are looked up one by one; a query that names more reads everything."""

_ONE_FORM: Final = frozenset({"string", "bigint", "int", "smallint", "tinyint", "boolean", "binary", "date"})
"""The columns whose equal values have equal bytes; those of a timestamp also tell its zone."""


@frozen
class KeyCondition:
    """That a column, or a field of one by its path, has one of these values, or lies on one side of one.

    ``relation`` is ``in``, ``<``, ``<=``, ``>`` or ``>=``; all but the first have one value.
    """

    path: tuple[str, ...]
    relation: str
    values: tuple[Any, ...]


@frozen
class WantedKeys:
    """The key groups to be read, in order, and the bytes of the keys; None is all of them."""

    key_groups: tuple[KeyGroupRange, ...] | None = None
    keys: frozenset[bytes] | None = None

    def inside(self, held: KeyGroupRange) -> tuple[KeyGroupRange, ...]:
        """What is wanted of a range of key groups."""
        if self.key_groups is None:
            return (held,)
        return tuple(
            KeyGroupRange(max(held.start, one.start), min(held.end, one.end))
            for one in self.key_groups
            if held.overlaps(one)
        )


EVERYTHING: Final = WantedKeys()


def wanted_keys(
    conditions: Iterable[KeyCondition],
    key_paths: Sequence[tuple[str, ...]],
    key_serializer: TypeSerializer[Any],
    max_parallelism: int,
) -> WantedKeys:
    """What has to be read for rows that satisfy all conditions; ``key_paths`` are the columns of the key, in order."""
    conditions = list(conditions)
    groups = set(range(max_parallelism))
    for condition in conditions:
        if condition.path == ("key_group",):
            holds = _RELATIONS[condition.relation]
            groups = {group for group in groups if holds(group, condition.values)}
    keys = _named_keys(conditions, key_paths)
    stored: frozenset[bytes] | None = None
    if keys is not None:
        try:
            columns = columns_of_key(key_serializer)
            hashed = key_group_hasher(columns, max_parallelism)
            groups &= {hashed(key) for key in keys}
            if _ONE_FORM.issuperset(columns):
                stored = frozenset(key_serializer.to_bytes(key) for key in keys)
        except (KeyHashError, TypeError, ValueError, OverflowError):
            # Values that no key can have are Spark's to compare.
            stored = None
    return WantedKeys(None if len(groups) == max_parallelism else _ranges(groups), stored)


def _named_keys(conditions: Iterable[KeyCondition], key_paths: Sequence[tuple[str, ...]]) -> list[Any] | None:
    """The keys that the conditions leave; None if they do not say a value for every column."""
    values: dict[tuple[str, ...], list[Any]] = {}
    for condition in conditions:
        if condition.relation != "in" or condition.path not in key_paths:
            continue
        before = values.get(condition.path)
        values[condition.path] = [
            value for value in condition.values if value is not None and (before is None or value in before)
        ]
    if not key_paths or len(values) < len(key_paths):
        return None
    if math.prod(len(values[path]) for path in key_paths) > MAX_KEYS:
        return None
    found = list(itertools.product(*(values[path] for path in key_paths)))
    return [key[0] for key in found] if len(key_paths) == 1 else found


def _ranges(groups: set[int]) -> tuple[KeyGroupRange, ...]:
    ranges: list[KeyGroupRange] = []
    for group in sorted(groups):
        if ranges and ranges[-1].end == group - 1:
            ranges[-1] = KeyGroupRange(ranges[-1].start, group)
        else:
            ranges.append(KeyGroupRange(group, group))
    return tuple(ranges)


_RELATIONS: Final[Mapping[str, Callable[[int, tuple[Any, ...]], bool]]] = {
    "in": lambda group, values: group in values,
    "<": lambda group, values: group < values[0],
    "<=": lambda group, values: group <= values[0],
    ">": lambda group, values: group > values[0],
    ">=": lambda group, values: group >= values[0],
}
