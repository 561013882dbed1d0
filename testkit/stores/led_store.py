"""A store as the driver has it that leads a job, and small checkpoints for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from attrs import field, frozen

from checkpointing import CheckpointKind, CheckpointMetadata, FileHandle, KeyedStateHandle, OperatorState, SubtaskState
from checkpointing.handles.checksum import checksum_of_bytes
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.metadata_file import METADATA_FILE_NAME, read_metadata

__all__ = ["CONTENT", "LedStore", "checkpoint", "file_handle", "subtask_state"]

CONTENT = b"data"
"""What is in every data file."""


@frozen
class LedStore:
    """The store of a job, not recovered yet, for a driver that leads it.

    ``file_system`` is where data files are. ``lose`` lets the driver lose the leadership without knowing it, as far as
    that can be: a later `lead` succeeds, while the store can still be called. ``close`` lets go of everything.
    """

    store: CompletedCheckpointStore
    file_system: CheckpointFileSystem
    lose: Callable[[], None] = field(repr=False)
    close: Callable[[], None] = field(repr=False)

    def add(self, checkpoint_id: int, *names: str, **changes: Any) -> FileHandle:
        """Uploads what is not there yet, then adds a checkpoint whose parent is the newest."""
        for name in names:
            if not self.file_system.exists(f"shared/{name}"):
                self.file_system.write_file(f"shared/{name}", CONTENT)
        latest = self.store.latest()
        if latest is not None:
            parent = {
                "parent_checkpoint_id": latest.checkpoint_id,
                "parent_digest": self.store.digest(latest.checkpoint_id),
            }
            changes = {**parent, **changes}
        return self.store.add(checkpoint(checkpoint_id, (file_handle(f"shared/{name}") for name in names), **changes))

    @property
    def ids(self) -> list[int]:
        """Of all checkpoints of the store, oldest first."""
        return [metadata.checkpoint_id for metadata in self.store.all()]

    def shared(self) -> list[str]:
        """The names of the data files that are there."""
        return [path.removeprefix("shared/") for path in self.file_system.list_files("shared")]

    def metadata_paths(self, checkpoint_id: int) -> list[str]:
        """The metadata files of that checkpoint that are there, complete or not."""
        paths = [path for path in self.file_system.list_files() if path.endswith(f"/{METADATA_FILE_NAME}")]
        return [path for path in paths if self._id_of(path) == checkpoint_id]

    def damage(self, checkpoint_id: int) -> str:
        """Takes a byte away from the metadata file of a checkpoint, of which there is one; returns its path."""
        [path] = self.metadata_paths(checkpoint_id)
        self.file_system.write_file(path, self.file_system.read_file(path)[:-1])
        return path

    def _id_of(self, path: str) -> int:
        return read_metadata(self.file_system, path.rpartition("/")[0]).checkpoint_id


def file_handle(path: str) -> FileHandle:
    """The handle of a data file."""
    return FileHandle(path, len(CONTENT), checksum_of_bytes(CONTENT))


def subtask_state(files: Iterable[FileHandle]) -> SubtaskState:
    """The state of the only subtask."""
    return SubtaskState(KeyedStateHandle("state", "heap", 0, 3, b"meta", tuple(files)))


def checkpoint(checkpoint_id: int, files: Iterable[FileHandle] = (), **changes: Any) -> CheckpointMetadata:
    """A checkpoint of one operator."""
    content: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "kind": CheckpointKind.CHECKPOINT,
        "job_id": "job",
        "job_name": "flights",
        "timestamp_ms": 1_700_000_000_000 + checkpoint_id,
        "max_parallelism": 4,
        "operators": (OperatorState("counter", "Counter", 4, (subtask_state(files),)),),
    }
    return CheckpointMetadata(**{**content, **changes})
