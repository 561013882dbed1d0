"""The files of one state in a checkpoint, and when they are merged; the same for every backend.

A state is a *base* file and *increments*, in order. Each epoch that changed the state adds one increment, of the size
of the change. Files are shared between checkpoints and never changed. When the increments together are larger than the
base, one new base replaces all, so a restore reads at most about three times the state. Each subtask has a different
threshold, so that subtasks with equal growth do not all write a base in the same epoch.

When there are too many files, the `MERGED_AT_ONCE` adjacent increments with the smallest total become one. This costs
their size, never that of the state. The merged file is large and is left alone for long (the tiers of a log-structured
merge tree).

The content of a state is the result of applying its files in order. If one list of files is a prefix of another, the
longer one is the shorter one's state plus the changes in the remaining files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field, frozen

from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.state_meta import KeyedStateMeta, StateFile, StateMeta, encode_meta

MAX_FILES: Final = 48
"""Files of one state beyond which increments are merged: each is looked into at every read, and opened at a restore."""

MERGED_AT_ONCE: Final = 16
"""How many increments become one when there are too many files."""

MIN_MERGE_BYTES: Final = 1 << 20
"""Increments below this are not merged because of their size."""


_GOLDEN_RATIO: Final = 0.6180339887498949


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

    def has_outgrown(self, patience: float) -> bool:
        """Whether the next snapshot should write one base instead of another increment.

        Increments are borne up to ``patience`` times the base; see `patience_of`.
        """
        base, increments = self._sizes_bytes()
        return increments > max(base * patience, MIN_MERGE_BYTES)

    @property
    def is_mostly_gone(self) -> bool:
        """Whether there are too many files, and a base is much smaller than what merging some of them would write.

        What increments say of entries that are long gone is left out of a base, and of nothing else.
        """
        base, increments = self._sizes_bytes()
        return len(self.stored) + len(self.pending) > MAX_FILES and increments * MERGED_AT_ONCE > 2 * base * MAX_FILES

    def _sizes_bytes(self) -> tuple[int, int]:
        """Those of the base and of the increments together; without increments nothing is to be merged."""
        if len(self.stored) < 2:
            return 0, 0
        sizes = [file.handle.size_bytes for file in self.stored]
        return sizes[0], sum(sizes[1:])

    def increments_to_merge(self) -> range | None:
        """The places in ``stored`` of the increments that should become one, or None while there are few files."""
        if len(self.stored) + len(self.pending) <= MAX_FILES or len(self.stored) <= MERGED_AT_ONCE:
            return None
        sizes = [file.handle.size_bytes for file in self.stored]
        # The base, in the first place, is never part of a merge of increments.
        first = min(
            range(1, len(sizes) - MERGED_AT_ONCE + 1), key=lambda start: sum(sizes[start : start + MERGED_AT_ONCE])
        )
        return range(first, first + MERGED_AT_ONCE)

    def replace(self, places: range, merged: StoredFile | None) -> None:
        """Puts one file in the place of neighbouring ones; None if nothing is left of them."""
        self.stored[places.start : places.stop] = [] if merged is None else [merged]


def patience_of(key_groups: KeyGroupRange) -> float:
    """From 1 to 2, as different as can be for the neighbours of a subtask: see `StateFiles.has_outgrown`."""
    place = key_groups.start // (key_groups.end - key_groups.start + 1)
    return 1 + place * _GOLDEN_RATIO % 1


def stored_files(handle: KeyedStateHandle, state: StateMeta) -> list[StoredFile]:
    """The files of a state in a handle."""
    return [StoredFile(handle.files[file.index], file.written_by) for file in state.files]


def handle_of_files(
    state_id: str,
    backend: str,
    key_groups: KeyGroupRange,
    key_snapshot: TypeSerializerSnapshot[Any],
    sequence: int,
    states: Iterable[tuple[StateMeta, StateFiles]],
) -> KeyedStateHandle:
    """The handle of a snapshot whose states are made of the stored files given with them."""
    files: list[FileHandle] = []
    metas: list[StateMeta] = []
    for meta, state_files in states:
        references = []
        for stored in state_files.stored:
            references.append(StateFile(len(files), stored.written_by))
            files.append(stored.handle)
        metas.append(meta.with_files(tuple(references)))
    encoded = encode_meta(KeyedStateMeta(key_snapshot, sequence, tuple(metas)))
    return KeyedStateHandle(state_id, backend, key_groups.start, key_groups.end, encoded, tuple(files))
