"""Metadata files of checkpoints, the pointers to them, and pointers in the job directory itself.

    checkpoints/chk-<id>/_metadata             without external pointers: complete as soon as it exists
    checkpoints/.chk-<id>/_metadata            without external pointers: one that is being written
    checkpoints/chk-<id>-<32 hex>/_metadata    with pointers elsewhere: complete once a pointer names it
    shared/...                                 data files, which metadata refers to by path
    set-aside/chk-<id>-<n>/                    checkpoints that a rollback set aside; their files stay

A pointer in ZooKeeper or in an object holds the checksum of its metadata file, so no other file can be mistaken for it.

`DirectoryPointers` needs only the directory. One rename makes `_metadata` and its directory appear together. So if the
newest directory has no `_metadata`, the file was lost, and the checkpoint is unreadable. An older directory without it
is a dropped checkpoint, and a name with a dot is an unfinished attempt. Other names are ignored. `withdraw` deletes
`_metadata` first, durably, and then the rest, so a crash never leaves a checkpoint without its files. Only the leader
writes here.
"""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from attrs import evolve, field, frozen

from snapshots.errors import format_value
from statebackend.checkpoint.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptFileError,
    CorruptMetadataError,
    InvariantViolationError,
    MissingFileError,
    UncertainCheckpointError,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership
from statebackend.checkpoint.invariants import MAX_ID, check_integer, checksum_of_bytes, require
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.metadata_bytes import MAX_METADATA_BYTES, decode_metadata, encode_metadata
from statebackend.checkpoint.state_handles import FileHandle

METADATA_FILE_NAME = "_metadata"


def metadata_path(directory: str) -> str:
    """The path of the file in a directory, which may be "" for the root."""
    return f"{directory}/{METADATA_FILE_NAME}" if directory else METADATA_FILE_NAME


def write_metadata(fs: CheckpointFileSystem, directory: str, metadata: CheckpointMetadata) -> FileHandle:
    """Write `directory/_metadata`, durably; `directory` may be "" for the root.

    The checksum of the returned handle is the digest that children name as `parent_digest`. Raises
    `InvariantViolationError` when the metadata is too large, `StorageError` when the store fails.
    """
    return fs.write_file(metadata_path(directory), encode_metadata(metadata))


def read_metadata(fs: CheckpointFileSystem, directory: str) -> CheckpointMetadata:
    """Read `directory/_metadata`. Raises `MissingFileError`, `CorruptMetadataError` or its subclass
    `UnsupportedMetadataVersionError`, each naming the file and what to do.
    """
    return read_metadata_with_handle(fs, directory)[0]


def read_metadata_with_handle(fs: CheckpointFileSystem, directory: str) -> tuple[CheckpointMetadata, FileHandle]:
    """Like `read_metadata`, but also return the handle of the file, whose checksum children refer to."""
    path = metadata_path(directory)
    size_bytes = fs.size(path)
    if size_bytes > MAX_METADATA_BYTES:
        # Checked before reading: a huge file would take all memory.
        raise CorruptMetadataError(
            f"{fs.location(path)} is not usable: {size_bytes} bytes is more than the limit of {MAX_METADATA_BYTES}. "
            "Restore from another checkpoint or savepoint, or restore the original file from a backup."
        )
    data = fs.read_file(path)
    return decode_metadata(data, fs.location(path)), FileHandle(path, len(data), checksum_of_bytes(data))


PREVIOUS: Final = "previous"
"""The target of a rollback to the newest readable checkpoint before the newest one."""


@frozen
class RetainedCheckpoint:
    """A completed checkpoint and its metadata file."""

    metadata: CheckpointMetadata
    metadata_file: FileHandle


