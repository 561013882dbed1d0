"""Who may write to a job: at most one driver leads it, and one that does not any more completes no checkpoint.

On a file system with locks the driver's lock file is leadership (`driver_lock`): it is held as long as the process
lives, and nobody else can take it meanwhile. Where leadership can be lost while the process lives, as with a session of
ZooKeeper or a lease, two drivers may for a while both believe that they lead. So leadership is looked at where it is
held, and not where it is believed:

1. A checkpoint becomes complete in one step with the look, or not at all.
2. A driver deletes what it has listed *before* a look that found it leading. What another leader has made since is then
   not among it.
3. What a driver writes has names that no other driver gives, or it is written where only this driver writes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final, Protocol

from statebackend.checkpoint.errors import LeadershipLostError, StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem

__all__ = ["Leadership", "LeadershipProvider", "LossListener", "loss_behind", "telling_of_loss", "told_failure"]

_LOOK_LIMIT_S: Final = 30.0

LossListener = Callable[[LeadershipLostError], None]
"""What is told of a loss."""


class Leadership(Protocol):
    """The leadership of one job, held from its construction until `close`, or until it is lost."""

    def check(self) -> None:
        """Look whether this driver led the job at some moment after the call.

        Raises `LeadershipLostError` if it does not lead any more. Where that cannot be found out in time it raises
        `StorageError`, or `LeadershipLostError` caused by one.
        """

    def at_loss(self, listener: LossListener) -> None:
        """Have `listener` called once, by a thread of its own, when leadership is found lost while nobody looks."""

    def close(self) -> None:
        """Give it up; again is fine."""


class LeadershipProvider(Protocol):
    """How a driver comes to lead the job of a directory."""

    def lead(self, file_system: CheckpointFileSystem, job_name: str) -> Leadership:
        """Lead the job whose directory is the root of `file_system`; may wait for it, as a stand-by does.

        Raises `JobDirectoryLockedError` naming the leader if it does not wait any longer, `JobDirectoryError` if the
        job cannot be led in this way, `StorageError` if nothing can be found out.
        """


def told_failure(leadership: Leadership, failure: Exception, limit_s: float = _LOOK_LIMIT_S) -> Exception:
    """What a run is to fail by: the loss of the leadership, if this driver does not lead any more, or ``failure``.

    The next leader clears away the files of the one before it, which may meet that in any way before it hears that it
    has been overtaken. Looks once, and waits for that for ``limit_s`` seconds at most. To be asked by who has not given
    the leadership up.
    """
    if isinstance(failure, LeadershipLostError):
        return failure
    losses: list[LeadershipLostError] = []
    # A service that does not answer is asked again and again for minutes, and somebody may wait for the end of the run.
    look = threading.Thread(target=_note_loss, args=(leadership, losses), name="who leads", daemon=True)
    look.start()
    look.join(limit_s)
    return loss_behind(failure, losses[0]) if losses else failure


def _note_loss(leadership: Leadership, losses: list[LeadershipLostError]) -> None:
    # Of what cannot be found out, however that fails, nobody knows whether it has anything to do with the failure.
    with contextlib.suppress(Exception):
        try:
            leadership.check()
        except LeadershipLostError as lost:
            if not isinstance(lost.__cause__, StorageError):
                losses.append(lost)


def loss_behind(failure: BaseException, lost: LeadershipLostError) -> LeadershipLostError:
    """The loss as the reason of a failure, which is its ``__cause__``: what was met says where it was met.

    It is another one than ``lost``, which many are told, each behind a failure of his own.
    """
    told = LeadershipLostError(*lost.args)
    told.__cause__ = failure
    return told


@contextlib.contextmanager
def telling_of_loss(leadership: Leadership) -> Iterator[None]:
    """Within the block whatever fails is told as `told_failure` says."""
    try:
        yield
    except Exception as error:
        told = told_failure(leadership, error)
        if told is error:
            raise
        raise told from error
