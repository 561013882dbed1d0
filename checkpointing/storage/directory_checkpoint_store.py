"""The store of the completed checkpoints of a job directory that needs nothing but the directory."""

from __future__ import annotations

from checkpointing.storage.checkpoint_directories import DirectoryPointers
from checkpointing.storage.default_checkpoint_store import DefaultCompletedCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.leadership import Leadership

__all__ = ["DirectoryCheckpointStore"]


class DirectoryCheckpointStore(DefaultCompletedCheckpointStore):
    """A `DefaultCompletedCheckpointStore` over the `DirectoryPointers` of the job directory at the root of `fs`."""

    def __init__(
        self, fs: CheckpointFileSystem, max_retained: int = 3, *, leadership: Leadership | None = None
    ) -> None:
        super().__init__(fs, DirectoryPointers(fs, leadership), max_retained, leadership=leadership)
