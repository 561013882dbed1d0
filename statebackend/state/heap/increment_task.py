"""The asynchronous part of a heap snapshot: one increment per state in canonical Parquet, and the digest of the epoch.

For each state, it writes the rows that completed snapshots do not contain, and refers to the existing files. It writes
a state whole if the existing files are incomplete or too many. A state that is not registered stays in its files and is
not read, as long as this subtask may refer to them.

A task reads files, and frozen entries through tables with their own serializers. It changes its backend only after
everything is written.

The digest identifies what an epoch changed, so that two attempts at an epoch can be compared. It hashes the rows in
canonical order, per column the lengths and the bytes, so that different changes differ. It does not depend on how the
rows are split into batches, and keeps none of them. It is compared only between attempts of the same program, and never
written.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import os
import threading
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

import xxhash
from attrs import frozen

from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.state.backend_parameters import KeyedStateSnapshot
from statebackend.state.canonical import (
    CanonicalBatch,
    CanonicalRow,
    batches_of,
    bounded_batches,
    encoded_canonical,
    write_canonical,
)
from statebackend.state.canonical_files import CanonicalFile
from statebackend.state.heap.entry_table import HeapTable, StateContent
from statebackend.state.heap.history import FrozenEntries
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.private_directory import scratch_directory
from statebackend.state.snapshot_task import SnapshotTask
from statebackend.state.state_files import StateFiles, StoredFile, handle_of_files, max_increment_ratio
from statebackend.state.state_kind import RowFilter
from statebackend.state.state_meta import StateMeta
from statebackend.state.ttl import kept_rows
from typeserializers.kernel.type_serializer import TypeSerializer

_NO_ITEM: Final = -1
"""The length of a missing item; no other item has it."""

_JOINED_BYTES: Final = 1 << 20
"""Smaller items are joined before hashing, which is faster. Larger ones are hashed without a copy."""


class ChangeDigest:
    """Hashes the changes of one epoch, state by state."""

    __slots__ = ("_columns", "_hash", "_name", "_numbers", "_rows")

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()
        self._columns: list[_Column] = []
        self._begin("")

    def begin_state(self, name: str) -> None:
        """Start the changes of a state. A state without changes does not affect the digest."""
        self._end_state()
        self._begin(name)

    def add_rows(self, rows: CanonicalBatch) -> None:
        """Add rows of the state."""
        if not rows.row_count:
            return
        columns: Sequence[Any] = rows[1:]
        if not self._rows:
            self._columns = [_Column() for _ in columns]
        self._rows += rows.row_count
        self._numbers.update(array("i", rows.key_groups).tobytes())
        for column, items in zip(self._columns, columns, strict=True):
            column.add(items)

    def hexdigest(self) -> str:
        """The digest of everything added."""
        self._end_state()
        self._begin("")
        return self._hash.hexdigest()

    def _begin(self, name: str) -> None:
        self._name = name
        self._rows = 0
        self._numbers = xxhash.xxh3_128()
        self._columns = []

    def _end_state(self) -> None:
        if self._rows:
            self._hash.update(f"{self._name}\0{self._rows}\0".encode())
            self._hash.update(self._numbers.digest())
            for column in self._columns:
                self._hash.update(column.digest())


class _Column:
    """The lengths of a column's items, and their concatenated bytes."""

    __slots__ = ("_bytes", "_lengths")

    def __init__(self) -> None:
        self._lengths = xxhash.xxh3_128()
        self._bytes = xxhash.xxh3_128()

    def add(self, items: Sequence[bytes | None]) -> None:
        present = [item for item in items if item is not None]
        if present:
            lengths = array("q", [_NO_ITEM if item is None else len(item) for item in items])
        else:
            lengths = array("q", [_NO_ITEM]) * len(items)
        self._lengths.update(lengths.tobytes())
        if sum(map(len, present)) <= _JOINED_BYTES:
            self._bytes.update(b"".join(present))
        else:
            for item in present:
                self._bytes.update(item)

    def digest(self) -> bytes:
        return self._lengths.digest() + self._bytes.digest()


FILE_SUFFIX: Final = ".parquet"


@frozen(eq=False)
class FrozenHeapState:
    """One state when the snapshot was prepared; ``table`` reads ``entries``, or the files if there are none.

    ``serializers`` are those that the table writes with, by role and "namespace"; none for a state that is not
    registered. ``row_filter`` is for the state written whole, ``expired`` for the digest.
    """

    meta: StateMeta
    content: StateContent
    files: StateFiles
    sources: tuple[CanonicalFile, ...]
    table: HeapTable
    serializers: Mapping[str, TypeSerializer[Any]]
    entries: FrozenEntries | None
    row_filter: RowFilter | None
    expired: RowFilter | None

    def written_meta(self) -> StateMeta:
        """The metadata after writing, since some serializers learn from what they write."""
        return self.meta.as_written_by(self.serializers) if self.serializers else self.meta


@frozen
class SnapshotTarget:
    """The destination of a snapshot and its identity; ``number`` counts the snapshots of a backend.

    ``local_directory`` is for temporary files.
    """

    number: int
    state_id: str
    backend: str
    path_prefix: str
    file_system: CheckpointFileSystem
    local_directory: str
    key_groups: KeyGroupRange
    key_snapshot: TypeSerializerSnapshot[Any]
    sequence: int


