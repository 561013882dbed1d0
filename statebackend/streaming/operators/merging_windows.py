"""Windows that merge: the windows of a key with their state windows.

A window grows with every record that extends it, but its contents stay under its first namespace, the *state window*.
When windows merge, one state window receives the contents of the others. `MergingWindowSet` maps the windows of a key
to state windows; it is stored as a list of pairs (Flink's ``merging-window-set``). Its windows are sorted and neither
overlap nor touch, so a record finds its windows by two binary searches. Decoding a set is slower than changing it, so
sets in use stay decoded (`MergingWindows`). They are stored before a snapshot, or when there are many.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from attrs import frozen

from statebackend.state.key_context import KeySetter
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.states import ListState
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.times.timers import TimeWindow, TimeWindowSerializer

__all__ = ["SETS_NAME", "Merge", "MergingWindowSet", "MergingWindows"]

_start, _end = attrgetter("start"), attrgetter("end")


@frozen
class Merge:
    """The result of adding a window.

    ``window`` contains the added window. It replaces the windows ``merged``; the contents of the state windows
    ``absorbed`` move to ``state_window``. Both are empty if no windows merged. ``is_new`` is True for a new window.
    """

    window: TimeWindow
    state_window: TimeWindow
    merged: Sequence[TimeWindow] = ()
    absorbed: Sequence[TimeWindow] = ()
    is_new: bool = False


class MergingWindowSet:
    """The windows of a key with their state windows; ``pairs`` may be in any order."""

    def __init__(self, pairs: Iterable[tuple[TimeWindow, TimeWindow]] = ()) -> None:
        self._state_windows = dict(pairs)
        self._windows = sorted(self._state_windows)
        self.has_changed = False
        """Whether the pairs have changed since creation, or since this was last reset."""

    @property
    def pairs(self) -> list[tuple[TimeWindow, TimeWindow]]:
        """Return the windows with their state windows, by time."""
        return [(window, self._state_windows[window]) for window in self._windows]

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Return the state window of a window, or None if it is not in the set."""
        return self._state_windows.get(window)

    def add(self, window: TimeWindow) -> Merge:
        """Add a window and merge it with the windows that it overlaps or touches."""
        first = bisect_left(self._windows, window.start, key=_end)
        after = bisect_right(self._windows, window.end, key=_start)
        merged = self._windows[first:after]
        if not merged:
            self._windows.insert(first, window)
            self._state_windows[window] = window
            self.has_changed = True
            return Merge(window, window, is_new=True)
        whole = TimeWindow(min(merged[0].start, window.start), max(merged[-1].end, window.end))
        if len(merged) == 1 and merged[0] == whole:
            return Merge(whole, self._state_windows[whole])
        state_window, *absorbed = [self._state_windows.pop(part) for part in merged]
        self._windows[first:after] = [whole]
        self._state_windows[whole] = state_window
        self.has_changed = True
        return Merge(whole, state_window, merged, absorbed)

    def retire(self, window: TimeWindow) -> None:
        """Remove a window, if present."""
        if self._state_windows.pop(window, None) is not None:
            del self._windows[bisect_left(self._windows, window)]
            self.has_changed = True


SETS_NAME: Final = "merging-window-set"

_MOST_SETS: Final = 4096
"""The maximum number of decoded sets before they are stored."""


class MergingWindows:
    """The sets of all keys of a subtask: stored in a list state, and decoded while in use."""

    def __init__(self, register: Callable[[ListStateDescriptor[Any]], Any]) -> None:
        pair: TupleSerializer = TupleSerializer((TimeWindowSerializer(), TimeWindowSerializer()))
        self._state: ListState[Any] = register(ListStateDescriptor(SETS_NAME, pair))
        self._in_use: dict[Any, tuple[int, MergingWindowSet]] = {}

    def of_key(self, key: Any, key_group: int) -> MergingWindowSet:
        """Return the set of the current key."""
        known = self._in_use.get(key)
        if known is None:
            known = self._in_use[key] = key_group, MergingWindowSet(self._state.get())
        return known[1]

    def store_if_large(self, set_key: KeySetter) -> None:
        """Store the decoded sets if there are many. Changes the current key, as `store` does."""
        if len(self._in_use) > _MOST_SETS:
            self.store(set_key)

    def store(self, set_key: KeySetter) -> None:
        """Store the decoded sets and drop them from memory."""
        for key, (key_group, windows) in self._in_use.items():
            if windows.has_changed:
                set_key(key, key_group)
                # An empty list clears the state.
                self._state.update(windows.pairs)
        self._in_use.clear()
