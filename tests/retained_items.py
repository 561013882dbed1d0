"""Counts the items in the containers to which an object refers, by path. A path that grows is a leak."""

from __future__ import annotations

import functools
import types
from collections import Counter, deque
from collections.abc import Iterator
from typing import Any
from unittest import mock

_LEAVES = (str, bytes, int, float, type(None), type, types.ModuleType, mock.Mock)
_EMPTY_CELL = types.CellType()


def retained_items(*roots: Any) -> Counter[str]:
    """The number of items by path. Containers with a maximal length are not counted."""
    sizes: Counter[str] = Counter()
    seen: dict[int, Any] = {}
    waiting = deque((type(root).__name__, root) for root in roots)
    while waiting:
        place, one = waiting.popleft()
        if isinstance(one, _LEAVES) or id(one) in seen:
            continue
        # A reference keeps the object alive, so that no other object gets its id.
        seen[id(one)] = one
        if isinstance(one, deque) and one.maxlen is not None:
            continue
        if isinstance(one, (dict, list, set, frozenset, deque)):
            sizes[place] += len(one)
        waiting.extend(_parts(place, one))
    return sizes


def grown(before: Counter[str], after: Counter[str], by: int) -> dict[str, tuple[int, int]]:
    """The paths with at least ``by`` more items than before."""
    return {place: (before[place], size) for place, size in after.items() if size - before[place] >= by}


def _parts(place: str, one: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        yield from ((f"{place}[]", part) for pair in list(one.items()) for part in pair)
    elif isinstance(one, (list, tuple, set, frozenset, deque)):
        yield from ((f"{place}[]", part) for part in list(one))
    elif isinstance(one, types.MethodType):
        yield place, one.__self__
    elif isinstance(one, functools.partial):
        yield from ((f"{place}()", part) for part in (one.func, one.args, one.keywords))
    elif isinstance(one, types.FunctionType):
        yield from ((f"{place}()", cell.cell_contents) for cell in one.__closure__ or () if cell != _EMPTY_CELL)
    else:
        owner = type(one)
        names = [name for kind in owner.__mro__ for name in _slots_of(kind)]
        for name in (*names, *getattr(one, "__dict__", ())):
            # A slot may be unset.
            yield f"{owner.__name__}.{name}", getattr(one, name, None)


def _slots_of(kind: type) -> Iterator[str]:
    slots = vars(kind).get("__slots__", ())
    for name in (slots,) if isinstance(slots, str) else slots:
        is_private = name.startswith("__") and not name.endswith("__")
        yield f"_{kind.__name__.lstrip('_')}{name}" if is_private else name
