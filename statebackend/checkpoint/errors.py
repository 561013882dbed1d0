"""Every exception this package raises, under one root.

Each message says what was found, where, and what a person can do. Programming slips caught by the
constructors of the value classes are `InvariantViolationError`, which is also a `ValueError`.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "CheckpointError",
    "CheckpointNotFoundError",
    "CorruptFileError",
    "CorruptJobIdentityError",
    "CorruptMetadataError",
    "IllegalTransitionError",
    "IncompleteCheckpointError",
    "InvariantViolationError",
    "JobDirectoryError",
    "JobDirectoryLockedError",
    "JobDirectoryMismatchError",
    "LeadershipLostError",
    "MalformedAcknowledgementError",
    "MissingFileError",
    "SavepointError",
    "SavepointExistsError",
    "StorageError",
    "UncertainCheckpointError",
    "UnsafePathError",
    "UnsupportedMetadataVersionError",
]


class CheckpointError(Exception):
    """Root of all errors of this package."""


class InvariantViolationError(CheckpointError, ValueError):
    """A value breaks an invariant of its class; it was not built, written or accepted."""


class UnsafePathError(InvariantViolationError):
    """A path could leave its directory or is not portable; nothing was touched."""


class StorageError(CheckpointError):
    """The storage below failed (full disk, permissions, network); the cause is chained."""


class UncertainCheckpointError(StorageError):
    """Whether a checkpoint became complete is not known: the next start finds out. None of its files was deleted."""


class MissingFileError(CheckpointError):
    """A file that must be there is not."""


class CorruptFileError(CheckpointError):
    """The bytes of a file are not the bytes that were written."""


class CorruptMetadataError(CorruptFileError):
    """A `_metadata` file is truncated, altered, foreign, or breaks an invariant."""


class UnsupportedMetadataVersionError(CorruptMetadataError):
    """An intact `_metadata` file was written by a newer version of this package."""


class MalformedAcknowledgementError(CheckpointError, ValueError):
    """The bytes are not an acknowledgement, or an acknowledgement cannot be encoded."""


class IllegalTransitionError(CheckpointError):
    """An event arrived in a state that does not admit it; nothing was changed.

    `event` and `state` carry the two names for programs, the message carries them for people.
    """

    def __init__(self, event: str, state: str, detail: str) -> None:
        super().__init__(f"event {event} is not legal in state {state}: {detail}")
        self.event = event
        self.state = state
        self.detail = detail

    def __reduce__(self) -> tuple[type[IllegalTransitionError], tuple[object, ...]]:
        return type(self), (self.event, self.state, self.detail)


class IncompleteCheckpointError(IllegalTransitionError):
    """A checkpoint cannot complete: `missing` names the tasks that have not acknowledged."""

    def __init__(self, event: str, state: str, detail: str, missing: Sequence[str] = ()) -> None:
        super().__init__(event, state, detail)
        self.missing = tuple(missing)

    def __reduce__(self) -> tuple[type[IllegalTransitionError], tuple[object, ...]]:
        return type(self), (self.event, self.state, self.detail, self.missing)


class CheckpointNotFoundError(CheckpointError, LookupError):
    """No retained checkpoint has this id."""


class JobDirectoryError(CheckpointError):
    """A job directory cannot be used."""


class JobDirectoryMismatchError(JobDirectoryError):
    """The directory belongs to another job or was laid out for another max parallelism."""


class JobDirectoryLockedError(JobDirectoryError):
    """Another driver holds the directory; the message names it."""


class LeadershipLostError(JobDirectoryError):
    """This driver does not lead the job any more: it completes no checkpoint, and another may be doing so."""


class CorruptJobIdentityError(JobDirectoryError, CorruptFileError):
    """`job.json` is truncated, altered or foreign."""


class SavepointError(CheckpointError):
    """A savepoint cannot be written or read."""


class SavepointExistsError(SavepointError):
    """The target directory already holds something; it was left as it is."""
