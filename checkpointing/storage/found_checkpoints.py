"""What a look at the completed checkpoints of a job has found, however it is noted which these are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from attrs import field, frozen

from checkpointing.errors import CheckpointNotFoundError, CorruptMetadataError
from checkpointing.handles.invariants import MAX_ID, check_integer
from checkpointing.handles.state_handles import FileHandle
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.metadata_file import METADATA_FILE_NAME, read_metadata_with_handle

__all__ = ["PREVIOUS", "FoundCheckpoints", "RetainedCheckpoint", "not_found", "read_checkpoint"]

PREVIOUS: Final = "previous"
"""What to fall back to if not to a certain checkpoint."""


@frozen
class RetainedCheckpoint:
    """A completed checkpoint, and the file that says what is in it."""

    metadata: CheckpointMetadata
    metadata_file: FileHandle


@frozen
class FoundCheckpoints:
    """What was found; `unfinished` are directories, `place` says in messages where the checkpoints are noted."""

    file_system: CheckpointFileSystem
    place: str
    retained: dict[int, RetainedCheckpoint] = field(factory=dict)
    unreadable: dict[int, CorruptMetadataError] = field(factory=dict)
    unfinished: list[str] = field(factory=list)
    greatest_id: int | None = None
    """Of all these, of those set aside, and of all that there were as far as that is noted."""

    @property
    def ids(self) -> frozenset[int]:
        """Of the completed checkpoints, whether they can be read or not."""
        return frozenset({*self.retained, *self.unreadable})

    def newest(self) -> CheckpointMetadata | None:
        """The newest completed checkpoint, None if there is none.

        Raises `CorruptMetadataError`, with the way out, if it cannot be read.
        """
        self.check_newest()
        return self.retained[max(self.retained)].metadata if self.retained else None

    def fall_back_target(self, fall_back_to: int | str) -> CheckpointMetadata:
        """The checkpoint that `recover(fall_back_to=...)` would make the newest.

        "previous" is the newest that can be read, except for the newest of all. Raises `CheckpointNotFoundError`,
        naming those there are, or `CorruptMetadataError`.
        """
        if fall_back_to == PREVIOUS:
            return self._newest_before_the_newest().metadata
        check_integer("fall_back_to", fall_back_to, 0, MAX_ID)
        return self.target(int(fall_back_to)).metadata

    def target(self, checkpoint_id: int) -> RetainedCheckpoint:
        """The checkpoint to fall back to. Raises `CheckpointNotFoundError` or `CorruptMetadataError`."""
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
        way_out = (
            f"To give up checkpoint {newest} and continue from checkpoint {max(self.retained)}, start with "
            f"fall_back_to={max(self.retained)}; readable are {_listed(self.retained)}."
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
            f"{parent.metadata_file.checksum}: the directory mixes two histories. Bring back the original directories "
            f"from a backup, or start with fall_back_to={parent_id}."
        )


def not_found(place: str, checkpoint_id: int, retained: Mapping[int, RetainedCheckpoint]) -> CheckpointNotFoundError:
    """The error for an id that no checkpoint has."""
    return CheckpointNotFoundError(f"{place} holds no checkpoint {checkpoint_id}; there are: {_listed(retained)}")


def read_checkpoint(file_system: CheckpointFileSystem, checkpoint_id: int, directory: str) -> RetainedCheckpoint:
    """The checkpoint of that id, which is in that directory.

    Raises `MissingFileError`, and `CorruptMetadataError` if the file is damaged or is that of another.
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
