"""Small files of a job directory that record unfinished operations. All are checksummed JSON.

`high-availability.json` says where the pointers to completed checkpoints are if not in the directory, for example
`zookeeper:/statebackend/flights`. A driver that would look elsewhere is rejected, because it would find no checkpoints.

`rollback.json` exists from the first step of a rollback to its last. A crash in between leaves a directory that fits
no checkpoint, so the only start that is accepted is one that repeats the same rollback. Each step can be repeated.

`no-data-epoch.json` exists from before the tasks of a no-data epoch run until its output is committed. It records the
processing time, which a replay after a crash must see again. The newest checkpoint decides what the file means:

    the parent of the epoch     run the epoch again with this time, before any other; a drain is not run again
    the epoch's own checkpoint  its output may not be committed yet
    any other checkpoint        the file is a leftover of an abandoned history and is ignored
"""

from __future__ import annotations

from typing import Final

from attrs import asdict, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import JobDirectoryMismatchError
from statebackend.checkpoint.fs.checksummed_json import checksummed_json, corrupt, read_checksummed_json, read_record
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import MAX_ID, check_integer, is_checksum, path_segment, require
from statebackend.checkpoint.metadata import CheckpointMetadata

ROLL_BACK_FILE_NAME = "rollback.json"

NO_SOURCE_LOG = "no-source-log"
"""Stands for the source log of a job without one, such as a job of the local runtime."""

_ROLLBACK_FORMAT_VERSION = 1
_MAX_INTEGER = (1 << 63) - 1


@frozen(kw_only=True)
class Rollback:
    """`checkpoint_id` is to become the newest; `newest_id` is the newest epoch that had started.

    `source_log` is the name, below `set-aside/`, of the source log as it was, or `NO_SOURCE_LOG`.
    """

    checkpoint_id: int
    newest_id: int
    source_log: str

    def __attrs_post_init__(self) -> None:
        check_integer("checkpoint_id", self.checkpoint_id, 0, _MAX_INTEGER)
        check_integer("newest_id", self.newest_id, self.checkpoint_id, _MAX_INTEGER)
        is_name = isinstance(self.source_log, str) and self.source_log != ""
        require(
            is_name and self.source_log == path_segment(self.source_log),
            f"source_log must be the name of a directory, not {format_value(self.source_log)}",
        )


def write_roll_back(file_system: CheckpointFileSystem, roll_back: Rollback) -> None:
    """Record the start of a rollback in the job directory at the root of `file_system`, durably."""
    file_system.write_file(ROLL_BACK_FILE_NAME, checksummed_json(asdict(roll_back), _ROLLBACK_FORMAT_VERSION))


def read_roll_back(file_system: CheckpointFileSystem) -> Rollback | None:
    """The rollback that has started and not finished, if any. Raises `CorruptJobIdentityError`."""
    return read_record(file_system, ROLL_BACK_FILE_NAME, _ROLLBACK_FORMAT_VERSION, Rollback)


def end_roll_back(file_system: CheckpointFileSystem) -> None:
    """Record the end of the rollback, durably."""
    file_system.delete(ROLL_BACK_FILE_NAME, durable=True)


NO_DATA_EPOCH_FILE_NAME: Final = "no-data-epoch.json"

_NO_DATA_EPOCH_FORMAT_VERSION: Final = 1


@frozen(kw_only=True)
class OpenNoDataEpoch:
    """A no-data epoch. `parent_digest` is the digest of the checkpoint before it, None for the first of a job.

    `is_drain` says that event time is at its end.
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
        """Whether a checkpoint belongs to this epoch."""
        own = self.checkpoint_id, self.parent_digest
        return own == (checkpoint.checkpoint_id, checkpoint.parent_digest)

    def follows(self, digest: str | None) -> bool:
        """Whether the epoch must be run again after the checkpoint with that digest (None: no checkpoint)."""
        return self.parent_digest == digest and not self.is_drain


def write_no_data_epoch(file_system: CheckpointFileSystem, epoch: OpenNoDataEpoch) -> None:
    """Record the start of a no-data epoch in the job directory at the root of `file_system`, durably."""
    file_system.write_file(NO_DATA_EPOCH_FILE_NAME, checksummed_json(asdict(epoch), _NO_DATA_EPOCH_FORMAT_VERSION))


def read_no_data_epoch(file_system: CheckpointFileSystem) -> OpenNoDataEpoch | None:
    """The epoch that has started and not ended, if any. Raises `CorruptJobIdentityError`."""
    return read_record(file_system, NO_DATA_EPOCH_FILE_NAME, _NO_DATA_EPOCH_FORMAT_VERSION, OpenNoDataEpoch)


def end_no_data_epoch(file_system: CheckpointFileSystem) -> None:
    """Record that the output of the epoch is committed. After a crash it may be committed again."""
    file_system.delete(NO_DATA_EPOCH_FILE_NAME)


HIGH_AVAILABILITY_FILE_NAME: Final = "high-availability.json"

_HIGH_AVAILABILITY_FORMAT_VERSION: Final = 1


def read_stored_in(file_system: CheckpointFileSystem) -> str | None:
    """Where the pointers to checkpoints are; None for the job directory. Raises `CorruptJobIdentityError`."""
    if not file_system.exists(HIGH_AVAILABILITY_FILE_NAME):
        return None
    content = read_checksummed_json(file_system, HIGH_AVAILABILITY_FILE_NAME, _HIGH_AVAILABILITY_FORMAT_VERSION)
    stored_in = content.get("stored_in")
    if content.keys() != {"stored_in"} or not isinstance(stored_in, str) or not stored_in:
        corrupt(file_system, HIGH_AVAILABILITY_FILE_NAME, "does not name the place of the checkpoints")
    return stored_in


def write_stored_in(file_system: CheckpointFileSystem, stored_in: str) -> None:
    """Record the place of the pointers, durably."""
    file_system.write_file(
        HIGH_AVAILABILITY_FILE_NAME, checksummed_json({"stored_in": stored_in}, _HIGH_AVAILABILITY_FORMAT_VERSION)
    )


def check_stored_in(file_system: CheckpointFileSystem, stored_in: str | None) -> None:
    """Raise `JobDirectoryMismatchError` if the pointers are at another place; None is the job directory.

    A directory without a record may get any place.
    """
    recorded = read_stored_in(file_system)
    if recorded is not None and recorded != stored_in:
        searched = "in the directory only" if stored_in is None else f"in {stored_in}"
        raise JobDirectoryMismatchError(
            f"the completed checkpoints of {file_system.uri} are recorded in {recorded}, but this driver would look "
            f"{searched}. Start the job with its previous high availability, or start a new job directory from a "
            f"savepoint"
        )
