"""The epoch without records that is open: `time-epoch.json`, there from before its tasks run until its output is shown.

An epoch of records is planned by whoever reads them, and its plan is on a disk before it runs. One without records has
no such plan but this file: its processing time, which its replay after a crash must see too. What the file means is
told by the newest checkpoint:

    the checkpoint before it is the newest    the epoch is to be processed again, with this time, before any other; one
                                              at the end of time is given up, since who starts a job again goes on
    its own checkpoint is the newest          its output may not be committed yet
    anything else                             it was left behind by a history that was given up, and means nothing

`time-epoch.json` is a sealed JSON file (see `sealed_json`) with the fields of `OpenTimeEpoch`.
"""

from __future__ import annotations

from typing import Final

from attrs import asdict, frozen

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.checksum import is_checksum
from checkpointing.handles.invariants import MAX_ID, check_integer, require
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.sealed_json import corrupt, read_sealed_json, sealed_json

__all__ = [
    "TIME_EPOCH_FILE_NAME",
    "OpenTimeEpoch",
    "end_time_epoch",
    "read_time_epoch",
    "write_time_epoch",
]

TIME_EPOCH_FILE_NAME: Final = "time-epoch.json"

_FORMAT_VERSION: Final = 1


@frozen(kw_only=True)
class OpenTimeEpoch:
    """An epoch without records. `parent_digest` is that of the checkpoint before it, None if there is none of the job.

    `is_drain` says that it is at the end of time.
    """

    checkpoint_id: int
    parent_digest: str | None
    processing_time_ms: int
    is_drain: bool

    def __attrs_post_init__(self) -> None:
        check_integer("checkpoint_id", self.checkpoint_id, 0, MAX_ID)
        check_integer("processing_time_ms", self.processing_time_ms, 0, MAX_ID)
        require(
            self.parent_digest is None or is_checksum(self.parent_digest), "parent_digest must be a checksum or null"
        )
        require(type(self.is_drain) is bool, "is_drain must be a bool")

    def is_epoch_of(self, checkpoint: CheckpointMetadata) -> bool:
        """Whether a checkpoint is that of this epoch."""
        own = self.checkpoint_id, self.parent_digest
        return own == (checkpoint.checkpoint_id, checkpoint.parent_digest)

    def follows(self, digest: str | None) -> bool:
        """Whether the epoch is to be processed again behind the checkpoint with that digest, None for none."""
        return self.parent_digest == digest and not self.is_drain


def write_time_epoch(file_system: CheckpointFileSystem, epoch: OpenTimeEpoch) -> None:
    """Open an epoch without records in the job directory at the root of `file_system`, durably."""
    file_system.write_file(TIME_EPOCH_FILE_NAME, sealed_json(asdict(epoch), _FORMAT_VERSION))


def read_time_epoch(file_system: CheckpointFileSystem) -> OpenTimeEpoch | None:
    """The epoch that was opened and not ended, if there is one. Raises `CorruptJobIdentityError`."""
    if not file_system.exists(TIME_EPOCH_FILE_NAME):
        return None
    content = read_sealed_json(file_system, TIME_EPOCH_FILE_NAME, _FORMAT_VERSION)
    try:
        return OpenTimeEpoch(**content)
    except (InvariantViolationError, TypeError) as error:
        corrupt(file_system, TIME_EPOCH_FILE_NAME, f"is not valid: {error}")


def end_time_epoch(file_system: CheckpointFileSystem) -> None:
    """End the epoch: its output is committed. If a crash undoes it, the output is committed again."""
    file_system.delete(TIME_EPOCH_FILE_NAME)
