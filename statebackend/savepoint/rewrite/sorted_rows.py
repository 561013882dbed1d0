"""External sort of canonical rows: any number of rows in any order within bounded memory.

1. Rows are buffered as Arrow columns up to `memory_bytes`, sorted by Arrow and written as a run, in batches of at most
   1 MiB.
2. Runs are merged, up to `FAN_IN` at once; more runs are first merged into longer ones.

The order is canonical: (key group, key, namespace, user key) as unsigned bytes. Columns without data (the single
namespace, null user keys) are omitted, so no column has nulls. The sort is stable over all runs: it keeps the chunks of
a list in order, and in a merge the entry of the earlier input is first.

Merging does not compare single rows. The smallest last address in the current batches of all runs is the bound: rows up
to it can be emitted. Each batch is cut at the bound by binary search, and the parts are concatenated in the order of
the runs and sorted by Arrow. To stay stable, runs before the run of the bound are cut after the bound, later runs
before it.

Repeated addresses are found by comparing each column with itself, shifted by one row. Only if there are repeats, single
rows are compared, and then rejected or merged.

Memory holds `memory_bytes` while rows are added (and a sorted copy while a run is written), then one batch per run. A
larger single row is its own batch.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from statebackend.state.canonical import BATCH_BYTES, BATCH_ROWS
from statebackend.state.key_groups import KeyGroupRange

__all__ = [
    "MEMORY_BYTES",
    "MOST_RUNS",
    "MergingRepeated",
    "RejectingRepeated",
    "Repeated",
    "RowSorter",
    "Run",
    "bounded_batches",
    "fewer_runs",
    "merged_runs",
    "sorted_batch",
]


_DISTINCT_ADDRESS = ("key_group", "key", "namespace", "user_key")

Merge = Callable[[pa.RecordBatch], bytes]
"""Returns the merged value of the rows of one address, in order."""

RejectRepeated = Callable[[pa.RecordBatch], Exception]
"""Returns the error for the first two rows of one address."""

Repeated = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""Processes sorted rows with repeated addresses. Picklable if its functions are."""


@frozen
class RejectingRepeated:
    """Raises the error for the first address that has two rows."""

    rejection: RejectRepeated

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last: pa.RecordBatch | None = None
        for batch in batches:
            if last is not None and _is_same(last, batch.slice(0, 1)):
                raise self.rejection(pa.concat_batches([last, batch.slice(0, 1)]))
            repeats = _repeats(batch)
            first = -1 if repeats is None else pc.index(repeats, True).as_py()
            if first >= 0:
                raise self.rejection(batch.slice(first, 2))
            yield batch
            last = batch.slice(batch.num_rows - 1)


@frozen
class MergingRepeated:
    """Merges the rows of each address into one. Memory holds a batch and the rows of one address."""

    merge: Merge

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        pending: list[pa.RecordBatch] = []
        for batch in batches:
            if pending and _is_same(pending[-1], batch):
                if _start_of_last(batch) == 0:
                    # All rows of the batch have the address of the last row. Concatenate after the last such batch.
                    pending.append(batch)
                    continue
                batch, pending = pa.concat_batches([*pending, batch]), []
            elif pending:
                yield _merged_rows(pa.concat_batches(pending), self.merge)
                pending = []
            # The next batch may continue the last address.
            start = _start_of_last(batch)
            if start:
                yield _merged_rows(batch.slice(0, start), self.merge)
            pending = [batch.slice(start)]
        if pending:
            yield _merged_rows(pa.concat_batches(pending), self.merge)


def _repeats(batch: pa.RecordBatch) -> pa.Array | None:
    """For each row but the last, whether the next one has the same address; None if no row does."""
    count = batch.num_rows - 1
    if count < 1:
        return None
    same = None
    for name in _DISTINCT_ADDRESS:
        if name in batch.schema.names:
            one, other = batch.column(name).slice(0, count), batch.column(name).slice(1, count)
            equal = pc.equal(one, other)
            same = equal if same is None else pc.and_(same, equal)
    return same


