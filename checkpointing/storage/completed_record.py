"""Which checkpoints of a job are complete, as one object: `completed-checkpoints.json`.

It is a sealed JSON file (see `sealed_json`):

    job_id          whose it is
    leader          the token of the driver that wrote it; each leadership draws one
    revision        how often it was written; with `leader` it makes every content unlike all others
    greatest_id     the greatest id that any checkpoint of the job has or had, -1 for none
    completed       [[id, path, size_bytes, checksum], ...]: the metadata files of the completed checkpoints, by id
    set_aside       the same of those that were given up by falling back, in the order in which they were
    driver_files    where the leader has its driver files, relative to their root; "" is the root itself
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import field, frozen

from checkpointing.errors import CorruptJobIdentityError, InvariantViolationError
from checkpointing.handles.invariants import MAX_ID, check_identifier, check_integer, require
from checkpointing.handles.relative_path import checked_relative_path
from checkpointing.handles.state_handles import FileHandle
from checkpointing.storage.pointed_metadata import CheckpointPointer
from checkpointing.storage.sealed_json import sealed_json, unsealed_json

__all__ = ["COMPLETED_FILE_NAME", "CompletedRecord"]

COMPLETED_FILE_NAME: Final = "completed-checkpoints.json"

_FORMAT_VERSION: Final = 1


@frozen(kw_only=True)
class CompletedRecord:
    """See the module. Ids of completed checkpoints strictly increase, and none is above `greatest_id`."""

    job_id: str
    leader: str = ""
    revision: int = 0
    greatest_id: int = -1
    completed: tuple[CheckpointPointer, ...] = ()
    set_aside: tuple[CheckpointPointer, ...] = field(default=())
    driver_files: str = ""

    def __attrs_post_init__(self) -> None:
        check_identifier("job_id", self.job_id)
        require(isinstance(self.leader, str) and len(self.leader) <= 64, "leader must be a short text")
        check_integer("revision", self.revision, 0, MAX_ID)
        check_integer("greatest_id", self.greatest_id, -1, MAX_ID)
        ids = [one.checkpoint_id for one in self.completed]
        require(ids == sorted(set(ids)), f"the ids of the completed checkpoints do not increase: {ids}")
        greatest = max([*ids, *(one.checkpoint_id for one in self.set_aside)], default=-1)
        require(greatest <= self.greatest_id, f"greatest_id {self.greatest_id} is below the id {greatest}")
        require(isinstance(self.driver_files, str), "driver_files must be a text")
        if self.driver_files:
            checked_relative_path(self.driver_files)

    @property
    def by_id(self) -> dict[int, CheckpointPointer]:
        """The completed checkpoints."""
        return {one.checkpoint_id: one for one in self.completed}

    def to_bytes(self) -> bytes:
        """The content of the object."""
        content = {
            "job_id": self.job_id,
            "leader": self.leader,
            "revision": self.revision,
            "greatest_id": self.greatest_id,
            "completed": _listed(self.completed),
            "set_aside": _listed(self.set_aside),
            "driver_files": self.driver_files,
        }
        return sealed_json(content, _FORMAT_VERSION)

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> CompletedRecord:
        """Raises `CorruptJobIdentityError`, naming where the bytes are from."""
        content = unsealed_json(data, where, _FORMAT_VERSION)
        try:
            completed, set_aside = _pointers(content.pop("completed")), _pointers(content.pop("set_aside"))
            return cls(completed=completed, set_aside=set_aside, **content)
        except (InvariantViolationError, KeyError, TypeError, ValueError) as error:
            raise CorruptJobIdentityError(
                f"{where} is not valid: {error}. Bring it back from a backup, or start from a savepoint in a new job "
                f"directory."
            ) from error


def _listed(pointers: Iterable[CheckpointPointer]) -> list[list[Any]]:
    return [
        [one.checkpoint_id, one.metadata_file.path, one.metadata_file.size_bytes, one.metadata_file.checksum]
        for one in pointers
    ]


def _pointers(listed: Any) -> tuple[CheckpointPointer, ...]:
    require(isinstance(listed, list), "the checkpoints are not a list")
    return tuple(CheckpointPointer(one, FileHandle(path, size, checksum)) for one, path, size, checksum in listed)
