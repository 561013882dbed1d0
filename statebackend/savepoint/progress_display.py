"""Displays of the progress of long operations: a bar per state on a terminal, log lines elsewhere.

    operator 'aircraft', state 'legs': migrating, 120,000 entries, 3.4 MiB (2 of 4 subtasks done)

The reports of all subtasks for one operation on one state are added up. A line is written when a migration or
savepoint of a state starts, and otherwise at most every few seconds over all states. Finished operations are removed,
so one display can serve a job for its whole life. Displays are thread-safe.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, TextIO

from attrs import define, field

from snapshots.loggers import logger_of
from statebackend.savepoint.sizes import counted, format_bytes
from statebackend.state.progress import Operation, Progress

__all__ = ["LINES_EVERY_S", "ProgressBars", "ProgressDisplay", "ProgressLines", "shown_progress"]

LINES_EVERY_S: Final = 5.0

_REPORTED_IF_LONG: Final = (Operation.RESTORE, Operation.READ)
"""Operations that are reported only if they take longer than the interval of lines."""

_log = logger_of(__name__)

_Key = tuple[Operation, str, str]


class ProgressDisplay(Protocol):
    """A `ProgressListener` that displays what it receives."""

    def __call__(self, progress: Progress) -> None:
        """Process one report."""

    def close(self) -> None:
        """Stop displaying unfinished operations, such as failed ones. The display may be called again."""


def shown_progress(
    stream: TextIO | None = None,
    *,
    write_line: Callable[[str], object] = _log.info,
    now_s: Callable[[], float] = time.monotonic,
    every_s: float = LINES_EVERY_S,
) -> ProgressDisplay:
    """Return bars if ``stream`` (default: stderr) is a terminal and rich is installed, and lines otherwise."""
    target = stream or sys.stderr
    if target.isatty():
        with suppress(ImportError):
            return ProgressBars(target)
    return ProgressLines(write_line, now_s, every_s)


@define
class _Sum:
    """One operation on one state, over the subtasks that reported it."""

    parts: dict[int | None, Progress] = field(factory=dict)

    def take(self, progress: Progress) -> None:
        self.parts[progress.subtask_index] = progress

    @property
    def entries(self) -> int:
        return sum(one.entries for one in self.parts.values())

    @property
    def size_bytes(self) -> int:
        return sum(one.size_bytes for one in self.parts.values())

    @property
    def total_bytes(self) -> int | None:
        totals = [one.total_bytes for one in self.parts.values()]
        return None if None in totals else sum(one for one in totals if one is not None)

    @property
    def part(self) -> float | None:
        """The completed fraction, None if a subtask does not report it."""
        parts = [one.part for one in self.parts.values()]
        return None if None in parts else sum(one for one in parts if one is not None) / len(parts)

    @property
    def done_count(self) -> int:
        return sum(one.is_done for one in self.parts.values())

    @property
    def is_done(self) -> bool:
        return self.done_count == len(self.parts)


class _Sums:
    """The unfinished operations."""

    def __init__(self) -> None:
        self._open: dict[_Key, _Sum] = {}

    def take(self, progress: Progress) -> tuple[_Key, _Sum, bool]:
        """Add a report. Return its key, its sum, and whether it is the first report of the operation."""
        key = progress.operation, progress.operator_uid, progress.state_name
        is_first = key not in self._open
        one = self._open.setdefault(key, _Sum())
        one.take(progress)
        if one.is_done:
            del self._open[key]
        return key, one, is_first

    def __bool__(self) -> bool:
        return bool(self._open)


class ProgressLines:
    """Writes lines. A clock that goes back delays a line by at most ``every_s``."""

    def __init__(self, write_line: Callable[[str], object], now_s: Callable[[], float], every_s: float) -> None:
        self._write_line = write_line
        self._now_s = now_s
        self._every_s = every_s
        self._lock = threading.Lock()
        self._sums = _Sums()
        self._reported_s: float | None = None
        self._started: set[_Key] = set()

    def __call__(self, progress: Progress) -> None:
        with self._lock:
            key, one, _ = self._sums.take(progress)
            is_news = key not in self._started and progress.operation not in _REPORTED_IF_LONG
            if not is_news and not self._is_time():
                return
            if is_news:
                # Bounded by the number of states.
                self._started.add(key)
            self._reported_s = self._now_s()
            line = _line(key, one)
        self._write_line(line)

    def close(self) -> None:
        """Do nothing: written lines stay."""

    def _is_time(self) -> bool:
        now_s = self._now_s()
        if self._reported_s is None or now_s < self._reported_s:
            self._reported_s = now_s
        return now_s - self._reported_s >= self._every_s


def _line(key: _Key, one: _Sum) -> str:
    operation, operator_uid, state_name = key
    parts = [counted(one.entries, "entry", "entries")] if one.entries else []
    if one.size_bytes:
        total = "" if one.total_bytes is None else f" of {format_bytes(one.total_bytes)}"
        parts.append(f"{format_bytes(one.size_bytes)}{total}")
    if one.part is not None:
        parts.append(f"{one.part:.0%}")
    done = f" ({one.done_count} of {len(one.parts)} subtasks done)" if len(one.parts) > 1 else ""
    far = ", ".join(parts) or ("done" if one.is_done else "started")
    return f"operator {operator_uid!r}, state {state_name!r}: {operation.value}, {far}{done}"


class ProgressBars:
    """Draws bars with rich. Raises `ImportError` if rich is not installed."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console

        self._console = Console(file=stream)
        self._lock = threading.Lock()
        self._sums = _Sums()
        self._bars: Any = None
        self._tasks: dict[_Key, Any] = {}

    def __call__(self, progress: Progress) -> None:
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        with self._lock:
            key, one, is_first = self._sums.take(progress)
            if self._bars is None:
                # Names are not markup.
                description = TextColumn("{task.description}", markup=False)
                columns = (description, BarColumn(bar_width=20), TextColumn("{task.fields[far]}", markup=False))
                times = (TimeElapsedColumn(), TimeRemainingColumn())
                self._bars = Bars(*columns, *times, console=self._console, transient=True)
                self._bars.start()
            if is_first:
                operation, operator_uid, state_name = key
                described = f"{operation.value} {operator_uid!r}.{state_name!r}"
                self._tasks[key] = self._bars.add_task(described, total=None, far="")
            far = f"{counted(one.entries, 'entry', 'entries')}, {format_bytes(one.size_bytes)}"
            if one.part is None:
                self._bars.update(self._tasks[key], completed=one.size_bytes, total=one.total_bytes, far=far)
            else:
                self._bars.update(self._tasks[key], completed=one.part, total=1.0, far=far)
            if one.is_done:
                self._bars.remove_task(self._tasks.pop(key))
            if not self._sums:
                self._stop()

    def close(self) -> None:
        """Remove all bars."""
        with self._lock:
            self._sums = _Sums()
            self._stop()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = None
        self._tasks.clear()
