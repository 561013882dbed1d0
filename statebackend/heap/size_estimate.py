"""How many bytes of Python's memory some entries take, estimated from the first of them.

What several entries share is counted for each, and what is deep inside is not looked at. It is right to within a small
factor where entries are alike, which is what a bound on memory needs.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final

_SAMPLED: Final = (64, 16, 4, 4, 4, 2)
"""Elements that are looked at in a container, by how deep inside it lies; further in there is nothing to look at."""


def estimated_bytes(value: Any, depth: int = 0) -> int:
    """The bytes of a value with all that it refers to. Takes some milliseconds at most, whatever the size."""
    size = sys.getsizeof(value, 64)
    if depth == len(_SAMPLED) or isinstance(value, (bytes, str, int, float, bool, type(None), type)):
        return size
    if isinstance(value, Mapping):
        return size + _of_all(itertools.chain.from_iterable(_first(value.items(), depth)), 2 * len(value), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return size + _of_all(_first(value, depth), len(value), depth)
    fields = [*getattr(value, "__dict__", {}).values()]
    fields += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return size + sum(estimated_bytes(field, depth + 1) for field in fields)


def _first(elements: Iterable[Any], depth: int) -> Iterable[Any]:
    return itertools.islice(elements, _SAMPLED[depth])


def _of_all(sample: Iterable[Any], count: int, depth: int) -> int:
    sizes = [estimated_bytes(element, depth + 1) for element in sample]
    return sum(sizes) * count // len(sizes) if sizes else 0