@frozen
class FoundCheckpoints:
    """The checkpoints that were found. `unfinished` are directories; `place` names the pointers in messages."""

    file_system: CheckpointFileSystem
    place: str
    retained: dict[int, RetainedCheckpoint] = field(factory=dict)
    unreadable: dict[int, CorruptMetadataError] = field(factory=dict)
    unfinished: list[str] = field(factory=list)
    greatest_id: int | None = None
    """The greatest id of all checkpoints: found, set aside, and recorded ones."""

    @property
    def ids(self) -> frozenset[int]:
        """The ids of all completed checkpoints, readable or not."""
        return frozenset({*self.retained, *self.unreadable})

    def newest(self) -> CheckpointMetadata | None:
        """The newest completed checkpoint, None if there is none.

        Raises `CorruptMetadataError`, with the way out, if it cannot be read.
        """
        self.check_newest()
        return self.retained[max(self.retained)].metadata if self.retained else None

    def roll_back_target(self, roll_back_to: int | str) -> CheckpointMetadata:
        """The checkpoint that `recover(roll_back_to=...)` would make the newest.

        "previous" is the newest readable checkpoint before the newest one. Raises `CheckpointNotFoundError`, which
        lists the existing ids, or `CorruptMetadataError`.
        """
        if roll_back_to == PREVIOUS:
            return self._newest_before_the_newest().metadata
        if type(roll_back_to) is not int or roll_back_to < 0:
            raise InvariantViolationError(
                f"roll_back_to must be the id of a checkpoint (an int) or 'previous', not {format_value(roll_back_to)}"
            )
        return self.target(roll_back_to).metadata

    def target(self, checkpoint_id: int) -> RetainedCheckpoint:
        """The checkpoint to roll back to. Raises `CheckpointNotFoundError` or `CorruptMetadataError`."""
        if checkpoint_id in self.unreadable:
            raise self.unreadable[checkpoint_id]
        if checkpoint_id not in self.retained:
            raise not_found(self.place, checkpoint_id, self.retained)
        return self.retained[checkpoint_id]

    def check_newest(self) -> None:
        """Raise `CorruptMetadataError`, with the way out, if the newest checkpoint cannot be read."""
        if not self.unreadable or max(self.unreadable) < max(self.retained, default=-1):
            return
        newest = max(self.unreadable)
        fix = (
            f"To abandon checkpoint {newest} and continue from checkpoint {max(self.retained)}, start with "
            f"roll_back_to={max(self.retained)}; readable are {_listed(self.retained)}."
            if self.retained
            else "No other checkpoint is readable; start from a savepoint in a new job directory."
        )
        raise type(self.unreadable[newest])(
            f"the newest checkpoint, {newest}, cannot be read, and an older one is used only on request. "
            f"{self.unreadable[newest]} {fix}"
        ) from self.unreadable[newest]

    def check_parents(self) -> None:
        """Raise `CorruptMetadataError` if a checkpoint continues from another parent than the one found."""
        for one in self.retained.values():
            self._check_parent(one)

    def _newest_before_the_newest(self) -> RetainedCheckpoint:
        newest = max(self.ids, default=-1)
        older = [checkpoint_id for checkpoint_id in self.retained if checkpoint_id < newest]
        if not older:
            raise CheckpointNotFoundError(
                f"{self.place} holds no readable checkpoint before its newest; there are: {_listed(self.retained)}. "
                f"Start from a savepoint in a new job directory."
            )
        return self.retained[max(older)]

    def _check_parent(self, one: RetainedCheckpoint) -> None:
        parent_id = one.metadata.parent_checkpoint_id
        parent = None if parent_id is None else self.retained.get(parent_id)
        if parent is None or parent.metadata_file.checksum == one.metadata.parent_digest:
            return
        directory = one.metadata_file.path.rpartition("/")[0]
        raise CorruptMetadataError(
            f"{self.file_system.location(directory)} continues from checkpoint {parent_id} with digest "
            f"{one.metadata.parent_digest}, but the checkpoint {parent_id} found here has digest "
            f"{parent.metadata_file.checksum}: the directory mixes two histories. Restore the original directories "
            f"from a backup, or start with roll_back_to={parent_id}."
        )


def not_found(place: str, checkpoint_id: int, retained: Mapping[int, RetainedCheckpoint]) -> CheckpointNotFoundError:
    """The error for an unknown checkpoint id."""
    return CheckpointNotFoundError(f"{place} holds no checkpoint {checkpoint_id}; there are: {_listed(retained)}")


def read_checkpoint(file_system: CheckpointFileSystem, checkpoint_id: int, directory: str) -> RetainedCheckpoint:
    """Read the checkpoint of an id from its directory.

    Raises `MissingFileError`, or `CorruptMetadataError` if the file is damaged or belongs to another checkpoint.
    """
    metadata, metadata_file = read_metadata_with_handle(file_system, directory)
    if metadata.checkpoint_id != checkpoint_id or metadata.kind is not CheckpointKind.CHECKPOINT:
        raise CorruptMetadataError(
            f"{file_system.location(f'{directory}/{METADATA_FILE_NAME}')} is out of place: it describes "
            f"{metadata.kind.value} {metadata.checkpoint_id}, its directory is for CHECKPOINT {checkpoint_id}. Move it "
            "back to where it belongs."
        )
    return RetainedCheckpoint(metadata, metadata_file)


def _listed(checkpoint_ids: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(checkpoint_ids))) or "none"


CHECKPOINTS_DIRECTORY = "checkpoints"
SHARED_DIRECTORY = "shared"
SET_ASIDE_DIRECTORY = "set-aside"

_DIRECTORY_NAME = re.compile(r"chk-([0-9]{12,19})")
_SET_ASIDE_NAME = re.compile(r"chk-([0-9]{12,19})-[0-9]+")


