"""The windows that merge, of all keys of a subtask: their sets in state, and those in use beside it.

A key has one set (`MergingWindowSet`), in a list state. One record needs all of it, and one record more or less changes
little of it; so sets in use stay decoded, and go to state before a snapshot, or when there are many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from statebackend import ListState, ListStateDescriptor
from statebackend.keyed.key_context import KeySetter
from streamjobs.operators.windows.merging_window_set import MergingWindowSet
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.times.windows import TimeWindowSerializer

__all__ = ["MergingWindows"]

SETS_NAME: Final = "merging-window-set"

_MOST_SETS: Final = 4096
"""The most sets in use that are kept when nothing else asks for them to be stored."""


class MergingWindows:
    """See the module; ``register`` registers state without namespaces."""

    def __init__(self, register: Callable[[ListStateDescriptor[Any]], Any]) -> None:
        pair: TupleSerializer = TupleSerializer((TimeWindowSerializer(), TimeWindowSerializer()))
        self._state: ListState[Any] = register(ListStateDescriptor(SETS_NAME, pair))
        self._in_use: dict[Any, tuple[int, MergingWindowSet]] = {}

    def of_key(self, key: Any, key_group: int) -> MergingWindowSet:
        """The set of a key, which must be current."""
        known = self._in_use.get(key)
        if known is None:
            known = self._in_use[key] = key_group, MergingWindowSet(self._state.get())
        return known[1]

    def relieve(self, set_key: KeySetter) -> None:
        """Stores the sets in use if there are many; makes other keys current, as `store`."""
        if len(self._in_use) > _MOST_SETS:
            self.store(set_key)

    def store(self, set_key: KeySetter) -> None:
        """Stores the sets in use, and forgets them."""
        for key, (key_group, windows) in self._in_use.items():
            if windows.has_changed:
                set_key(key, key_group)
                # An empty list is no state.
                self._state.update(windows.pairs)
        self._in_use.clear()
