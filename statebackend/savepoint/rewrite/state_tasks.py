"""Tasks that write one state. They share only files in scratch space, so they may run in any process.

| Task | Input → output | Count |
|---|---|---|
| collect | entries or stored rows → steps → key groups → sorted runs | one per input |
| write | sorted runs of some key groups → rows of one address → Parquet | one per part |
| rewrite | stored rows → steps → Parquet, order unchanged | one per part |

A part is one range of key groups and becomes one file. Results are small: file paths, row counts, the serializers after
writing (some learn types while they write), and the earliest timer.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from attrs import define, evolve, field, frozen

from snapshots.errors import EndOfDataError, MalformedDataError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.rewrite.entry_codec import EntryBatch, canonical, decoded, joined_chunks
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.sorted_rows import (
    MEMORY_BYTES,
    MergingRepeated,
    Repeated,
    RowSorter,
    Run,
    bounded_batches,
    merged_runs,
)
from statebackend.savepoint.rewrite.steps import Step
from statebackend.savepoint.stored_entries import stored_columns
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.canonical import write_canonical_columns
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.progress import Operation, ProgressListener, StateProgress, no_progress
from statebackend.state.state_meta import StateMeta

_EMPTY_LIST: Final = pa.scalar(bytes(4), pa.binary())


class RowSource(Protocol):
    """A source of rows in the schema of the new savepoint."""

    def rows(self, schema: EntrySchema, placement: KeyPlacement | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows, with key groups of the placement, or with unchanged key groups without one."""

    @property
    def left_out(self) -> Counter[int]:
        """Return the removed rows by the number of their change, after all rows were read."""


@frozen
class ProgressLabel:
    """The operator, state and subtask in the progress of a task."""

    operator_uid: str
    state_name: str
    index: int

    def progress(
        self, listener: ProgressListener, operation: Operation, total_bytes: int | None = None
    ) -> StateProgress:
        """Return an object that reports progress to the listener."""
        return StateProgress(
            lambda one: listener(evolve(one, subtask_index=self.index)),
            operation,
            self.operator_uid,
            self.state_name,
            total_bytes,
        )


@frozen
class StoredState:
    """A stored state of one subtask, with the steps for its entries."""

    handle: KeyedStateHandle
    state_name: str
    file_system: CheckpointFileSystem
    max_parallelism: int
    schema: EntrySchema
    steps: tuple[Step, ...] = ()
    joins_chunks: bool = False
    """Whether to join the chunks of a list even if no step reads values. Two rows of one key are then two lists."""
    uncounted_steps: int = 0
    left_out: Counter[int] = field(factory=Counter, init=False, eq=False)

    def rows(self, schema: EntrySchema, placement: KeyPlacement | None) -> Iterator[pa.RecordBatch]:
        """Yield the transformed rows. Raises errors of reading, steps and serializers."""
        try:
            for batch in self._narrow_rows(schema):
                entries = EntryBatch(self.schema, batch, {})
                for place, step in enumerate(self.steps):
                    before, entries = len(entries), step.apply(entries)
                    if step.change_number is not None and place >= self.uncounted_steps:
                        self.left_out[step.change_number] += before - len(entries)
                if len(entries):
                    yield entries.written(schema, placement)
        except (EndOfDataError, MalformedDataError) as error:
            files = ", ".join(self.file_system.location(file.path) for file in self.handle.files)
            raise StateRestoreError(
                f"state {self.state_name!r}: an entry cannot be read from {files}: {error}"
            ) from error

    def _narrow_rows(self, schema: EntrySchema) -> Iterator[pa.RecordBatch]:
        rows = (batch.select(list(self.schema.row_columns)) for batch in self._batches())
        is_read = not schema.has_values_of(self.schema) or any(step.reads_values for step in self.steps)
        if self.schema.is_list and (self.joins_chunks or is_read):
            return MergingRepeated(joined_chunks)(rows)
        return rows

    def _batches(self) -> Iterator[pa.RecordBatch]:
        restored = RestoredHandle(self.handle, self.file_system)
        state = restored.meta.state(self.state_name)
        if state is None:
            return
        every = KeyGroupRange(0, self.max_parallelism - 1)
        for batch in stored_columns(restored, state, self.max_parallelism, (every,)):
            if batch.column("value").null_count:
                raise StateRestoreError(
                    f"state {self.state_name!r} has a row that is a removal, so the state is not complete"
                )
            yield batch


@frozen
class Collected:
    """The rows of one input as sorted runs, and the serializers after writing them."""

    runs: tuple[Run, ...]
    meta: StateMeta
    rows: int
    left_out: Counter[int] = field(factory=Counter)


