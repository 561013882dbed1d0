"""The files of one state in a checkpoint, and when they are merged; the same for every backend.

A state is a *base* file and *increments*, in order. Each epoch that changed the state adds one increment, of the size
of the change. Files are shared between checkpoints and never changed. When the increments together are larger than the
base, one new base replaces all, so a restore reads at most about three times the state. Each subtask has a different
threshold, so that subtasks with equal growth do not all write a base in the same epoch.

When there are too many files, the `MERGED_AT_ONCE` adjacent increments with the smallest total become one. This costs
their size, never that of the state. The merged file is large, so it is not merged again for a long time (the tiers of a
log-structured merge tree).

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
"""Increments are merged if a state has more files. Each file is read at every look-up, and opened at a restore."""

MERGED_AT_ONCE: Final = 16
"""How many increments are merged into one."""

MIN_MERGE_BYTES: Final = 1 << 20
"""Increments smaller than this are not merged because of their size."""


_GOLDEN_RATIO: Final = 0.6180339887498949


@frozen
class StoredFile:
    """A file in the store, with the state id of the snapshot that wrote it."""

    handle: FileHandle
    written_by: str


@define
class StateFiles:
    """The files of one state, in the order in which they apply: first files in the store, then local ``pending`` ones.

    ``needs_base`` means that the files do not contain the whole state, so the next snapshot must write all of it.
    """

    stored: list[StoredFile] = field(factory=list)
    pending: list[str] = field(factory=list)
    needs_base: bool = False

    def increments_exceed(self, max_ratio: float) -> bool:
        """Whether the next snapshot should write one base instead of another increment.

        The increments may be up to ``max_ratio`` times as large as the base, see `max_increment_ratio`.
        """
        base, increments = self._sizes_bytes()
        return increments > max(base * max_ratio, MIN_MERGE_BYTES)

    @property
    def is_mostly_deleted(self) -> bool:
        """Whether there are too many files, and a base is much smaller than the result of merging some of them.

        Only a base leaves out entries that were deleted long ago.
        """
        base, increments = self._sizes_bytes()
        return len(self.stored) + len(self.pending) > MAX_FILES and increments * MERGED_AT_ONCE > 2 * base * MAX_FILES

    def _sizes_bytes(self) -> tuple[int, int]:
        """The bytes of the base, and of all increments; 0 and 0 without increments."""
        if len(self.stored) < 2:
            return 0, 0
        sizes = [file.handle.size_bytes for file in self.stored]
        return sizes[0], sum(sizes[1:])

    def increments_to_merge(self) -> range | None:
        """The range in ``stored`` of the increments to merge, or None if there are few files."""
        if len(self.stored) + len(self.pending) <= MAX_FILES or len(self.stored) <= MERGED_AT_ONCE:
            return None
        sizes = [file.handle.size_bytes for file in self.stored]
        # The base, which comes first, is never merged with increments.
        first = min(
            range(1, len(sizes) - MERGED_AT_ONCE + 1), key=lambda start: sum(sizes[start : start + MERGED_AT_ONCE])
        )
        return range(first, first + MERGED_AT_ONCE)

    def replace(self, places: range, merged: StoredFile | None) -> None:
        """Replace neighbouring files by a merged one; None if the merged file would be empty."""
        self.stored[places.start : places.stop] = [] if merged is None else [merged]


def max_increment_ratio(key_groups: KeyGroupRange) -> float:
    """The largest size of all increments, divided by the size of the base: from 1 to 2.

    It differs between neighbouring subtasks, so that they do not all write a new base in the same epoch.
    """
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
    """Create the handle of a snapshot from its states and their stored files."""
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
