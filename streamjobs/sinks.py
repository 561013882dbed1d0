"""Where the rows of a job go, epoch by epoch, each epoch once.

An epoch may be processed more than once: after a crash it is replayed, and a driver that was declared dead may still be
writing. So a sink works in two phases around the one moment that decides, the completion of the checkpoint:

    stage(epoch, attempt)      writes out of sight, in a place of this attempt alone
      checkpoint completes, with the committable that stage() returned inside it
    commit(epoch)              makes what was staged visible; told again at recovery if the driver died in between

A crash before the completion leaves staged leftovers, which `recover` removes; the replay stages anew. A crash after
it leaves a committable in the checkpoint, and `commit` is called with it again: it must be idempotent.
(The two-phase commit of Flink's sinks; an epoch here is a checkpoint there.)
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from streamjobs.errors import StreamJobError

__all__ = ["Sink", "SinkError"]


class SinkError(StreamJobError):
    """A sink cannot stage or commit without losing or doubling rows; the message says what is in the way."""


@runtime_checkable
class Sink(Protocol):
    """The contract of a sink; one instance belongs to one job, and is called by the driver, one call at a time."""

    def stage(self, frame: Any, epoch_id: int, attempt_id: str) -> bytes:
        """Writes the frame where no reader sees it, by any number of Spark actions; returns what `commit` needs.

        `attempt_id` differs between any two attempts at an epoch that could overlap. The bytes become part of the
        checkpoint. Any exception fails the epoch; `abort` follows.
        """

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Makes a staged epoch visible. Called after its checkpoint has completed, and again after a crash."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Forgets what an attempt has staged, if anything; its checkpoint will not complete."""

    def recover(self, last_completed_epoch_id: int | None) -> None:
        """Removes what attempts at later epochs have left; called once, before the first epoch of a run."""
