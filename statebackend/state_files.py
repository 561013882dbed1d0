"""The sorted files that make up one state in a checkpoint, and when they are merged into one.

A state is a *base* file and *increments* in order: each epoch that changed the state adds one, of the size of the
change. Files are shared between checkpoints and never changed. They are replaced by one new base when the increments
together outgrow the base, or when there are too many of them; so what is uploaded over time stays within about twice
what was changed, and a restore reads at most about twice the state.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field, frozen

from checkpoint.handles import FileHandle, StateHandle
from statebackend.state_meta import StateMeta

MAX_FILES: Final = 48
"""Files of one state beyond which they are merged: each is looked into at every read."""

MIN_MERGE_BYTES: Final = 1 << 20
"""Increments below this are not merged because of their size."""


@frozen
class StoredFile:
    """A file in the store, and the state id of the snapshot that wrote it."""

    handle: FileHandle
    written_by: str


@define
class StateFiles:
    """The files of one state, in the order in which they apply: those in the store, then the local ``pending`` ones.

    ``needs_base`` says that the files do not add up to the state, so that the next snapshot must write it whole.
    """

    stored: list[StoredFile] = field(factory=list)
    pending: list[str] = field(factory=list)
    needs_base: bool = False

    @property
    def should_merge(self) -> bool:
        """Whether the next snapshot should write one base instead of another increment."""
        if len(self.stored) < 2:
            return False
        base, increments = self.stored[0].handle, self.stored[1:]
        increment_bytes = sum(file.handle.size_bytes for file in increments)
        return len(self.stored) + len(self.pending) > MAX_FILES or increment_bytes > max(
            base.size_bytes, MIN_MERGE_BYTES
        )


def stored_files(handle: StateHandle, state: StateMeta) -> list[StoredFile]:
    """The files of a state in a handle."""
    return [StoredFile(handle.files[file.index], file.written_by) for file in state.files]
