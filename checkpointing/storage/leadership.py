"""Who may write to a job: at most one driver leads it, and one that does not any more completes no checkpoint.

On a file system with locks the driver's lock file is leadership (`driver_lock`): it is held as long as the process
lives, and nobody else can take it meanwhile. Where leadership can be lost while the process lives, as with a lease of
ZooKeeper, `check` is where that is found out, and a store asks it before a checkpoint becomes complete.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["Leadership"]


class Leadership(Protocol):
    """The leadership of one job, held from its construction until `close`, or until it is lost."""

    def check(self) -> None:
        """Raise `LeadershipLostError` if this driver does not lead the job any more."""

    def close(self) -> None:
        """Give it up; again is fine."""
