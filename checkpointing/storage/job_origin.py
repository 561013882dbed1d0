"""What a job directory was begun from: `origin.json`, beside `job.json`.

A job that begins from a savepoint may fail before its first checkpoint. The next start must go on from the savepoint,
whether it is named again or not, so the directory remembers it from before its first epoch. A directory without the
file was begun from nothing, or by a release that kept this in the properties of its checkpoints only.

`origin.json` is a sealed JSON file (see `sealed_json`) with the fields of `JobOrigin`. Version 1, which is still read,
had no `begun_anew`.
"""

from __future__ import annotations

from attrs import asdict, frozen

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.invariants import check_identifier, check_integer, require
from checkpointing.metadata.checkpoint_sections import SavepointIdentity
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.sealed_json import corrupt, read_sealed_json, sealed_json
from snapshots.value_text import shown

__all__ = ["ORIGIN_FILE_NAME", "JobOrigin", "read_origin", "write_origin"]

ORIGIN_FILE_NAME = "origin.json"

_FORMAT_VERSION = 2
_MAX_INTEGER = (1 << 63) - 1
_MAX_URI_LENGTH = 8192


@frozen(kw_only=True)
class JobOrigin:
    """The savepoint that a job was begun from.

    `savepoint_uri` is where it was then, as `CheckpointFileSystem.uri`. `savepoint_job_id`, `savepoint_id` and
    `savepoint_timestamp_ms` (since the Unix epoch) are those in its metadata, and tell it from all others.
    `with_source_progress` says whether the job reads on where the savepoint had read to, `begun_anew` which sources it
    reads from their beginning even so, by uid.
    """

    savepoint_uri: str
    savepoint_job_id: str
    savepoint_id: int
    savepoint_timestamp_ms: int
    with_source_progress: bool
    begun_anew: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        require(
            isinstance(self.savepoint_uri, str) and 0 < len(self.savepoint_uri) <= _MAX_URI_LENGTH,
            f"savepoint_uri must be a string of 1 to {_MAX_URI_LENGTH} characters, not {shown(self.savepoint_uri)}",
        )
        check_identifier("savepoint_job_id", self.savepoint_job_id)
        check_integer("savepoint_id", self.savepoint_id, 0, _MAX_INTEGER)
        check_integer("savepoint_timestamp_ms", self.savepoint_timestamp_ms, 0, _MAX_INTEGER)
        require(type(self.with_source_progress) is bool, "with_source_progress must be a bool")
        require(type(self.begun_anew) is tuple, "begun_anew must be a tuple of uids")
        for uid in self.begun_anew:
            check_identifier("a uid in begun_anew", uid)

    @property
    def savepoint_identity(self) -> SavepointIdentity:
        """What tells the savepoint from all others, wherever it lies."""
        return SavepointIdentity(self.savepoint_job_id, self.savepoint_id, self.savepoint_timestamp_ms)


def write_origin(file_system: CheckpointFileSystem, origin: JobOrigin) -> None:
    """Make the job directory at the root of `file_system` remember its origin, durably."""
    file_system.write_file(ORIGIN_FILE_NAME, sealed_json(asdict(origin), _FORMAT_VERSION))


def read_origin(file_system: CheckpointFileSystem) -> JobOrigin | None:
    """The origin of the job directory at the root of `file_system`. Raises `CorruptJobIdentityError`."""
    if not file_system.exists(ORIGIN_FILE_NAME):
        return None
    content = read_sealed_json(file_system, ORIGIN_FILE_NAME, 1, _FORMAT_VERSION)
    try:
        return JobOrigin(**{**content, "begun_anew": tuple(content.get("begun_anew", ()))})
    except (InvariantViolationError, TypeError) as error:
        corrupt(file_system, ORIGIN_FILE_NAME, f"is not valid: {error}")
