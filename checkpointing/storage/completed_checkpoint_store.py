"""Where the completed checkpoints of a job are kept: what every such store does, whatever it keeps them in.

A store knows which checkpoints there are, in which order, and which files they need; it alone deletes files, and it
gives out the ids of new checkpoints. `default_checkpoint_store` does all of that over pointers, which are in the
directory of the job (`checkpoint_directories`) or in ZooKeeper (`zookeeper_pointers`), and files where they are.
`testkit.stores` has what every store must pass.

Invariants of every store:
1. No file is deleted that a retained or pinned checkpoint, or a protected owner, refers to.
2. The newest checkpoint is never replaced by an older one without being asked.
3. Once `add` returns, the checkpoint survives a crash. If deleting older ones fails, it does not make it fail.
4. The ids of the checkpoints strictly increase; those that were set aside are none of them. `next_checkpoint_id` gives
   out none that it gave out before, or that a checkpoint has or had before it was set aside. Who counts otherwise, as
   the epochs of a job do, may add one under the id of what was set aside.
5. Who has lost the leadership of the job completes no checkpoint.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from checkpointing.errors import CorruptMetadataError
from checkpointing.handles.state_handles import FileHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata

__all__ = ["CompletedCheckpointStore"]


class CompletedCheckpointStore(Protocol):
    """The newest completed checkpoints of one job. `recover` is called once before anything else.

    May be used by several threads of the one driver that leads the job.
    """

    @property
    def unreadable(self) -> Mapping[int, CorruptMetadataError]:
        """Older checkpoints that `recover` could not read; they stay until they would be dropped anyway."""

    def recover(self, *, fall_back_to: int | None = None) -> CheckpointMetadata | None:
        """Find the completed checkpoints, remove unfinished ones, return the newest (None if none).

        A damaged newest checkpoint raises `CorruptMetadataError`. With `fall_back_to=<id>` everything newer than that
        checkpoint is set aside and it becomes the newest; if it cannot be read either, nothing is moved.
        """

    def set_aside_places(self) -> tuple[str, ...]:
        """Where the checkpoints are that were given up by falling back, for people."""

    def next_checkpoint_id(self) -> int:
        """An id for a new checkpoint, greater than all there were; a later call gives a greater one."""

    def add(self, metadata: CheckpointMetadata) -> FileHandle:
        """Store a completed checkpoint durably, then drop those that are too many.

        Its data files must be in place already. Returns the handle of its metadata file; the checksum is the
        `parent_digest` of its children. Raises `InvariantViolationError` (not a checkpoint, id not greater than the
        newest, wrong parent digest), `MissingFileError` or `CorruptFileError` (a data file is not there in its size),
        `StorageError`; the store is then as before. After `UncertainCheckpointError` and `LeadershipLostError` the
        checkpoint may be complete or not, and none of its files is deleted.
        """

    def latest(self) -> CheckpointMetadata | None:
        """The newest completed checkpoint."""

    def all(self) -> tuple[CheckpointMetadata, ...]:
        """All completed checkpoints that are retained or pinned, oldest first."""

    def get(self, checkpoint_id: int) -> CheckpointMetadata:
        """One completed checkpoint; `CheckpointNotFoundError` names those there are."""

    def digest(self, checkpoint_id: int) -> str:
        """Checksum of a checkpoint's metadata file: the `parent_digest` of its children."""

    def pin(self, checkpoint_id: int) -> AbstractContextManager[CheckpointMetadata]:
        """Keep a checkpoint and its files while the context is open, whatever completes meanwhile."""

    def protect(self, paths: Iterable[str]) -> None:
        """Never delete these files: they belong to a savepoint that the job did not claim."""

    def discard(self, states: Iterable[SubtaskState], in_use: Collection[str] = ()) -> tuple[str, ...]:
        """Delete the files of given-up state that nobody else needs; return their paths.

        `in_use` are files of pending checkpoints (`CheckpointCoordinator.files_in_use()`).
        """

    def delete_orphans(self, in_use: Collection[str] = ()) -> tuple[str, ...]:
        """Delete files that nobody refers to: remains of aborted attempts and crashes. Call it while no task runs."""
