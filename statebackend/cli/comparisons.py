"""A job put to what is stored, and how that ends: it restores, it loses something, or it is rejected.

*Loses* is what every start does without being asked: a field, or another part of a value, that the new types have no
place for, is gone. *Rejected unless allowed* is what a start does with ``allow_non_restored_state=True`` only: it
leaves behind a state that no function registers, whose entries nobody reads, or an operator that the job has not.
*Rejected* is what no start would do: a issue that rejects, other key groups, schemas that do not merge.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterator

from attrs import frozen

from snapshots.errors import StateFormatError
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.ha.services import JobServices
from statebackend.savepoint.lockfile import StateLock, is_lock_file, locks_of_history, read_lock
from statebackend.savepoint.state_location import find_state
from statebackend.state.errors import StateBackendError
from statebackend.state.state_backend import state_backend
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.runtime.described_job import DescribedJob, Takeover, judged_by, takeover_of

__all__ = ["Comparison", "Outcome", "compared_with", "compared_with_history", "compared_with_lock"]


class Outcome(enum.Enum):
    """How a comparison ends, the worst last."""

    RESTORES = "restores"
    LOSES = "restores, and loses what is marked 'data loss'"
    REJECTED_UNLESS_ALLOWED = (
        "does not restore, unless the start is given allow_non_restored_state=True, which leaves behind what is listed"
    )
    REJECTED = "does not restore"

    def is_accepted(self, allow_loss: bool) -> bool:
        """Whether it is as good as a restore, to somebody who accepts losses or does not."""
        return self is Outcome.RESTORES or (allow_loss and self is not Outcome.REJECTED)


@frozen
class Comparison:
    """What was found of a job and something stored; where there is a ``rejection`` it is rejected as a whole.

    There may be a ``takeover`` even so, which says what else there is to mend.
    """

    stored: str
    takeover: Takeover | None
    rejection: str | None = None

    @property
    def outcome(self) -> Outcome:
        """How it ends."""
        if self.takeover is None or not self.takeover.is_possible:
            return Outcome.REJECTED
        if self.takeover.leaves_state_behind:
            return Outcome.REJECTED_UNLESS_ALLOWED
        return Outcome.LOSES if self.takeover.lossy else Outcome.RESTORES


def compared_with(
    job: DescribedJob,
    path: str | os.PathLike[str],
    *,
    checkpoint_id: int | None = None,
    backend: str | None = None,
    parallelism: int | None = None,
    services: JobServices | None = None,
) -> Comparison:
    """The job and a lock file, a savepoint, a checkpoint or a job directory; ``services`` are those that it is led by.

    Raises `StateLockError` for a file that is no lock, and what `find_state` raises.
    """
    if is_lock_file(path):
        return compared_with_lock(job, read_lock(path))
    restored = find_state(path, checkpoint_id, services)
    named = None if backend is None else state_backend(backend)
    return _compared(restored.where, lambda: takeover_of(job, restored, backend=named, parallelism=parallelism))


def compared_with_lock(job: DescribedJob, lock: StateLock) -> Comparison:
    """The job and a lock."""
    return _compared(lock.where, lambda: judged_by(job, lock))


def compared_with_history(job: DescribedJob, directory: str | os.PathLike[str]) -> Iterator[Comparison]:
    """The job and each lock that there has been, the newest first; raises as `locks_of_history`."""
    for _, lock in locks_of_history(directory):
        yield compared_with_lock(job, lock)


def _compared(where: str, judge: Callable[[], Takeover]) -> Comparison:
    try:
        takeover = judge()
    except (JobRestoreError, StateBackendError, StateFormatError, CheckpointError) as error:
        return Comparison(where, None, str(error))
    return Comparison(where, takeover, takeover.rejection)
