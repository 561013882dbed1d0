"""Completed checkpoints noted in the job directory itself; the form of `CheckpointPointers` without anything else.

    checkpoints/chk-000000000042/_metadata    one directory for each completed checkpoint
    checkpoints/.chk-000000000043/_metadata   one that is being written
    shared/...                                data files, referred to by path from metadata
    set-aside/chk-000000000043-<n>/           checkpoints given up by an explicit fallback; their files stay

`_metadata` is what makes a checkpoint complete, and it appears together with its directory: both get their name by one
rename. So if the newest directory has none, the file is lost, and the checkpoint is unreadable. An older directory
without it is left of a checkpoint that was dropped, and one with a dot of an unfinished attempt. Directories with other
names are left alone. Withdrawing goes the other way round, durably: first `_metadata`, then what else there is, so no
crash leaves a checkpoint that lacks files.

Nobody but the leader writes here, since leadership of this form ends with the process or is looked at before.
"""

from __future__ import annotations

import contextlib
import re

from attrs import evolve

from checkpointing.errors import CheckpointError, CorruptMetadataError, UncertainCheckpointError
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.found_checkpoints import FoundCheckpoints, RetainedCheckpoint, read_checkpoint
from checkpointing.storage.leadership import Leadership
from checkpointing.storage.metadata_file import metadata_path, read_metadata_with_handle, write_metadata

__all__ = [
    "CHECKPOINTS_DIRECTORY",
    "SET_ASIDE_DIRECTORY",
    "SHARED_DIRECTORY",
    "DirectoryPointers",
    "checkpoint_directory",
]

CHECKPOINTS_DIRECTORY = "checkpoints"
SHARED_DIRECTORY = "shared"
SET_ASIDE_DIRECTORY = "set-aside"

_DIRECTORY_NAME = re.compile(r"chk-([0-9]{12,19})")
_SET_ASIDE_NAME = re.compile(r"chk-([0-9]{12,19})-[0-9]+")


def checkpoint_directory(checkpoint_id: int) -> str:
    """Directory of a checkpoint, relative to the job directory."""
    return f"{CHECKPOINTS_DIRECTORY}/chk-{checkpoint_id:012d}"


class DirectoryPointers:
    """Those of the job directory at the root of `file_system`; a `CheckpointPointers`.

    None for `leadership` is for who knows that nobody else writes.
    """

    def __init__(self, file_system: CheckpointFileSystem, leadership: Leadership | None = None) -> None:
        self._fs = file_system
        self._leadership = leadership

    @property
    def place(self) -> str:
        """The directory of the checkpoints."""
        return self._fs.location(CHECKPOINTS_DIRECTORY)

    def find(self) -> FoundCheckpoints:
        """Read all checkpoints. Their number is counted, not noted: no crash can tear the one from the other."""
        retained: dict[int, RetainedCheckpoint] = {}
        unreadable: dict[int, CorruptMetadataError] = {}
        without_metadata: dict[int, str] = {}
        unfinished: list[str] = []
        ids = self._ids_set_aside()
        for name in self._fs.list_directories(CHECKPOINTS_DIRECTORY):
            directory = f"{CHECKPOINTS_DIRECTORY}/{name}"
            match = _DIRECTORY_NAME.fullmatch(name.removeprefix("."))
            if match is None:
                continue
            checkpoint_id = int(match.group(1))
            ids.append(checkpoint_id)
            if name.startswith("."):
                unfinished.append(directory)
                continue
            if not self._fs.exists(metadata_path(directory)):
                without_metadata[checkpoint_id] = directory
                continue
            try:
                retained[checkpoint_id] = read_checkpoint(self._fs, checkpoint_id, directory)
            except CorruptMetadataError as error:
                unreadable[checkpoint_id] = error
        newest = max([*retained, *unreadable], default=-1)
        for checkpoint_id, directory in without_metadata.items():
            if checkpoint_id < newest:
                unfinished.append(directory)
            else:
                unreadable[checkpoint_id] = CorruptMetadataError(
                    f"{self._fs.location(metadata_path(directory))} is missing, and it was there when the checkpoint "
                    f"became complete. Bring it back from a backup."
                )
        return FoundCheckpoints(self._fs, self.place, retained, unreadable, unfinished, max(ids, default=None))

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata file, which is the pointer, in a directory that then gets its name."""
        self._check_leading()
        directory = checkpoint_directory(metadata.checkpoint_id)
        head, _, name = directory.rpartition("/")
        staging = f"{head}/.{name}"
        try:
            written = write_metadata(self._fs, staging, metadata)
            self._fs.move_directory(staging, directory)
            return evolve(written, path=metadata_path(directory))
        except BaseException as error:
            # A failure after the rename must not leave a checkpoint that its caller gives up.
            try:
                if self._fs.exists(metadata_path(directory)):
                    self._fs.move_directory(directory, staging)
                self._fs.delete_directory(staging)
            except CheckpointError:
                raise UncertainCheckpointError(
                    f"{self._fs.location(metadata_path(directory))} could not be written ({error}), nor be taken back: "
                    f"whether checkpoint {metadata.checkpoint_id} is complete is found at the next start."
                ) from error
            raise

    def withdraw(self, checkpoint_id: int) -> None:
        """Delete the metadata file durably, then its directory."""
        self._check_leading()
        self._delete(checkpoint_directory(checkpoint_id))

    def set_aside(self, checkpoint_id: int) -> None:
        """Move the directory, under a name that is free."""
        self._check_leading()
        taken = set(self._fs.list_directories(SET_ASIDE_DIRECTORY))
        base = f"chk-{checkpoint_id:012d}"
        name = next(f"{base}-{number}" for number in range(1, len(taken) + 2) if f"{base}-{number}" not in taken)
        self._fs.move_directory(checkpoint_directory(checkpoint_id), f"{SET_ASIDE_DIRECTORY}/{name}")

    def set_aside_places(self) -> tuple[str, ...]:
        """The directories that were moved away."""
        names = filter(_SET_ASIDE_NAME.fullmatch, self._fs.list_directories(SET_ASIDE_DIRECTORY))
        return tuple(self._fs.location(f"{SET_ASIDE_DIRECTORY}/{name}") for name in names)

    def files_set_aside(self) -> frozenset[str]:
        """Those that their metadata files name."""
        paths: set[str] = set()
        for name in self._fs.list_directories(SET_ASIDE_DIRECTORY):
            # What cannot be read, for which it was given up, does not tell its files.
            with contextlib.suppress(CheckpointError):
                metadata, _ = read_metadata_with_handle(self._fs, f"{SET_ASIDE_DIRECTORY}/{name}")
                paths.update(file.path for file in metadata.files)
        return frozenset(paths)

    def _check_leading(self) -> None:
        if self._leadership is not None:
            self._leadership.check()

    def _delete(self, directory: str) -> None:
        self._fs.delete(metadata_path(directory), durable=True)
        self._fs.delete_directory(directory)

    def _ids_set_aside(self) -> list[int]:
        matches = map(_SET_ASIDE_NAME.fullmatch, self._fs.list_directories(SET_ASIDE_DIRECTORY))
        return [int(match.group(1)) for match in matches if match is not None]
