"""The protocol of sinks: each epoch is written exactly once, by a two-phase commit (as Flink's FLIP-143 sinks do).

An epoch may be processed more than once: a crash replays it, and a driver that was declared dead may still write.
The completion of the checkpoint decides:

1. The tasks call `Sink.stage` with the rows of their subtask. It writes them where no reader sees them, or packs them
   into the committable that it returns.
2. The checkpoint completes. It contains the committables of all subtasks.
3. The driver calls `Sink.commit`, which makes the epoch visible. Recovery repeats it if the driver died before.

A crash before step 2 leaves staged rows, which `Sink.recover` removes; the replay stages again. A crash after step 2
repeats `commit` with the committables of the checkpoint. So `commit` first asks the target whether the epoch is there.

**Lineage.** A target identifies an epoch by the uid of the sink, the id of the job, and the number of the epoch. Job
directories have unique ids, and the epochs of a job have ascending numbers, so no two epochs collide. A job that starts
from a savepoint continues the lineage of the job before it: its epochs have higher numbers, and its `SinkLineage` names
that job and the epoch of the savepoint as its parent. A savepoint has no rows that are not committed. Two jobs that
start from one savepoint have different ids, so neither skips epochs of the other.

A job may change its sink between runs. The checkpoint names the sink that staged a committable, and the committable
is never passed to another sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import pyarrow as pa
from attrs import frozen

from statebackend.checkpoint.metadata import SavepointIdentity
from statebackend.streaming.errors import StreamJobError

__all__ = ["Sink", "SinkEpoch", "SinkError", "SinkLineage"]


class SinkError(StreamJobError):
    """A sink cannot stage or commit without losing or duplicating rows. The message names target and fix."""


@frozen
class SinkLineage:
    """The epochs that one job writes with one sink.

    ``parent`` is the savepoint that the job started from, None for a job without one. If the target contains later
    epochs of the parent, that job ran on after the savepoint, and this job writes those rows again.
    """

    sink_uid: str
    job_id: str
    parent: SavepointIdentity | None = None

    @property
    def name(self) -> str:
        """The text under which a target stores the newest epoch: ``<job id>/<sink uid>``."""
        return f"{self.job_id}/{self.sink_uid}"

    @property
    def parent_name(self) -> str | None:
        """The `name` of the job that took the savepoint, if there is one."""
        return None if self.parent is None else f"{self.parent.job_id}/{self.sink_uid}"


@frozen
class SinkEpoch:
    """One epoch of a sink. ``run_id`` is the run that staged it; attempts of different runs may overlap."""

    lineage: SinkLineage
    epoch_id: int
    run_id: str

    @property
    def attempt_id(self) -> str:
        """Differs between attempts at an epoch that may overlap, for names of staged files: ``<job id>.<run id>``."""
        return f"{self.lineage.job_id}.{self.run_id}"

    def __str__(self) -> str:
        return f"epoch {self.epoch_id} of {self.lineage.name}"


class Sink(ABC):
    """A target of rows. An instance belongs to one job. It is pickled into the tasks, so it holds no open connection.

    The driver makes one call at a time. It calls `recover` before it stages anything. The commit of the newest
    checkpoint is repeated before or after that. Then epochs are staged and committed with ascending numbers. The local
    runtime may commit an epoch with the next checkpoint, because the checkpoint of its own epoch failed.
    """

    @property
    @abstractmethod
    def identity(self) -> str:
        """A text that names the target, such as ``DeltaSink('/data/flights')``, without secrets.

        Checkpoints store it. Sinks with equal identities may commit each other's epochs, so one job cannot have two.
        """

    @abstractmethod
    def stage(self, epoch: SinkEpoch, subtask_index: int, rows: pa.RecordBatchReader) -> bytes:
        """Write the rows of a subtask where no reader sees them. Called in the task; any exception fails the epoch.

        Spark may run two attempts at a task at once, and repeat it on another machine. Only the committable of one
        attempt is committed. If no subtask has rows, the driver calls it once for subtask 0 without rows.

        Args:
            epoch: The epoch.
            subtask_index: The subtask, from 0.
            rows: The rows with their schema. Iterate over it once; it computes the rows.

        Returns:
            The committable, which becomes part of the checkpoint. It has no secrets. Empty bytes mean that there is
            nothing to commit.
        """

    @abstractmethod
    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        """Make an epoch visible, all of it or nothing, unless the target has it. Called on the driver.

        It is called after the checkpoint of the epoch is stored. A crash repeats the call, and a driver that lost the
        leadership may make it at the same time as its successor, both with these committables.

        Args:
            epoch: The epoch.
            committables: What the subtasks returned, in the order of subtasks, without empty ones. At least one.

        Raises:
            SinkError: The epoch cannot be committed without losing or duplicating rows.
        """

    def abort(self, epoch: SinkEpoch) -> None:  # noqa: B027
        """Discard what the run of ``epoch`` staged for it. Its checkpoint will not complete. Best effort."""

    def recover(self, lineage: SinkLineage, last_epoch_id: int | None) -> None:  # noqa: B027
        """Remove what attempts of this job at later epochs left. Called once per run, before anything is staged.

        Args:
            lineage: The epochs of this job. Leave what other jobs staged: their checkpoints may refer to it.
            last_epoch_id: The last epoch whose checkpoint is complete; for a new job from a savepoint that of the
                savepoint. None without one.

        Raises:
            SinkError: The target has later epochs of this job, or of its parent. Committing would duplicate rows.
        """

    def close(self) -> None:  # noqa: B027
        """Close the connections of the driver. Called when a run ends. A later run may use the sink again."""

    def roll_back(self, lineage: SinkLineage, last_epoch_id: int) -> Sequence[str]:
        """Hide the output of this job after an epoch, because the job rolls back to its checkpoint.

        A crash repeats the call. After it, the later epochs may be committed again, with other rows.

        Returns:
            Where the hidden output is, for the report of the rollback.

        Raises:
            SinkError: The target cannot hide it. Nothing is hidden then.
        """
        raise SinkError(
            f"{self.identity} cannot roll back to epoch {last_epoch_id}. Start from a savepoint in a new job directory"
        )
