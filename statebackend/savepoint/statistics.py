"""Sizes and counts of stored state.

- `EntryStatistics` counts the entries of a state from their stored bytes. It decodes nothing, so it works for any type.
  An entry is what `EntryReader` yields: a value, a map entry, a queue element or a whole list.
- `stored_files` maps each file to its operator, its states and the checkpoints that share it. A file of a backend may
  hold several states; it is then listed under their joined names.
- `checkpoint_sizes` returns the sizes that the metadata contains, without reading a file. Sizes of subtasks and
  operators include their metas, as in `CheckpointMetadata.size_bytes`; sizes of states count files only. A file shared
  by several subtasks counts once per operator and state, and once for each subtask.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, field, frozen

from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, OperatorState, SubtaskState
from statebackend.state.backend_parameters import files_of_states
from statebackend.state.errors import StateBackendError
from statebackend.state.metrics import skew_of
from statebackend.state.operator_state_handles import decode_operator_state

__all__ = [
    "CheckpointFile",
    "CheckpointSizes",
    "EntryStatistics",
    "LargeEntry",
    "OperatorSizes",
    "checkpoint_sizes",
    "sizes_of_rows",
    "stored_files",
]


def sizes_of_rows(batch: pa.RecordBatch) -> pa.Array:
    """Return the stored bytes of each row, over the columns that are present."""
    sizes = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for name in batch.schema.names:
        if name != "key_group":
            lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
            sizes = pc.add(sizes, pc.cast(lengths, pa.int64()))
    return sizes


CHANNELS: Final = "records in flight"
SOURCES: Final = "how far the sources are read"


@frozen
class CheckpointFile:
    """A file with its operator (None for source progress), its states and the checkpoints that need it."""

    path: str
    size_bytes: int
    operator_uid: str | None
    states: tuple[str, ...]
    checkpoint_ids: tuple[int, ...] = field(default=())


def stored_files(checkpoints: Sequence[CheckpointMetadata]) -> Sequence[CheckpointFile]:
    """Return every file that the checkpoints need, once, sorted by path. Reads no file.

    Raises:
        StateRestoreError: The meta of an operator is damaged.
    """
    found: dict[str, tuple[FileHandle, str | None, dict[str, None], dict[int, None]]] = {}
    for metadata in checkpoints:
        for uid, state, file in _files(metadata):
            known = found.setdefault(file.path, (file, uid, {}, {}))
            known[2][state] = None
            known[3][metadata.checkpoint_id] = None
    return [
        CheckpointFile(path, file.size_bytes, uid, tuple(states), tuple(checkpoint_ids))
        for path, (file, uid, states, checkpoint_ids) in sorted(found.items())
    ]


def _files(metadata: CheckpointMetadata) -> Iterator[tuple[str | None, str, FileHandle]]:
    for operator in metadata.operators:
        for subtask in operator.subtasks:
            for state, file in _files_of_subtask(subtask):
                yield operator.uid, state, file
    for file in metadata.source_progress_files:
        yield None, SOURCES, file


def _files_of_subtask(subtask: SubtaskState) -> Iterator[tuple[str, FileHandle]]:
    if subtask.keyed is not None:
        yield from _keyed_files(subtask.keyed)
    for state in decode_operator_state(subtask.operator).states:
        for part in state.parts:
            yield from ((state.name, one.file) for one in part.slices)
    for channels in (subtask.input_channels, subtask.output_channels):
        yield from ((CHANNELS, file) for file in (() if channels is None else channels.files))


def _keyed_files(handle: KeyedStateHandle) -> Iterator[tuple[str, FileHandle]]:
    named = set()
    for name, files in files_of_states(handle):
        for file, stored in files:
            named.add(file.index)
            yield name, stored
    # Other files belong to the backend itself.
    yield from (("", stored) for index, stored in enumerate(handle.files) if index not in named)


@frozen
class OperatorSizes:
    """Sizes of one operator: by subtask, and of the files of each keyed state."""

    uid: str
    name: str
    size_bytes: int
    bytes_by_subtask: tuple[int, ...]
    bytes_by_state: Mapping[str, int] = field(factory=dict)

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return len(self.bytes_by_subtask)

    @property
    def skew(self) -> float:
        """The skew of the subtask sizes, see `skew_of`."""
        return skew_of(self.bytes_by_subtask)


@frozen(kw_only=True)
class CheckpointSizes:
    """Sizes and times of one checkpoint or savepoint. Times are in milliseconds, None if unknown."""

    checkpoint_id: int
    kind: str
    job_name: str
    job_id: str
    timestamp_ms: int
    processing_time_ms: int | None
    watermark_ms: int | None
    max_parallelism: int
    size_bytes: int
    file_count: int
    operators: tuple[OperatorSizes, ...]


def checkpoint_sizes(metadata: CheckpointMetadata) -> CheckpointSizes:
    """Return the sizes of a checkpoint from its metadata."""
    watermarks = metadata.watermarks
    return CheckpointSizes(
        checkpoint_id=metadata.checkpoint_id,
        kind=metadata.kind.value.lower(),
        job_name=metadata.job_name,
        job_id=metadata.job_id,
        timestamp_ms=metadata.timestamp_ms,
        processing_time_ms=metadata.processing_time_ms,
        watermark_ms=None if watermarks is None else watermarks.watermark_ms,
        max_parallelism=metadata.max_parallelism,
        size_bytes=metadata.size_bytes,
        file_count=len(metadata.files),
        operators=tuple(_operator_sizes(one) for one in metadata.operators),
    )


def _operator_sizes(operator: OperatorState) -> OperatorSizes:
    by_state: dict[str, dict[str, int]] = {}
    for handle in operator.keyed_handles:
        # Only the backend knows the meaning of its meta.
        with suppress(StateBackendError):
            for name, files in files_of_states(handle):
                by_state.setdefault(name, {}).update((stored.path, stored.size_bytes) for _, stored in files)
    by_subtask = tuple(subtask.size_bytes for subtask in operator.subtasks)
    return OperatorSizes(
        operator.uid,
        operator.name,
        operator.size_bytes,
        by_subtask,
        {name: sum(files.values()) for name, files in by_state.items()},
    )


LARGEST = 10
"""The number of largest entries to keep."""


@frozen(order=True)
class LargeEntry:
    """The size and address of an entry. The key is in its stored bytes."""

    size_bytes: int
    key_group: int
    key: bytes
    namespace: bytes
    user_key: bytes | None = field(order=False)


@define
class EntryStatistics:
    """Statistics of the entries passed to `add`. Memory is bounded except for one counter per key group."""

    entries: int = 0
    size_bytes: int = 0
    entries_by_key_group: Counter[int] = field(factory=Counter)
    _largest: list[LargeEntry] = field(factory=list, repr=False)

    def add(self, batches: Iterable[pa.RecordBatch], *, is_list: bool) -> None:
        """Count sorted rows. With ``is_list``, consecutive rows of one key and namespace are one entry."""
        if is_list:
            self._add_lists(batches)
            return
        for batch in batches:
            sizes = sizes_of_rows(batch)
            self.entries += batch.num_rows
            self.size_bytes += pc.sum(sizes).as_py() or 0
            for one in pc.value_counts(batch.column("key_group")).to_pylist():
                self.entries_by_key_group[one["values"]] += one["counts"]
            for index in pc.select_k_unstable(sizes, LARGEST, [("", "descending")]).to_pylist():
                # Without the value, which may be as large as the memory.
                key_group, key, namespace, user_key = (
                    batch.column(name)[index].as_py() for name in ("key_group", "key", "namespace", "user_key")
                )
                self._keep(sizes[index].as_py(), key_group, key, namespace, user_key)

    def _add_lists(self, batches: Iterable[pa.RecordBatch]) -> None:
        place: tuple[int, bytes, bytes] | None = None
        size_bytes = 0
        for batch in batches:
            columns = [batch.column(name).to_pylist() for name in ("key_group", "key", "namespace")]
            for *address, row_bytes in zip(*columns, sizes_of_rows(batch).to_pylist(), strict=True):
                if place == tuple(address):
                    size_bytes += row_bytes
                    continue
                if place is not None:
                    self._count(size_bytes, *place, None)
                place, size_bytes = (address[0], address[1], address[2]), row_bytes
        if place is not None:
            self._count(size_bytes, *place, None)

    @property
    def largest(self) -> tuple[LargeEntry, ...]:
        """The largest entries, largest first."""
        return tuple(sorted(self._largest, reverse=True))

    @property
    def skew(self) -> float:
        """The most entries in a key group divided by the mean over non-empty groups, 1.0 if all are equal."""
        if not self.entries:
            return 1.0
        return max(self.entries_by_key_group.values()) * len(self.entries_by_key_group) / self.entries

    def _count(self, size_bytes: int, key_group: int, key: bytes, namespace: bytes, user_key: bytes | None) -> None:
        self.entries += 1
        self.size_bytes += size_bytes
        self.entries_by_key_group[key_group] += 1
        self._keep(size_bytes, key_group, key, namespace, user_key)

    def _keep(self, size_bytes: int, key_group: int, key: bytes, namespace: bytes, user_key: bytes | None) -> None:
        if len(self._largest) < LARGEST:
            heapq.heappush(self._largest, LargeEntry(size_bytes, key_group, key, namespace, user_key))
        elif size_bytes > self._largest[0].size_bytes:
            heapq.heapreplace(self._largest, LargeEntry(size_bytes, key_group, key, namespace, user_key))
