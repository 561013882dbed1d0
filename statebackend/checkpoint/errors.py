"""All exceptions of this package, with one base class.

Each message names the problem, the place, and the fix. Programming errors that the constructors of the value classes
detect are `InvariantViolationError`, which is also a `ValueError`.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from typing import Final

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
    "fix_of",
]

_NO_SPACE: Final = "Free space, or use another disk; then start again"
_NO_PERMISSION: Final = "Let this user read and write there; then start again"
_BROKEN_DISK: Final = "Repair the disk, or use another one; then start again"
_FIXES: Final = {
    errno.EIO: _BROKEN_DISK,
    errno.ENOSPC: _NO_SPACE,
    errno.EDQUOT: _NO_SPACE,
    errno.EFBIG: _NO_SPACE,
    errno.EACCES: _NO_PERMISSION,
    errno.EPERM: _NO_PERMISSION,
    errno.EROFS: _NO_PERMISSION,
}
_MESSAGES: Final = {
    "Input/output error": errno.EIO,
    "No space left on device": errno.ENOSPC,
    "Disk quota exceeded": errno.EDQUOT,
    "File too large": errno.EFBIG,
    "Permission denied": errno.EACCES,
    "Read-only file system": errno.EROFS,
}
_CODE: Final = re.compile(r"(?:errno|os error) (\d+)", re.IGNORECASE)


def fix_of(text: str) -> str | None:
    """Return the fix of a full or broken disk or a missing permission; None for other errors.

    ``text`` has the number of an error of the operating system, as Python, pyarrow and Rust write it, or only its text,
    as RocksDB writes it.
    """
    found = _CODE.search(text)
    if found is not None:
        return _FIXES.get(int(found[1]))
    return next((_FIXES[code] for message, code in _MESSAGES.items() if message in text), None)


class CheckpointError(Exception):
    """Base of all errors of this package."""


class InvariantViolationError(CheckpointError, ValueError):
    """A value breaks an invariant of its class. It was not created, written or accepted."""


class UnsafePathError(InvariantViolationError):
    """A path could leave its directory or is not portable; nothing was accessed."""


class StorageError(CheckpointError):
    """The underlying store failed (full disk, permissions, network); the cause is chained."""


class UncertainCheckpointError(StorageError):
    """It is unknown whether a checkpoint is complete; the next start finds out. None of its files was deleted."""


class MissingFileError(CheckpointError):
    """A required file does not exist."""


class CorruptFileError(CheckpointError):
    """The bytes of a file are not the bytes that were written."""


class CorruptMetadataError(CorruptFileError):
    """A `_metadata` file is truncated, altered, foreign, or breaks an invariant."""


class UnsupportedMetadataVersionError(CorruptMetadataError):
    """An intact `_metadata` file was written by a newer version of this package."""


class MalformedAcknowledgementError(CheckpointError, ValueError):
    """The bytes are not an acknowledgement, or an acknowledgement cannot be encoded."""


class IllegalTransitionError(CheckpointError):
    """An event is not allowed in the current state; nothing was changed.

    `event` and `state` are the names for programs; the message is for users.
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
    """The target directory is not empty; it was not changed."""
