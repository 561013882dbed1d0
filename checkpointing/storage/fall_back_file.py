"""A fall-back that has been begun: `fall-back.json`, there from its first step to its last.

To go back to an older checkpoint takes several steps: newer checkpoints are set aside, and so is what else the job
directory's owner keeps for them. A crash in between leaves a directory that fits no checkpoint. So the intent is on the
disk before the first step, and goes after the last; as long as it is there, the only start is one that takes all steps
again, each of which finds what it has done.

`fall-back.json` is a sealed JSON file (see `sealed_json`) with the fields of `FallBack`.
"""

from __future__ import annotations

from attrs import asdict, frozen

from checkpointing.errors import InvariantViolationError
from checkpointing.handles.invariants import check_integer, require
from checkpointing.handles.relative_path import path_segment
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.sealed_json import corrupt, read_sealed_json, sealed_json
from snapshots.value_text import shown

__all__ = ["FALL_BACK_FILE_NAME", "NO_SOURCE_LOG", "FallBack", "end_fall_back", "read_fall_back", "write_fall_back"]

FALL_BACK_FILE_NAME = "fall-back.json"

NO_SOURCE_LOG = "no-source-log"
"""The source log of a job whose sources are read by itself: there is none to be set aside."""

_FORMAT_VERSION = 1
_MAX_INTEGER = (1 << 63) - 1


@frozen(kw_only=True)
class FallBack:
    """`checkpoint_id` is to become the newest; `newest_id` is the newest epoch that was begun before.

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
            f"source_log must be the name of a directory, not {shown(self.source_log)}",
        )


def write_fall_back(file_system: CheckpointFileSystem, fall_back: FallBack) -> None:
    """Begin a fall-back in the job directory at the root of `file_system`, durably."""
    file_system.write_file(FALL_BACK_FILE_NAME, sealed_json(asdict(fall_back), _FORMAT_VERSION))


def read_fall_back(file_system: CheckpointFileSystem) -> FallBack | None:
    """The fall-back that was begun and not ended, if there is one. Raises `CorruptJobIdentityError`."""
    if not file_system.exists(FALL_BACK_FILE_NAME):
        return None
    content = read_sealed_json(file_system, FALL_BACK_FILE_NAME, _FORMAT_VERSION)
    try:
        return FallBack(**content)
    except (InvariantViolationError, TypeError) as error:
        corrupt(file_system, FALL_BACK_FILE_NAME, f"is not valid: {error}")


def end_fall_back(file_system: CheckpointFileSystem) -> None:
    """End the fall-back, durably: all its steps are taken."""
    file_system.delete(FALL_BACK_FILE_NAME, durable=True)
