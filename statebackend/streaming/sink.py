"""Where the rows of a job go, epoch by epoch, each epoch once.

An epoch may be processed more than once: after a crash it is replayed, and a driver that was declared dead may still be
writing. So a sink works in two phases around the one moment that decides, the completion of the checkpoint:

    stage(epoch, attempt)      writes out of sight, in a place of this attempt alone
      checkpoint completes, with the committable that stage() returned inside it
    commit(epoch)              makes what was staged visible; told again at recovery if the driver died in between

A crash before the completion leaves staged leftovers, which `recover` removes; the replay stages again. A crash after
it leaves a committable in the checkpoint, and `commit` is called with it again: it must be idempotent.
(The two-phase commit of Flink's sinks; an epoch here is a checkpoint there.)

A job may be given another sink from one run to the next. A committable belongs to the sink that staged it: the
checkpoint names that sink, and a committable is never handed to another. What Spark has noted as done is committed, and
is not committed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from statebackend.streaming.errors import StreamJobError

__all__ = ["RecordSink", "Sink", "SinkError", "SinkThatTakesBack", "reads_once", "sink_identity", "sink_place"]


class SinkError(StreamJobError):
    """A sink cannot stage or commit without losing or doubling rows; the message says what is in the way."""


@runtime_checkable
class Sink(Protocol):
    """The contract of a sink; one instance belongs to one job, and is called by the driver, one call at a time.

    A sink should have an attribute ``identity``, which checkpoints store: a text that names the place it writes to,
    such as a path. Two sinks that may commit each other's epochs have the same identity. If the class itself defines
    it, such as ``identity = "noop"``, it names the kind of sink, and a job may have several. Without it, checkpoints
    store the path of the class, and rows that are not committed yet are lost to a class that was moved.

    A sink may also be one of `SinkThatTakesBack`. Its class may say ``reads_once = True``: `stage` then runs one action
    over the whole frame, in one pass over its partitions, and the rows need not be computed and kept first. A class
    that is derived from it says so again, or does not.
    """

    def stage(self, frame: Any, epoch_id: int, attempt_id: str) -> bytes:
        """Writes the frame where no reader sees it, by any number of Spark actions; returns what `commit` needs.

        `attempt_id` differs between any two attempts at an epoch that could overlap; it is that of the job, a dot, and
        that of the run. The bytes become part of the checkpoint; none at all say that there is nothing to commit. Any
        exception fails the epoch; `abort` follows.
        """

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Makes a staged epoch visible. Called after its checkpoint has completed, and again after a crash."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Forgets what an attempt has staged, if anything; its checkpoint will not complete."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes what attempts of this job at later epochs have left; called once, before the first epoch of a run.

        What other jobs have staged in the same place may be all that there is of their completed epochs.
        """


@runtime_checkable
class RecordSink(Protocol):
    """The contract of a sink of a job in one process, in the same two phases; a class may be a `Sink` as well.

    It is called by one thread. What was staged may be committed with a later epoch than it was staged for, but under
    the id that it was staged with. ``identity`` is as for a `Sink`.
    """

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        """Writes records where no reader sees them; returns what `commit` needs, which becomes part of a checkpoint.

        They are durable when it returns. ``attempt_id`` is as for a `Sink`. Any exception ends the run.
        """

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Makes staged records visible. Called when a checkpoint with them is complete, and again after a crash."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Forgets what was staged; no checkpoint has it."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Removes what this job has staged under later ids; called once per run, before anything is staged."""


@runtime_checkable
class SinkThatTakesBack(Protocol):
    """A sink that can hide what it has shown, for a job that goes back to an older checkpoint."""

    def roll_back(self, last_epoch_id: int, job_id: str) -> Sequence[str]:
        """Hides, without deleting it, what the job has made visible of later epochs; returns where it is.

        It is called again after a crash. Raises `SinkError`, before anything is hidden, if it cannot.
        """


def reads_once(sink: object) -> bool:
    """Whether the sink's own class says that it reads the frame once; what it inherits is not known of it."""
    return vars(type(sink)).get("reads_once") is True


def sink_identity(sink: object) -> str:
    """Return the ``identity`` that checkpoints store for a sink; its class path if it has none."""
    identity = getattr(sink, "identity", None)
    return identity if isinstance(identity, str) else f"{type(sink).__module__}.{type(sink).__qualname__}"


def sink_place(sink: object) -> str | None:
    """Return the ``identity`` of a sink that names a place; None for one without, or with one for its whole class."""
    identity = getattr(sink, "identity", None)
    is_of_class = isinstance(getattr(type(sink), "identity", None), str)
    return identity if isinstance(identity, str) and not is_of_class else None
