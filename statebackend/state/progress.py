"""Progress of long operations: restoring, migrating and reading state, and writing it to a savepoint.

    operation     entries                              bytes
    RESTORE       rows read, 0 if files are copied     of the files downloaded, of all files to download
    MIGRATION     entries in the new schema            of the values read
    SAVEPOINT     rows written                         of the files written
    READ          rows read                            of their values

Each notice is about one operation on one state of one subtask. Its numbers never decrease, and the last notice marks
the operation as done. An operation that fails sends no more notices.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from attrs import evolve, frozen

__all__ = ["Operation", "Progress", "ProgressListener", "StateProgress", "no_progress"]


class Operation(enum.Enum):
    """An operation on a state; the values are shown to users."""

    RESTORE = "restoring"
    MIGRATION = "migrating"
    SAVEPOINT = "saving"
    READ = "reading"


@frozen(kw_only=True)
class Progress:
    """One notice. ``total_bytes`` and ``subtask_index`` are None if unknown.

    ``part`` is the completed fraction, from 0 to 1, if it is known by other means than bytes.
    """

    operation: Operation
    operator_uid: str
    state_name: str
    subtask_index: int | None = None
    entries: int = 0
    size_bytes: int = 0
    total_bytes: int | None = None
    part: float | None = None
    is_done: bool = False


ProgressListener = Callable[[Progress], object]
"""Called on the thread that does the work, which waits for it. Its exceptions end the operation."""


def no_progress(progress: Progress) -> None:
    """Ignore the notice."""


class StateProgress:
    """Reports one operation on one state to a listener."""

    def __init__(
        self,
        listener: ProgressListener,
        operation: Operation,
        operator_uid: str,
        state_name: str,
        total_bytes: int | None = None,
    ) -> None:
        self._listener = listener
        self._now = Progress(
            operation=operation, operator_uid=operator_uid, state_name=state_name, total_bytes=total_bytes
        )

    def add(self, entries: int = 0, size_bytes: int = 0) -> None:
        """Add to the completed entries and bytes."""
        now = self._now
        self.reach(now.entries + entries, now.size_bytes + size_bytes)

    def reach(self, entries: int, size_bytes: int) -> None:
        """Set the completed entries and bytes."""
        self._now = evolve(self._now, entries=entries, size_bytes=size_bytes)
        self._listener(self._now)

    def reach_part(self, part: float, entries: int, size_bytes: int) -> None:
        """Add to the completed entries and bytes, and set the completed fraction, from 0 to 1."""
        now = self._now
        self._now = evolve(now, part=part, entries=now.entries + entries, size_bytes=now.size_bytes + size_bytes)
        self._listener(self._now)

    def done(self) -> None:
        """Report the end of the operation."""
        self._now = evolve(self._now, is_done=True)
        self._listener(self._now)
