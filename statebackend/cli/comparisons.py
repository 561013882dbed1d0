"""Compares a job with stored schemas and decides the outcome.

| Outcome | Meaning |
|---|---|
| restores | nothing is lost |
| loses | a start drops parts of values that the new types do not have |
| rejected unless allowed | only a start with ``allow_non_restored_state=True`` drops the listed states or operators |
| rejected | no start restores the state: an incompatible schema, or other key groups |
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
    """The outcome of a comparison, best first."""

    RESTORES = "restores"
    LOSES = "restores, and loses what is marked 'data loss'"
    REJECTED_UNLESS_ALLOWED = (
        "does not restore, unless the start is given allow_non_restored_state=True, which leaves behind what is listed"
    )
    REJECTED = "does not restore"

    def is_accepted(self, allow_loss: bool) -> bool:
        """Whether the outcome is a restore, or a loss that is allowed."""
        return self is Outcome.RESTORES or (allow_loss and self is not Outcome.REJECTED)


@frozen
class Comparison:
    """A job compared with stored schemas. ``rejection`` rejects the whole.

    A ``takeover`` may be present even then, and lists what else has to be fixed.
    """

    stored: str
    takeover: Takeover | None
    rejection: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome."""
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
    """Compare the job with a lockfile, a savepoint, a checkpoint or a job directory.

    Raises:
        StateLockError: The file is not a valid lockfile.
        SavepointError: There is no state at the path. See `find_state` for more.
    """
    if is_lock_file(path):
        return compared_with_lock(job, read_lock(path))
    restored = find_state(path, checkpoint_id, services)
    named = None if backend is None else state_backend(backend)
    return _compared(restored.where, lambda: takeover_of(job, restored, backend=named, parallelism=parallelism))


def compared_with_lock(job: DescribedJob, lock: StateLock) -> Comparison:
    """Compare the job with a lock."""
    return _compared(lock.where, lambda: judged_by(job, lock))


def compared_with_history(job: DescribedJob, directory: str | os.PathLike[str]) -> Iterator[Comparison]:
    """Compare the job with each lock of a history, newest first. Raises as `locks_of_history`."""
    for _, lock in locks_of_history(directory):
        yield compared_with_lock(job, lock)


def _compared(where: str, judge: Callable[[], Takeover]) -> Comparison:
    try:
        takeover = judge()
    except (JobRestoreError, StateBackendError, StateFormatError, CheckpointError) as error:
        return Comparison(where, None, str(error))
    return Comparison(where, takeover, takeover.rejection)