def checkpoint_directory(checkpoint_id: int) -> str:
    """Directory of a checkpoint, relative to the job directory."""
    return f"{CHECKPOINTS_DIRECTORY}/chk-{checkpoint_id:012d}"


class DirectoryPointers:
    """The `CheckpointPointers` in the job directory at the root of `file_system`.

    Without `leadership` the caller guarantees that it is the only writer.
    """

    def __init__(self, file_system: CheckpointFileSystem, leadership: Leadership | None = None) -> None:
        self._fs = file_system
        self._leadership = leadership

    @property
    def place(self) -> str:
        """The directory of the checkpoints."""
        return self._fs.location(CHECKPOINTS_DIRECTORY)

    def find(self) -> FoundCheckpoints:
        """Read all checkpoints. No file stores their number, so a crash cannot make it wrong."""
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
                    f"became complete. Restore it from a backup."
                )
        return FoundCheckpoints(self._fs, self.place, retained, unreadable, unfinished, max(ids, default=None))

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata file, which is the pointer, in a temporary directory, and rename that."""
        self._check_leading()
        directory = checkpoint_directory(metadata.checkpoint_id)
        head, _, name = directory.rpartition("/")
        staging = f"{head}/.{name}"
        try:
            written = write_metadata(self._fs, staging, metadata)
            self._fs.move_directory(staging, directory)
            return evolve(written, path=metadata_path(directory))
        except BaseException as error:
            # A failure after the rename must not leave a checkpoint that its caller abandons.
            try:
                if self._fs.exists(metadata_path(directory)):
                    self._fs.move_directory(directory, staging)
                self._fs.delete_directory(staging)
            except CheckpointError:
                raise UncertainCheckpointError(
                    f"{self._fs.location(metadata_path(directory))} could not be written ({error}), nor removed: the "
                    f"next start finds out whether checkpoint {metadata.checkpoint_id} is complete."
                ) from error
            raise

    def withdraw(self, checkpoint_id: int) -> None:
        """Delete the metadata file durably, then its directory."""
        self._check_leading()
        self._delete(checkpoint_directory(checkpoint_id))

    def set_aside(self, checkpoint_id: int) -> None:
        """Move the directory to a free name."""
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
        """The data files of the checkpoints that were set aside."""
        paths: set[str] = set()
        for name in self._fs.list_directories(SET_ASIDE_DIRECTORY):
            # Unreadable metadata, often the reason to set it aside, does not list its files.
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


_DIRECTORY: Final = re.compile("chk-([0-9]{12,19})(-[0-9a-f]{32})?")


@frozen
class CheckpointPointer:
    """Records that a checkpoint is complete, and its metadata file, whose name is unique to the attempt."""

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
    """Write metadata into a new directory. The checkpoint is complete only when the pointer is stored."""
    directory = f"{checkpoint_directory(metadata.checkpoint_id)}-{uuid.uuid4().hex}"
    return CheckpointPointer(metadata.checkpoint_id, write_metadata(file_system, directory, metadata))


def read_pointed_metadata(
    file_system: CheckpointFileSystem, pointer: CheckpointPointer, kept_at: str
) -> RetainedCheckpoint | CorruptMetadataError:
    """The checkpoint of a pointer, or the error. `kept_at` is the place of the pointer, for messages."""
    try:
        found = read_checkpoint(file_system, pointer.checkpoint_id, pointer.directory)
    except CorruptMetadataError as error:
        return error
    except (MissingFileError, CorruptFileError) as error:
        return CorruptMetadataError(f"{kept_at} points to a file that has changed: {error}")
    if found.metadata_file != pointer.metadata_file:
        return CorruptMetadataError(
            f"{file_system.location(found.metadata_file.path)} is not the file that was completed: its checksum is "
            f"{found.metadata_file.checksum}, but {kept_at} has {pointer.metadata_file.checksum}. Restore the "
            f"original file from a backup."
        )
    return found


def delete_pointed_metadata(file_system: CheckpointFileSystem, pointer: CheckpointPointer) -> None:
    """Delete metadata that no pointer names: the file, durably, and then its directory."""
    file_system.delete(pointer.metadata_file.path, durable=True)
    if pointer.directory.startswith(f"{CHECKPOINTS_DIRECTORY}/"):
        file_system.delete_directory(pointer.directory)


def unnamed_directories(
    file_system: CheckpointFileSystem, pointers: Iterable[CheckpointPointer]
) -> Iterator[tuple[str, int]]:
    """The directories of checkpoints that no pointer names, with their ids."""
    named = {pointer.directory for pointer in pointers}
    for name in file_system.list_directories(CHECKPOINTS_DIRECTORY):
        matched = _DIRECTORY.fullmatch(name)
        directory = f"{CHECKPOINTS_DIRECTORY}/{name}"
        if matched is not None and directory not in named:
            yield directory, int(matched.group(1))
