"""The contracts of sinks: each epoch is written exactly once, by a two-phase commit (as Flink's sinks do).

An epoch may be processed more than once: a crash replays it, and a driver that was declared dead may still write.
The completion of the checkpoint decides:

1. ``stage(epoch, attempt)`` writes where no reader looks, in a place of this attempt alone.
2. The checkpoint completes. It contains the committable that ``stage`` returned.
3. ``commit(epoch)`` makes the staged rows visible. Recovery repeats it if the driver died before.

A crash before step 2 leaves staged rows, which `recover` removes; the replay stages again. A crash after step 2
repeats `commit` with the committable of the checkpoint, so `commit` must be idempotent.

A job may change its sink between runs. The checkpoint names the sink that staged a committable, and the committable
is never passed to another sink.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from statebackend.streaming.errors import StreamJobError

__all__ = ["RecordSink", "RollbackSink", "Sink", "SinkError", "reads_once", "sink_identity", "sink_place"]


class SinkError(StreamJobError):
    """A sink cannot stage or commit without losing or duplicating rows. The message names the obstacle."""


@runtime_checkable
class Sink(Protocol):
    """The contract of a sink of frames. An instance belongs to one job; the driver makes one call at a time.

    Optional attributes:

    - ``identity``, which every sink should have: a text that names the target, such as a path. Checkpoints store it,
      and sinks with equal identities may commit each other's epochs. If the class itself defines it, such as
      ``identity = "noop"``, it names the kind of sink, and a job may have several. Without it, checkpoints store the
      path of the class. If the class moves, rows that are not committed yet are lost.
    - ``reads_once = True`` on the class: `stage` runs one action over the whole frame, in one pass over its
      partitions, so the rows need not be computed and stored first. Subclasses do not inherit it.

    A sink may also implement `RollbackSink`.
    """

    def stage(self, frame: Any, epoch_id: int, attempt_id: str) -> bytes:
        """Write the frame where no reader sees it, with any number of Spark actions, and return what `commit` needs.

        Args:
            frame: The rows of the epoch, a DataFrame.
            epoch_id: The epoch.
            attempt_id: Differs between any two attempts at an epoch that may overlap: the id of the job, a dot and the
                id of the run.

        Returns:
            The committable, which becomes part of the checkpoint. Empty bytes mean that there is nothing to commit.

        Any exception fails the epoch; `abort` follows.
        """

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Make a staged epoch visible. Called after its checkpoint has completed, and again after a crash."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Discard what an attempt staged, if anything. Its checkpoint will not complete."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Remove what attempts of this job at later epochs left. Called once, before the first epoch of a run.

        Leave what other jobs staged in the same place: their completed epochs may depend on it.
        """


@runtime_checkable
class RecordSink(Protocol):
    """The contract of a sink of the local runtime, with the same two phases. A class may also be a `Sink`.

    One thread makes all calls. Staged records may be committed with a later epoch than they were staged for, but under
    the id that they were staged with. ``identity`` is as for `Sink`.
    """

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        """Write records durably where no reader sees them, and return what `commit` needs.

        Args:
            records: The records.
            epoch_id: The epoch.
            attempt_id: As for `Sink.stage`.

        Returns:
            The committable, which becomes part of a checkpoint.

        Any exception ends the run.
        """

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Make staged records visible. Called when a checkpoint with them is complete, and again after a crash."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Discard what was staged. No checkpoint refers to it."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Remove what this job staged under later ids. Called once per run, before anything is staged."""


@runtime_checkable
class RollbackSink(Protocol):
    """A sink that can hide committed epochs when a job rolls back to an older checkpoint."""

    def roll_back(self, last_epoch_id: int, job_id: str) -> Sequence[str]:
        """Hide, without deleting, what the job made visible after this epoch, and return where it is.

        A crash repeats the call.

        Raises:
            SinkError: The sink cannot roll back. Nothing is hidden then.
        """


def reads_once(sink: object) -> bool:
    """Whether the sink's own class declares ``reads_once``; the declaration is not inherited."""
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