class HeapSnapshotTask(SnapshotTask[KeyedStateSnapshot]):
    """Writes the increments of a snapshot; ``lock`` guards the contents of the states."""

    def __init__(self, states: Sequence[FrozenHeapState], target: SnapshotTarget, lock: threading.Lock) -> None:
        super().__init__()
        self._states = states
        self._target = target
        self._lock = lock
        self._written: list[FileHandle] = []
        self._new_files: list[StateFiles] = []
        self._changed_entries = 0

    def write(self) -> KeyedStateSnapshot:
        target = self._target
        digest = ChangeDigest()
        for number, state in enumerate(self._states):
            self.raise_if_cancelled()
            changed = self._changed_rows(state, digest)
            self._new_files.append(self._files_of(state, changed, f"{target.path_prefix}-{number}"))
            # Consume the rest for the digest, also if the state was written whole.
            collections.deque(changed, maxlen=0)
        handle = handle_of_files(
            target.state_id,
            target.backend,
            target.key_groups,
            target.key_snapshot,
            target.sequence,
            [(state.written_meta(), files) for state, files in zip(self._states, self._new_files, strict=True)],
        )
        written = sum(file.size_bytes for file in self._written)
        return KeyedStateSnapshot(handle, digest.hexdigest(), self._changed_entries, written)

    def remove_written(self) -> None:
        for file in self._written:
            # The first error is the one to report; a file that remains is a harmless orphan.
            with contextlib.suppress(CheckpointError):
                self._target.file_system.delete(file.path)

    def ended(self, snapshot: KeyedStateSnapshot | None) -> None:
        frozen = [(state.table, state.entries) for state in self._states if state.entries is not None]
        # At once: a snapshot prepared in between would write changes again that these files already hold.
        with self._lock:
            if snapshot is not None:
                for state, files in zip(self._states, self._new_files, strict=True):
                    state.content.complete(self._target.number, files, self._target.file_system)
            for _, entries in frozen:
                entries.release(is_written=snapshot is not None)
        for table, entries in frozen:
            entries.tidy(table.new_keys, table.folded)
        # A caller that keeps the task must not keep the entries in memory.
        self._states = ()

    def _changed_rows(self, state: FrozenHeapState, digest: ChangeDigest) -> Iterator[CanonicalBatch]:
        """The rows of a state's increment; reading them counts them and adds them to the digest."""
        if state.entries is None:
            return
        state.entries.take_in(state.table.new_keys)
        digest.begin_state(state.meta.name)
        for piece in state.table.changed_rows(state.entries, state.expired):
            self.raise_if_cancelled()
            self._changed_entries += piece.written.row_count
            digest.add_rows(piece.effective)
            yield piece.written

    def _files_of(self, state: FrozenHeapState, changed: Iterator[CanonicalBatch], stem: str) -> StateFiles:
        """The files of a state after the snapshot; unchanged if there is nothing to write."""
        kept = state.files.stored
        if state.files.needs_base or self._needs_new_base(state):
            return StateFiles(self._stored(f"{stem}{FILE_SUFFIX}", self._all_batches(state)))
        places = state.files.increments_to_merge()
        if places is not None:
            merged = StateFiles(list(kept))
            batches = batches_of(self._merged_rows(kept[places.start : places.stop]))
            merged.replace(places, next(iter(self._stored(f"{stem}-merged{FILE_SUFFIX}", batches)), None))
            kept = merged.stored
        written = self._stored(f"{stem}{FILE_SUFFIX}", bounded_batches(changed))
        return StateFiles([*kept, *written]) if written or places is not None else state.files

    def _needs_new_base(self, state: FrozenHeapState) -> bool:
        return state.entries is not None and state.files.increments_exceed(max_increment_ratio(self._target.key_groups))

    def _stored(self, path: str, batches: Iterable[CanonicalBatch]) -> list[StoredFile]:
        """Write rows to a file; no file if there are no rows.

        One batch is written in memory, more through a local file.
        """
        watched = self._watched(batches)
        first = list(itertools.islice(watched, 2))
        if not first:
            return []
        if len(first) == 1:
            file = self._target.file_system.write_file(path, encoded_canonical(first)[0])
        else:
            with scratch_directory(self._target.local_directory) as directory:
                local = os.path.join(directory, "rows.parquet")
                write_canonical(local, itertools.chain(first, watched))
                del first
                file = self._target.file_system.upload(local, path)
        self._written.append(file)
        return [StoredFile(file, self._target.state_id)]

    def _all_batches(self, state: FrozenHeapState) -> Iterable[CanonicalBatch]:
        if state.entries is not None:
            return state.table.batches_at(state.entries, state.row_filter)
        for source in state.sources:
            for batch in self._watched(source.batches(self._target.key_groups, self._target.local_directory)):
                state.table.load_batch(batch, state.table.form.load)
        return batches_of(kept_rows(state.row_filter, state.table.rows()))

    def _merged_rows(self, files: Iterable[StoredFile]) -> Iterator[CanonicalRow]:
        """Merge the rows of increments in canonical order. Rows of a key keep their order. Holds one batch per file."""
        return heapq.merge(*map(self._rows_of_file, files), key=itemgetter(0, 1, 2))

    def _rows_of_file(self, stored: StoredFile) -> Iterator[CanonicalRow]:
        source = CanonicalFile(self._target.file_system, stored.handle)
        for batch in self._watched(source.batches(self._target.key_groups, self._target.local_directory)):
            yield from zip(*batch, strict=True)

    def _watched(self, batches: Iterable[CanonicalBatch]) -> Iterator[CanonicalBatch]:
        for batch in batches:
            self.raise_if_cancelled()
            yield batch
