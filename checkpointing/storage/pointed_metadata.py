"""Metadata files of checkpoints under names that nobody gives again, and the pointers that say which of them count.

    checkpoints/chk-<id>-<32 hex>/_metadata    written first; it is complete once a pointer names it
    checkpoints/chk-<id>/_metadata             of a checkpoint from before the job had pointers

Where the pointers are kept, in ZooKeeper or in an object of the store, is the business of `CheckpointPointers`. What is
here is alike for both: a pointer holds the checksum of its file, so that no other file can be taken for it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Iterator
from typing import Final

from attrs import frozen

from checkpointing.errors import CorruptFileError, CorruptMetadataError, MissingFileError
from checkpointing.handles.invariants import MAX_ID, check_integer, require
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.checkpoint_directories import CHECKPOINTS_DIRECTORY, checkpoint_directory
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.found_checkpoints import RetainedCheckpoint, read_checkpoint
from checkpointing.storage.metadata_file import write_metadata

__all__ = [
    "CheckpointPointer",
    "delete_pointed_metadata",
    "read_pointed_metadata",
    "unnamed_directories",
    "write_pointed_metadata",
]

_DIRECTORY: Final = re.compile("chk-([0-9]{12,19})(-[0-9a-f]{32})?")


@frozen
class CheckpointPointer:
    """Says that a checkpoint is complete, and what its metadata file is, of which no other attempt has the name."""

    checkpoint_id: int
    metadata_file: FileHandle

    def __attrs_post_init__(self) -> None:
        check_integer("checkpoint_id", self.checkpoint_id, 0, MAX_ID)
        require("/" in self.metadata_file.path, f"{self.metadata_file.path} has no directory")

    @property
    def directory(self) -> str:
        """The directory of the metadata file."""
        return self.metadata_file.path.rpartition("/")[0]


def write_pointed_metadata(file_system: CheckpointFileSystem, metadata: CheckpointMetadata) -> CheckpointPointer:
    """Write metadata into a directory of a new name; complete is the checkpoint only when the pointer is kept."""
    directory = f"{checkpoint_directory(metadata.checkpoint_id)}-{uuid.uuid4().hex}"
    return CheckpointPointer(metadata.checkpoint_id, write_metadata(file_system, directory, metadata))


def read_pointed_metadata(
    file_system: CheckpointFileSystem, pointer: CheckpointPointer, kept_at: str
) -> RetainedCheckpoint | CorruptMetadataError:
    """The checkpoint of a pointer, or what is wrong with it; `kept_at` is where the pointer is, for messages."""
    try:
        found = read_checkpoint(file_system, pointer.checkpoint_id, pointer.directory)
    except CorruptMetadataError as error:
        return error
    except (MissingFileError, CorruptFileError) as error:
        return CorruptMetadataError(f"{kept_at} points to a file that is not as it was: {error}")
    if found.metadata_file != pointer.metadata_file:
        return CorruptMetadataError(
            f"{file_system.location(found.metadata_file.path)} is another file than the one that was completed: its "
            f"checksum is {found.metadata_file.checksum}, and {kept_at} says {pointer.metadata_file.checksum}. Bring "
            f"the right one back from a backup."
        )
    return found


def delete_pointed_metadata(file_system: CheckpointFileSystem, pointer: CheckpointPointer) -> None:
    """Delete what no pointer names any more: the metadata file, durably, and then its directory."""
    file_system.delete(pointer.metadata_file.path, durable=True)
    if pointer.directory.startswith(f"{CHECKPOINTS_DIRECTORY}/"):
        file_system.delete_directory(pointer.directory)


def unnamed_directories(
    file_system: CheckpointFileSystem, pointers: Iterable[CheckpointPointer]
) -> Iterator[tuple[str, int]]:
    """The directories of checkpoints that are listed and that no pointer names, with their ids."""
    named = {pointer.directory for pointer in pointers}
    for name in file_system.list_directories(CHECKPOINTS_DIRECTORY):
        matched = _DIRECTORY.fullmatch(name)
        directory = f"{CHECKPOINTS_DIRECTORY}/{name}"
        if matched is not None and directory not in named:
            yield directory, int(matched.group(1))
