"""What lies in a job directory of its completed checkpoints, as it is found there.

    checkpoints/chk-000000000042/_metadata    one directory for each completed checkpoint
    shared/...                                data files, referred to by path from metadata
    set-aside/chk-000000000043-<n>/           checkpoints given up by an explicit fallback; their files stay

A directory `chk-...` without `_metadata` belongs to an unfinished attempt. Directories with other names are left alone.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping

from attrs import field, frozen

from checkpointing.errors import CheckpointError, CheckpointNotFoundError, CorruptMetadataError
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.metadata_file import METADATA_FILE_NAME, metadata_path, read_metadata_with_handle

__all__ = [
    "CHECKPOINTS_DIRECTORY",
    "SET_ASIDE_DIRECTORY",
    "SHARED_DIRECTORY",
    "FoundCheckpoints",
    "RetainedCheckpoint",
    "checkpoint_directory",
    "files_set_aside",
    "find_checkpoints",
    "set_aside",
]

CHECKPOINTS_DIRECTORY = "checkpoints"
SHARED_DIRECTORY = "shared"
SET_ASIDE_DIRECTORY = "set-aside"

_DIRECTORY_NAME = re.compile(r"chk-([0-9]{12,19})")
_SET_ASIDE_NAME = re.compile(r"chk-([0-9]{12,19})-[0-9]+")


def checkpoint_directory(checkpoint_id: int) -> str:
    """Directory of a checkpoint, relative to the job directory."""
    return f"{CHECKPOINTS_DIRECTORY}/chk-{checkpoint_id:012d}"


@frozen
class RetainedCheckpoint:
    """A completed checkpoint, and the file that says so."""

    metadata: CheckpointMetadata
    metadata_file: FileHandle


@frozen
class FoundCheckpoints:
    """What a look at a job directory has found; `unfinished` are directories."""

    file_system: CheckpointFileSystem
    retained: dict[int, RetainedCheckpoint] = field(factory=dict)
    unreadable: dict[int, CorruptMetadataError] = field(factory=dict)
    unfinished: list[str] = field(factory=list)
    greatest_id: int | None = None
    """Of all these, and of those set aside."""

    @property
    def ids(self) -> frozenset[int]:
        """Of the completed checkpoints, whether they can be read or not."""
        return frozenset({*self.retained, *self.unreadable})

    def target(self, checkpoint_id: int) -> RetainedCheckpoint:
        """The checkpoint to fall back to. Raises `CheckpointNotFoundError` or `CorruptMetadataError`."""
        if checkpoint_id in self.unreadable:
            raise self.unreadable[checkpoint_id]
        if checkpoint_id not in self.retained:
            raise not_found(self.file_system, checkpoint_id, self.retained)
        return self.retained[checkpoint_id]

    def newest_before_the_newest(self) -> RetainedCheckpoint:
        """The newest readable checkpoint except for the newest of all. Raises `CheckpointNotFoundError`."""
        newest = max(self.ids, default=-1)
        older = [checkpoint_id for checkpoint_id in self.retained if checkpoint_id < newest]
        if not older:
            raise CheckpointNotFoundError(
                f"{self.file_system.location(CHECKPOINTS_DIRECTORY)} holds no readable checkpoint before its newest; "
                f"there are: {listed(self.retained)}. Start from a savepoint in a new job directory."
            )
        return self.retained[max(older)]

    def check_newest(self) -> None:
        """Raise `CorruptMetadataError`, with the way out, if the newest checkpoint cannot be read."""
        if not self.unreadable or max(self.unreadable) < max(self.retained, default=-1):
            return
        newest = max(self.unreadable)
        way_out = (
            f"To give up checkpoint {newest} and continue from checkpoint {max(self.retained)}, start with "
            f"fall_back_to={max(self.retained)}; readable are {listed(self.retained)}."
            if self.retained
            else "No other checkpoint is readable; start from a savepoint in a new job directory."
        )
        raise type(self.unreadable[newest])(
            f"the newest checkpoint, {newest}, cannot be read, and an older one is not taken silently. "
            f"{self.unreadable[newest]} {way_out}"
        ) from self.unreadable[newest]

    def check_parents(self) -> None:
        """Raise `CorruptMetadataError` unless every checkpoint continues from the parent that is there."""
        for one in self.retained.values():
            self._check_parent(one.metadata)

    def _check_parent(self, metadata: CheckpointMetadata) -> None:
        parent_id = metadata.parent_checkpoint_id
        parent = None if parent_id is None else self.retained.get(parent_id)
        if parent is None or parent.metadata_file.checksum == metadata.parent_digest:
            return
        raise CorruptMetadataError(
            f"{self.file_system.location(checkpoint_directory(metadata.checkpoint_id))} continues from checkpoint "
            f"{parent_id} with digest {metadata.parent_digest}, but the checkpoint {parent_id} found here has digest "
            f"{parent.metadata_file.checksum}: the directory mixes two histories. Bring back the original directories "
            f"from a backup, or start with fall_back_to={parent_id}."
        )


def find_checkpoints(file_system: CheckpointFileSystem) -> FoundCheckpoints:
    """Read all checkpoints below the root of `file_system`; changes nothing."""
    retained: dict[int, RetainedCheckpoint] = {}
    unreadable: dict[int, CorruptMetadataError] = {}
    unfinished: list[str] = []
    ids = _ids_set_aside(file_system)
    for name in file_system.list_directories(CHECKPOINTS_DIRECTORY):
        match = _DIRECTORY_NAME.fullmatch(name)
        if match is None:
            continue
        directory = f"{CHECKPOINTS_DIRECTORY}/{name}"
        checkpoint_id = int(match.group(1))
        ids.append(checkpoint_id)
        if not file_system.exists(metadata_path(directory)):
            unfinished.append(directory)
            continue
        try:
            retained[checkpoint_id] = _read(file_system, checkpoint_id, directory)
        except CorruptMetadataError as error:
            unreadable[checkpoint_id] = error
    return FoundCheckpoints(file_system, retained, unreadable, unfinished, max(ids, default=None))


def files_set_aside(file_system: CheckpointFileSystem) -> set[str]:
    """The files of checkpoints that were given up: whoever removes those gives the files free."""
    paths: set[str] = set()
    for name in file_system.list_directories(SET_ASIDE_DIRECTORY):
        # What cannot be read, for which it was given up, does not tell its files.
        with contextlib.suppress(CheckpointError):
            metadata, _ = read_metadata_with_handle(file_system, f"{SET_ASIDE_DIRECTORY}/{name}")
            paths.update(file.path for file in metadata.files)
    return paths


def set_aside(file_system: CheckpointFileSystem, checkpoint_id: int) -> None:
    """Give up a checkpoint: its directory is moved, under a name that is free."""
    taken = set(file_system.list_directories(SET_ASIDE_DIRECTORY))
    base = f"chk-{checkpoint_id:012d}"
    name = next(f"{base}-{number}" for number in range(1, len(taken) + 2) if f"{base}-{number}" not in taken)
    file_system.move_directory(checkpoint_directory(checkpoint_id), f"{SET_ASIDE_DIRECTORY}/{name}")


def not_found(
    file_system: CheckpointFileSystem, checkpoint_id: int, retained: Mapping[int, RetainedCheckpoint]
) -> CheckpointNotFoundError:
    """The error for an id that no checkpoint has."""
    return CheckpointNotFoundError(
        f"{file_system.location(CHECKPOINTS_DIRECTORY)} holds no checkpoint {checkpoint_id}; "
        f"there are: {listed(retained)}"
    )


def listed(checkpoint_ids: Iterable[int]) -> str:
    """The ids, for a message."""
    return ", ".join(map(str, sorted(checkpoint_ids))) or "none"


def _ids_set_aside(file_system: CheckpointFileSystem) -> list[int]:
    matches = map(_SET_ASIDE_NAME.fullmatch, file_system.list_directories(SET_ASIDE_DIRECTORY))
    return [int(match.group(1)) for match in matches if match is not None]


def _read(file_system: CheckpointFileSystem, checkpoint_id: int, directory: str) -> RetainedCheckpoint:
    metadata, metadata_file = read_metadata_with_handle(file_system, directory)
    if metadata.checkpoint_id != checkpoint_id or metadata.kind is not CheckpointKind.CHECKPOINT:
        raise CorruptMetadataError(
            f"{file_system.location(f'{directory}/{METADATA_FILE_NAME}')} is out of place: it describes "
            f"{metadata.kind.value} {metadata.checkpoint_id}, its directory is for CHECKPOINT {checkpoint_id}. Move it "
            "back to where it belongs."
        )
    return RetainedCheckpoint(metadata, metadata_file)