@frozen
class CollectTask:
    """Reads one input and sorts its rows in the scratch directory."""

    source: RowSource
    schema: EntrySchema
    placement: KeyPlacement | None
    scratch_directory: str
    label: ProgressLabel
    memory_bytes: int = MEMORY_BYTES

    def run(self, progress: ProgressListener = no_progress) -> Collected:
        """Run the task. Raises the errors of the source."""
        sorter, rows = RowSorter(self.scratch_directory, self.memory_bytes), 0
        state_progress = self.label.progress(progress, Operation.READ)
        for batch in self.source.rows(self.schema, self.placement):
            rows += batch.num_rows
            sorter.add(batch)
            state_progress.add(batch.num_rows, batch.nbytes)
        state_progress.done()
        return Collected(sorter.finish(), self.schema.meta(), rows, self.source.left_out)


@frozen
class ScratchPart:
    """A file of rows in the scratch directory, or none without rows. A list is one entry, of one or more rows."""

    path: str | None
    entries: int
    meta: StateMeta
    earliest_ms: int | None
    """The time of the earliest timer of a timer queue."""
    left_out: Counter[int] = field(factory=Counter)


@frozen
class WriteTask:
    """Merges the rows of some key groups from sorted runs into a file."""

    runs: tuple[Run, ...]
    schema: EntrySchema
    key_groups: KeyGroupRange
    repeated: Repeated | None
    scratch_directory: str
    label: ProgressLabel

    def run(self, progress: ProgressListener = no_progress) -> ScratchPart:
        """Run the task. Raises the error of ``repeated`` for rows of one address."""
        rows = merged_runs(self.runs, self.key_groups)
        kept = rows if self.repeated is None else self.repeated(rows)
        total_bytes = sum(run.size_within(self.key_groups) for run in self.runs)
        state_progress = self.label.progress(progress, Operation.SAVEPOINT, total_bytes)
        return _written(kept, self.schema, self.scratch_directory, state_progress)


@frozen
class RewriteTask:
    """Rewrites a part of a state in unchanged order."""

    source: RowSource
    schema: EntrySchema
    scratch_directory: str
    label: ProgressLabel

    def run(self, progress: ProgressListener = no_progress) -> ScratchPart:
        """Run the task. Raises the errors of the source."""
        state_progress = self.label.progress(progress, Operation.SAVEPOINT)
        written = _written(self.source.rows(self.schema, None), self.schema, self.scratch_directory, state_progress)
        return evolve(written, left_out=self.source.left_out)


@frozen
class _Earliest:
    """Tracks the earliest timer in batches."""

    schema: EntrySchema
    found: list[int] = field(factory=list)

    def watched(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if self.schema.is_timers and batch.num_rows:
                # The order of stored timers is the order of their times, but only within a key group.
                first = pc.index(batch.column("key"), pc.min_max(batch.column("key"))["min"]).as_py()
                self.found.append(decoded(self.schema, batch.slice(first, 1), "value")[0])
            yield batch

    @property
    def earliest_ms(self) -> int | None:
        return min(self.found, default=None)


@define
class _Entries:
    """Counts the entries in sorted batches."""

    schema: EntrySchema
    count: int = 0
    last: tuple[Any, ...] | None = None

    def watched(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in rows:
            if batch.num_rows:
                self.count += self._entries_beginning_in(batch) if self.schema.is_list else batch.num_rows
            yield batch

    def _entries_beginning_in(self, batch: pa.RecordBatch) -> int:
        """Return the number of rows whose key or namespace differs from the row before."""
        columns = [batch.column(name) for name in ("key", "namespace") if name in batch.schema.names]
        first, last = (tuple(column[index].as_py() for column in columns) for index in (0, -1))
        changes = (pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)) for column in columns)
        is_first_new, self.last = first != self.last, last
        return int(is_first_new) + (pc.sum(reduce(pc.or_, changes)).as_py() or 0)


def _written(
    rows: Iterator[pa.RecordBatch], schema: EntrySchema, directory: str, state_progress: StateProgress
) -> ScratchPart:
    path = os.path.join(directory, f"part-{uuid.uuid4().hex}.parquet")
    earliest, entries = _Earliest(schema), _Entries(schema)

    def pieces() -> Iterator[pa.RecordBatch]:
        for batch in entries.watched(earliest.watched(without_empty_lists(schema, rows))):
            yield from bounded_batches(batch)
            state_progress.add(batch.num_rows, batch.nbytes)

    count = write_canonical_columns(path, map(canonical, pieces()))
    state_progress.done()
    if not count:
        os.unlink(path)
    return ScratchPart(path if count else None, entries.count, schema.meta(), earliest.earliest_ms)


def without_empty_lists(schema: EntrySchema, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Leave out rows of lists without elements: a key with an empty list has no state."""
    if not schema.is_list:
        return rows
    return (batch.filter(pc.not_equal(batch.column("value"), _EMPTY_LIST)) for batch in rows)


def all_runs(collected: Sequence[Collected]) -> tuple[Run, ...]:
    """Return the runs of all inputs, in input order. Rows of one address keep this order."""
    return tuple(run for one in collected for run in one.runs)
