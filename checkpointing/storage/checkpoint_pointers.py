"""What a store of completed checkpoints asks of the place where it is noted which checkpoints are complete.

The store (`default_checkpoint_store`) knows what may be added, how many are kept and which files nobody needs. A
*pointer* is the note that a checkpoint is complete, and where its metadata is. In a directory the metadata file is its
own pointer (`checkpoint_directories`); with ZooKeeper pointers are nodes there, and files where files are
(`zookeeper_pointers`).

Invariants of every form:
1. A checkpoint is complete from the moment at which its pointer is there: in one step, or not at all.
2. Publishing, withdrawing and setting aside succeed for the leader of the job only.
3. Files that belong to a pointer are there before it, and go after it.
4. Whoever does not lead changes no file that a pointer of another driver refers to: names of what is written before a
   checkpoint is complete are never given twice, unless nobody but this driver can write here.
5. An error of `publish` says that the checkpoint is not complete, unless it is an `UncertainCheckpointError` or a
   `LeadershipLostError`. After those it may be, and none of its files may be deleted by this driver.
"""

from __future__ import annotations

from typing import Protocol

from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from checkpointing.storage.found_checkpoints import FoundCheckpoints

__all__ = ["CheckpointPointers"]


class CheckpointPointers(Protocol):
    """The pointers of one job. All methods raise `StorageError` where nothing can be found out."""

    @property
    def place(self) -> str:
        """Where the pointers are, for messages."""

    def find(self) -> FoundCheckpoints:
        """Read all that is there; changes nothing."""

    def publish(self, metadata: CheckpointMetadata) -> FileHandle:
        """Write the metadata of a checkpoint, whose data files are there, and let it be complete.

        The id is greater than all that `find` found. Returns the handle of the metadata file. See invariant 5.
        """

    def withdraw(self, checkpoint_id: int) -> None:
        """Let a checkpoint that `find` or `publish` has told of be none any more, durably; then delete its metadata.

        Its data files are the business of the caller, behind this. On an error it may be withdrawn or not; this may
        be called again.
        """

    def set_aside(self, checkpoint_id: int) -> None:
        """Give a checkpoint up, in one step and durably: it is kept with its files, but no checkpoint any more."""

    def set_aside_places(self) -> tuple[str, ...]:
        """Where the checkpoints are that were given up, for people, who may remove them."""

    def files_set_aside(self) -> frozenset[str]:
        """The data files of checkpoints that were given up: whoever removes those gives the files free."""
