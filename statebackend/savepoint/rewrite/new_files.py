"""What a new savepoint is to be made of, before any of it is there: its files, and the state that refers to them.

A file comes from scratch space, from memory, or, byte by byte, from the savepoint that is rewritten. On one disk the
first and the last become links. It is given its place at the very end, when nothing can be rejected any more.
"""

from __future__ import annotations

import os
import posixpath
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

import xxhash
from attrs import field, frozen

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import checksum_of_bytes, path_segment
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, OpaqueStateHandle, SubtaskState
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.operator_state_handles import OperatorStateHandle, encode_operator_state
from statebackend.state.state_meta import CANONICAL_BACKEND, KeyedStateMeta, encode_meta

__all__ = [
    "CopiedFile",
    "FileInMemory",
    "LocalFile",
    "NewFile",
    "NewKeyedState",
    "NewOperator",
    "NewSubtask",
    "path_in",
    "relocated",
]


class NewFile(Protocol):
    """A file of the savepoint."""

    @property
    def path(self) -> str:
        """Where it is to be, relative to the savepoint."""

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        """Gives it its place, durably. Raises `CheckpointError`s; what it was copied from is verified."""


@frozen
class LocalFile:
    """A file that was made in scratch space."""

    path: str
    local_path: str

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        handle = target.upload(self.local_path, self.path)
        os.unlink(self.local_path)
        return handle


@frozen
class FileInMemory:
    """A small file."""

    path: str
    data: bytes

    @property
    def handle(self) -> FileHandle:
        """What it is in the savepoint."""
        return FileHandle(self.path, len(self.data), checksum_of_bytes(self.data))

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        return target.write_file(self.path, self.data)


@frozen
class CopiedFile:
    """A file of another savepoint, of which nothing is decoded."""

    path: str
    origin: FileHandle
    file_system: CheckpointFileSystem

    @property
    def handle(self) -> FileHandle:
        """What it is in the savepoint."""
        return relocated(self.origin, self.path)

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        local = os.path.join(scratch_directory, f"copy-{uuid.uuid4().hex}")
        self.file_system.download(self.origin, local)
        handle = target.upload(local, self.path)
        os.unlink(local)
        return handle


def relocated(file: FileHandle, path: str) -> FileHandle:
    """The handle of the same bytes elsewhere."""
    return FileHandle(path, file.size_bytes, file.checksum)


def path_in(uid: str, path: str, former_uids: Sequence[str]) -> str:
    """Where a file of an operator is to be that was made of these, and may have another uid from here on.

    Different files have different places: those of several operators, which may have the same names below the uids, get
    names of their own. However often operators are merged, the paths do not become longer.
    """
    prefixes = (f"operators/{path_segment(former)}/" for former in former_uids)
    own = path.removeprefix(next(filter(path.startswith, prefixes), ""))
    if len(former_uids) > 1:
        own = posixpath.join(posixpath.dirname(own), f"{xxhash.xxh3_128_hexdigest(path.encode())}.parquet")
    return f"operators/{path_segment(uid)}/{own}"


@frozen
class NewKeyedState:
    """The keyed state of one subtask, in files by their paths."""

    state_id: str
    key_groups: KeyGroupRange
    meta: KeyedStateMeta
    paths: tuple[str, ...]

    def handle(self, files: Mapping[str, FileHandle]) -> KeyedStateHandle:
        """The handle, once the files have their places."""
        return KeyedStateHandle(
            self.state_id,
            CANONICAL_BACKEND,
            self.key_groups.start,
            self.key_groups.end,
            encode_meta(self.meta),
            tuple(files[path] for path in self.paths),
        )


@frozen
class NewSubtask:
    """The state of one subtask."""

    keyed: NewKeyedState | None
    operator: OperatorStateHandle

    def state(self, files: Mapping[str, FileHandle]) -> SubtaskState:
        """The state, once the files have their places."""
        operator: OpaqueStateHandle | None = encode_operator_state(self.operator, CANONICAL_BACKEND)
        return SubtaskState(None if self.keyed is None else self.keyed.handle(files), operator)


@frozen
class NewOperator:
    """The state of one operator, and the rows of each of its states."""

    uid: str
    name: str
    subtasks: tuple[NewSubtask, ...]
    files: tuple[NewFile, ...]
    rows: Mapping[str, int]
    operator_state_rows: Mapping[str, int]
    earliest_timers_ms: Mapping[str, int]
    """The earliest timer of each queue whose timers were read."""
    origins: tuple[str, ...] = ()
    has_copied_timers: bool = True
    """Whether there may be timers that were not read, of the operators that this one comes from."""
    left_out: Mapping[str, Counter[int]] = field(factory=dict)
    """How many rows were left out of each state that a change leaves some out of, by the number of the change."""
