"""Arithmetic shared by programs and models, which makes any difference in a state visible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["folded", "mixed", "number_of", "reduced", "row_of"]

_MODULUS: Final = 1_000_003

Row = tuple[int, int, int, tuple[int, ...]]
"""The columns k, v, t and l of a record."""


def mixed(left: int, right: int) -> int:
    """Return a number that depends on the order of both."""
    return (left * 31 + right) % _MODULUS


def folded(numbers: Iterable[int]) -> int:
    """Return a number that depends on all numbers and their order."""
    result = 7
    for number in numbers:
        result = mixed(result, number)
    return result


def number_of(k: int, v: int, t: int, l: Sequence[int]) -> int:  # noqa: E741
    """Return a number that depends on all columns of a record."""
    return (v + 2 * t + 3 * sum(l) + 5 * len(l) + k) % _MODULUS


def row_of(columns: Sequence[str], key: Any, number: int, length: int = 1) -> Row:
    """Return an operator's row for a key and a number; its key columns contain the key."""
    parts: Mapping[str, int] = dict(zip(columns, key if isinstance(key, tuple) else (key,), strict=True))
    return (
        parts.get("k", number % 4),
        parts.get("v", number % 7),
        number,
        tuple((number + place) % 5 for place in range(length)),
    )


def reduced(left: Any, right: Any) -> Row:
    """Merge two records into one, independent of their order; common columns stay."""
    (k, v, t, l), (k2, v2, t2, l2) = left, right  # noqa: E741
    return min(k, k2), min(v, v2), (t + t2) % _MODULUS, ((sum(l) + sum(l2)) % _MODULUS,)
