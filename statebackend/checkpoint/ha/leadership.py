"""Leadership of a job: at most one driver leads it, and one that lost the leadership completes no checkpoint.

On a file system with locks, the lock of a file is the leadership (`driver_lock`). A process holds it while it lives. A
session of ZooKeeper or a lease can be lost while the process lives, so two drivers may both believe that they lead.
Therefore:

1. One step checks the leadership and completes a checkpoint.
2. A driver deletes only what it listed *before* a check that confirmed its leadership. So it never deletes what another
   leader wrote since.
3. A driver writes under names that no other driver uses, or in its own directories.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from statebackend.checkpoint.errors import LeadershipLostError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem

__all__ = ["Leadership", "LeadershipProvider", "LossListener", "loss_caused_by", "raising_root_cause", "root_cause"]

_LOOK_LIMIT_S: Final = 30.0

LossListener = Callable[[LeadershipLostError], None]
"""Called when the leadership is lost."""


class Leadership(Protocol):
    """The leadership of one job, held from its construction until `close`, or until it is lost."""

    def check(self) -> None:
        """Check that this driver led the job at some moment after the call.

        Raises:
            LeadershipLostError: It does not lead any more; caused by a `StorageError` if there was no answer in time.
            StorageError: There was no answer in time.
        """

    def at_loss(self, listener: LossListener) -> None:
        """Call `listener` once, in its own thread, when the leadership is found to be lost outside of `check`."""

    def close(self) -> None:
        """Release the leadership. May be called again."""


class LeadershipProvider(Protocol):
    """The way in which a driver becomes the leader of a job."""

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> Leadership:
        """Lead the job whose directory is the root of `file_system`; may wait for it, as a standby does.

        Raises `JobDirectoryLockedError` with the leader if it does not wait any longer, `JobDirectoryError` if the job
        cannot be led in this way, and `StorageError` if the leader cannot be determined.
        """


def root_cause(leadership: Leadership, failure: Exception, limit_s: float = _LOOK_LIMIT_S) -> Exception:
    """The loss of the leadership if this driver does not lead any more, else ``failure``.

    The next leader deletes files of the previous one, which may fail in any way before it notices that it lost the
    leadership. Checks once and waits at most ``limit_s`` seconds. Call it only before closing the leadership.
    """
    if isinstance(failure, LeadershipLostError):
        return failure
    losses: list[LeadershipLostError] = []
    # The check of a service that does not answer may take minutes, while a caller waits for the end of the run.
    look = threading.Thread(target=_note_loss, args=(leadership, losses), name="who leads", daemon=True)
    look.start()
    look.join(limit_s)
    return loss_caused_by(failure, losses[0]) if losses else failure


def _note_loss(leadership: Leadership, losses: list[LeadershipLostError]) -> None:
    # An error of the check itself does not show that the leadership was lost.
    with contextlib.suppress(Exception):
        try:
            leadership.check()
        except LeadershipLostError as lost:
            if not isinstance(lost.__cause__, StorageError):
                losses.append(lost)


def loss_caused_by(failure: BaseException, lost: LeadershipLostError) -> LeadershipLostError:
    """Copy the error for the lost leadership, with the failure that it explains as ``__cause__``.

    A copy, because several failures may have the same loss as their reason.
    """
    explained = LeadershipLostError(*lost.args)
    explained.__cause__ = failure
    return explained


@contextlib.contextmanager
def raising_root_cause(leadership: Leadership) -> Iterator[None]:
    """Raise the `root_cause` of an error of the block instead of the error."""
    try:
        yield
    except Exception as error:
        cause = root_cause(leadership, error)
        if cause is error:
            raise
        raise cause from error