def _is_same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether the last row of one batch and the first of the other have the same address."""
    return all(
        one.column(name)[-1].as_py() == other.column(name)[0].as_py()
        for name in _DISTINCT_ADDRESS
        if name in one.schema.names
    )


def _start_of_last(batch: pa.RecordBatch) -> int:
    repeats = _repeats(batch)
    if repeats is None:
        return 0
    flags = repeats.to_pylist()
    start = len(flags)
    while start and flags[start - 1]:
        start -= 1
    return start


def _merged_rows(batch: pa.RecordBatch, merge: Merge) -> pa.RecordBatch:
    repeats = _repeats(batch)
    if repeats is None or not pc.any(repeats).as_py():
        return batch
    if "value" not in batch.schema.names:
        # Queue elements have no values to merge.
        return batch.filter(pa.array([True, *(not flag for flag in repeats.to_pylist())]))
    flags = repeats.to_pylist()
    firsts, values = [], []
    start = 0
    column = batch.column("value").to_pylist()
    for row in range(batch.num_rows):
        if row == len(flags) or not flags[row]:
            firsts.append(start)
            values.append(column[start] if start == row else merge(batch.slice(start, row + 1 - start)))
            start = row + 1
    kept = batch.take(pa.array(firsts, pa.int64()))
    return kept.set_column(kept.schema.get_field_index("value"), "value", pa.array(values, pa.binary()))


MEMORY_BYTES: Final = 64 << 20
"""The bytes of rows in memory before they are written as a run."""

FAN_IN: Final = 64
"""The number of runs that are merged at once."""

MOST_RUNS: Final = 256
"""The maximum number of runs of a state that are merged at once. Most systems allow about a thousand open files."""

_RUN_BATCH_BYTES: Final = 1 << 20

_ADDRESS: Final = ("key_group", "key", "namespace", "user_key")


@frozen
class Run:
    """A file of sorted rows in scratch space. Picklable. ``key_groups`` are the first and last of each batch."""

    path: str
    key_groups: tuple[tuple[int, int], ...]
    size_bytes: int

    def size_within(self, wanted: KeyGroupRange) -> int:
        """Return the approximate bytes of the rows in these key groups."""
        overlapping = sum(wanted.overlaps(KeyGroupRange(*own)) for own in self.key_groups)
        return self.size_bytes * overlapping // max(1, len(self.key_groups))

    def batches(self, wanted: KeyGroupRange | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the wanted key groups; by default all."""
        with pa.memory_map(self.path) as source, pa.ipc.open_file(source) as file:
            for index, own in enumerate(self.key_groups):
                if wanted is None or wanted.contains_range(KeyGroupRange(*own)):
                    yield file.get_batch(index)
                elif wanted.overlaps(KeyGroupRange(*own)):
                    batch = file.get_batch(index)
                    groups = batch.column("key_group")
                    yield batch.filter(
                        pc.and_(pc.greater_equal(groups, wanted.start), pc.less_equal(groups, wanted.end))
                    )


class RowSorter:
    """Sorts batches of rows, which have the relevant address columns and possibly others."""

    def __init__(self, directory: str, memory_bytes: int = MEMORY_BYTES) -> None:
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._pending: list[pa.RecordBatch] = []
        self._pending_bytes = 0
        self._runs: list[Run] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows. May write a run."""
        if batch.num_rows:
            self._pending.append(batch)
            self._pending_bytes += batch.nbytes
            if self._pending_bytes >= self._memory_bytes:
                self._write_run()

    def finish(self) -> tuple[Run, ...]:
        """Return all rows as at most `FAN_IN` runs, in order. Without rows there are no runs."""
        if self._pending:
            self._write_run()
        return fewer_runs(self._runs, self._directory, FAN_IN)

    def _write_run(self) -> None:
        run = sorted_batch(_whole(self._pending))
        self._pending, self._pending_bytes = [], 0
        self._runs.append(_written([run], self._directory))


def fewer_runs(runs: Sequence[Run], directory: str, most: int = MOST_RUNS) -> tuple[Run, ...]:
    """Merge neighbouring runs until at most ``most`` are left. Merged runs are deleted.

    Each run in a merge is an open file, so their number is limited.
    """
    remaining = list(runs)
    while len(remaining) > most:
        groups = [remaining[start : start + FAN_IN] for start in range(0, len(remaining), FAN_IN)]
        remaining = [_merged(group, directory) if len(group) > 1 else group[0] for group in groups]
    return tuple(remaining)


def _merged(runs: Sequence[Run], directory: str) -> Run:
    longer = _written(merged_runs(runs), directory)
    for run in runs:
        os.unlink(run.path)
    return longer


def _written(batches: Iterable[pa.RecordBatch], directory: str) -> Run:
    path = os.path.join(directory, f"run-{uuid.uuid4().hex}.arrow")
    key_groups: list[tuple[int, int]] = []
    size_bytes = 0
    writer: Any = None
    try:
        for batch in batches:
            if writer is None:
                writer = pa.ipc.new_file(path, batch.schema)
            for piece in bounded_batches(batch, _RUN_BATCH_BYTES):
                groups = piece.column("key_group")
                key_groups.append((groups[0].as_py(), groups[-1].as_py()))
                size_bytes += piece.nbytes
                writer.write_batch(piece)
    finally:
        if writer is not None:
            writer.close()
    return Run(path, tuple(key_groups), size_bytes)


def sorted_batch(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows in canonical order; rows of one address keep their order."""
    keys = [(name, "ascending") for name in _ADDRESS if name in batch.schema.names]
    return batch.take(pc.sort_indices(batch, sort_keys=keys))


