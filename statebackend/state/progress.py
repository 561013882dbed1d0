"""Progress of long operations: restoring, migrating and reading state, and writing it to a savepoint.

    operation     entries                              bytes
    RESTORE       rows read, 0 where files are copied  of the files downloaded, of all files to download
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
    """What is done to a state, as it is told to people."""

    RESTORE = "restoring"
    MIGRATION = "migrating"
    SAVEPOINT = "saving"
    READ = "reading"


@frozen(kw_only=True)
class Progress:
    """One notice. ``total_bytes`` is None where it is not known before; ``subtask_index`` where nobody told it.

    ``part`` is how much of the whole is done, from 0 to 1, where that is known otherwise than by bytes.
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
"""Called on the thread that does the work, which waits for it. What it raises ends the operation."""


def no_progress(progress: Progress) -> None:
    """Tells nobody."""


class StateProgress:
    """One operation on one state, counted up for a listener."""

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
        """So many more are done."""
        now = self._now
        self.reach(now.entries + entries, now.size_bytes + size_bytes)

    def reach(self, entries: int, size_bytes: int) -> None:
        """So many are done in all."""
        self._now = evolve(self._now, entries=entries, size_bytes=size_bytes)
        self._listener(self._now)

    def reach_part(self, part: float, entries: int, size_bytes: int) -> None:
        """So many more are done, and with them so much of the whole, from 0 to 1."""
        now = self._now
        self._now = evolve(now, part=part, entries=now.entries + entries, size_bytes=now.size_bytes + size_bytes)
        self._listener(self._now)

    def done(self) -> None:
        """The operation has come to its end."""
        self._now = evolve(self._now, is_done=True)
        self._listener(self._now)
