"""The files of a new savepoint before they are placed, and the state that refers to them.

A file comes from scratch space, from memory, or unchanged from the source savepoint. Files are placed at the very end,
after all checks; on the same disk they are linked.
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


class NewFile(Protocol):
    """A file of the new savepoint."""

    @property
    def path(self) -> str:
        """The path relative to the savepoint."""

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        """Write the file durably. A copied file is verified. Raises `CheckpointError`."""


@frozen
class LocalFile:
    """A file in scratch space."""

    path: str
    local_path: str

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        handle = target.upload(self.local_path, self.path)
        os.unlink(self.local_path)
        return handle


@frozen
class FileInMemory:
    """A small file in memory."""

    path: str
    data: bytes

    @property
    def handle(self) -> FileHandle:
        """The handle of the file in the savepoint."""
        return FileHandle(self.path, len(self.data), checksum_of_bytes(self.data))

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        return target.write_file(self.path, self.data)


@frozen
class CopiedFile:
    """A file of another savepoint, copied without decoding."""

    path: str
    origin: FileHandle
    file_system: CheckpointFileSystem

    @property
    def handle(self) -> FileHandle:
        """The handle of the file in the savepoint."""
        return FileHandle(self.path, self.origin.size_bytes, self.origin.checksum)

    def put(self, target: CheckpointFileSystem, scratch_directory: str) -> FileHandle:
        local = os.path.join(scratch_directory, f"copy-{uuid.uuid4().hex}")
        self.file_system.download(self.origin, local)
        handle = target.upload(local, self.path)
        os.unlink(local)
        return handle


def path_in(uid: str, path: str, former_uids: Sequence[str]) -> str:
    """Return the path of an operator's file below its new uid.

    Files of several origins may have equal names, so they get distinct ones. Repeated merges do not lengthen paths.
    """
    prefixes = (f"operators/{path_segment(former)}/" for former in former_uids)
    own = path.removeprefix(next(filter(path.startswith, prefixes), ""))
    if len(former_uids) > 1:
        own = posixpath.join(posixpath.dirname(own), f"{xxhash.xxh3_128_hexdigest(path.encode())}.parquet")
    return f"operators/{path_segment(uid)}/{own}"


@frozen
class NewKeyedState:
    """The keyed state of one subtask, with files by path."""

    state_id: str
    key_groups: KeyGroupRange
    meta: KeyedStateMeta
    paths: tuple[str, ...]

    def handle(self, files: Mapping[str, FileHandle]) -> KeyedStateHandle:
        """Return the handle after the files were placed."""
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
        """Return the state after the files were placed."""
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
    """The earliest timer of each queue that was read."""
    origins: tuple[str, ...] = ()
    has_copied_timers: bool = True
    """Whether the source operators may have timers that were not read."""
    left_out: Mapping[str, Counter[int]] = field(factory=dict)
    """The number of removed rows by state, by the number of the change."""