def bounded_batches(batch: pa.RecordBatch, most_bytes: int = BATCH_BYTES) -> Iterator[pa.RecordBatch]:
    """Split rows into batches of at most `BATCH_ROWS` rows and ``most_bytes``. A larger row is its own batch."""
    if batch.num_rows <= 1 or (batch.num_rows <= BATCH_ROWS and batch.nbytes <= most_bytes):
        if batch.num_rows:
            yield batch
        return
    # Full batches first, so that only the last one is smaller.
    middle = BATCH_ROWS if batch.num_rows > BATCH_ROWS else batch.num_rows // 2
    yield from bounded_batches(batch.slice(0, middle), most_bytes)
    yield from bounded_batches(batch.slice(middle), most_bytes)


def merged_runs(runs: Sequence[Run], wanted: KeyGroupRange | None = None) -> Iterator[pa.RecordBatch]:
    """Yield the rows of all runs in the wanted key groups, sorted."""
    if len(runs) == 1:
        yield from (batch for batch in runs[0].batches(wanted) if batch.num_rows)
        return
    cursors = [cursor for run in runs if (cursor := _Cursor(run.batches(wanted))).has_rows]
    while cursors:
        bounds = [cursor.last for cursor in cursors]
        first = min(range(len(cursors)), key=bounds.__getitem__)
        bound = bounds[first]
        pieces = [cursor.cut(bound, index <= first) for index, cursor in enumerate(cursors)]
        filled = [piece for piece in pieces if piece.num_rows]
        yield filled[0] if len(filled) == 1 else sorted_batch(_whole(filled))
        cursors = [cursor for cursor in cursors if cursor.has_rows]


_Address = tuple[Any, ...]


class _Cursor:
    """The remaining rows of a run, one batch at a time."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._next()

    def _next(self) -> None:
        self._batch: pa.RecordBatch | None = next((batch for batch in self._batches if batch.num_rows), None)
        if self._batch is not None:
            self._columns = [self._batch.column(name) for name in _ADDRESS if name in self._batch.schema.names]

    @property
    def has_rows(self) -> bool:
        return self._batch is not None

    @property
    def last(self) -> _Address:
        assert self._batch is not None
        return self._address(self._batch.num_rows - 1)

    def cut(self, bound: _Address, with_bound: bool) -> pa.RecordBatch:
        """Remove and return the rows below the bound, including the bound if ``with_bound``."""
        assert self._batch is not None
        low, high = 0, self._batch.num_rows
        while low < high:
            middle = (low + high) // 2
            address = self._address(middle)
            if address < bound or (with_bound and address == bound):
                low = middle + 1
            else:
                high = middle
        taken, rest = self._batch.slice(0, low), self._batch.slice(low)
        if rest.num_rows:
            self._batch = rest
            self._columns = [rest.column(name) for name in _ADDRESS if name in rest.schema.names]
        else:
            self._next()
        return taken

    def _address(self, row: int) -> _Address:
        return tuple(column[row].as_py() for column in self._columns)


def _whole(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
