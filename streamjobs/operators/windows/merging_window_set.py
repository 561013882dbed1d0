"""The windows of one key that merge, and under which namespace what each holds is.

A *window* grows with every record that prolongs it. What it holds does not move with it: it stays under the window that
it was first put under, its *state window*. When windows merge, one state window takes in what the others hold. So the
set maps windows to state windows; in state it is the list of those pairs (Flink's ``merging-window-set``).

The windows of a set neither overlap nor touch. They are kept sorted, so that a record finds those it concerns by two
binary searches, however many there are.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

from attrs import frozen

from typeserializers.times.windows import TimeWindow

__all__ = ["Merge", "MergingWindowSet"]

_start, _end = attrgetter("start"), attrgetter("end")


@frozen
class Merge:
    """What adding a window has led to.

    ``window`` is what the added one is a part of now. It took the place of ``merged``; what ``absorbed`` hold belongs
    under ``state_window`` from here on. Both are empty if nothing had to merge. ``is_new`` says that there was nothing
    of the window before.
    """

    window: TimeWindow
    state_window: TimeWindow
    merged: Sequence[TimeWindow] = ()
    absorbed: Sequence[TimeWindow] = ()
    is_new: bool = False


class MergingWindowSet:
    """See the module; ``pairs`` are windows with their state windows, in any order."""

    def __init__(self, pairs: Iterable[tuple[TimeWindow, TimeWindow]] = ()) -> None:
        self._state_windows = dict(pairs)
        self._windows = sorted(self._state_windows)
        self.has_changed = False
        """Whether the pairs are others than those it was made of, or were when this was last set."""

    @property
    def pairs(self) -> list[tuple[TimeWindow, TimeWindow]]:
        """Windows with their state windows, by time."""
        return [(window, self._state_windows[window]) for window in self._windows]

    def state_window(self, window: TimeWindow) -> TimeWindow | None:
        """Under which namespace a window is; None for one that is not in the set."""
        return self._state_windows.get(window)

    def add(self, window: TimeWindow) -> Merge:
        """Adds a window, merging it with those that it overlaps or touches."""
        first = bisect_left(self._windows, window.start, key=_end)
        behind = bisect_right(self._windows, window.end, key=_start)
        merged = self._windows[first:behind]
        if not merged:
            self._windows.insert(first, window)
            self._state_windows[window] = window
            self.has_changed = True
            return Merge(window, window, is_new=True)
        whole = TimeWindow(min(merged[0].start, window.start), max(merged[-1].end, window.end))
        if len(merged) == 1 and merged[0] == whole:
            return Merge(whole, self._state_windows[whole])
        state_window, *absorbed = [self._state_windows.pop(part) for part in merged]
        self._windows[first:behind] = [whole]
        self._state_windows[whole] = state_window
        self.has_changed = True
        return Merge(whole, state_window, merged, absorbed)

    def retire(self, window: TimeWindow) -> None:
        """Takes a window out; one that is not there is ignored."""
        if self._state_windows.pop(window, None) is not None:
            del self._windows[bisect_left(self._windows, window)]
            self.has_changed = True
