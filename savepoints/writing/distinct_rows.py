"""Rows of one address, found among sorted rows: refused, merged by a function, or let through where they are a list's.

Whether there are any is a comparison of each column with itself, shifted by one row. Only where there are some are rows
looked at by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

__all__ = ["MergingRepeated", "RefusingRepeated", "Repeated"]

_ADDRESS = ("key_group", "key", "namespace", "user_key")

Merge = Callable[[pa.RecordBatch], bytes]
"""From the rows of one address, in their order, to the value of the one row that takes their place."""

RefuseRepeated = Callable[[pa.RecordBatch], Exception]
"""From the first two rows of one address to what to raise."""

Repeated = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""What becomes of sorted rows; picklable if what it was made of is."""


@frozen
class RefusingRepeated:
    """Raises the refusal for the first address that has two rows."""

    refusal: RefuseRepeated

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        last: pa.RecordBatch | None = None
        for batch in batches:
            if last is not None and _is_same(last, batch.slice(0, 1)):
                raise self.refusal(pa.concat_batches([last, batch.slice(0, 1)]))
            repeats = _repeats(batch)
            first = -1 if repeats is None else pc.index(repeats, True).as_py()
            if first >= 0:
                raise self.refusal(batch.slice(first, 2))
            yield batch
            last = batch.slice(batch.num_rows - 1)


@frozen
class MergingRepeated:
    """Puts one row in the place of those of an address. Memory holds a batch, and the rows of one address."""

    merge: Merge

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        for batch in batches:
            if held and _is_same(held[-1], batch):
                if _start_of_last(batch) == 0:
                    # All of it is of the address that is held: put together once, when its last row is there.
                    held.append(batch)
                    continue
                batch, held = pa.concat_batches([*held, batch]), []
            elif held:
                yield _merged_rows(pa.concat_batches(held), self.merge)
                held = []
            # The last address may go on in the next batch.
            start = _start_of_last(batch)
            if start:
                yield _merged_rows(batch.slice(0, start), self.merge)
            held = [batch.slice(start)]
        if held:
            yield _merged_rows(pa.concat_batches(held), self.merge)


def _repeats(batch: pa.RecordBatch) -> pa.Array | None:
    """For each row but the last, whether the next has the same address; None if there is no next."""
    count = batch.num_rows - 1
    if count < 1:
        return None
    same = None
    for name in _ADDRESS:
        if name in batch.schema.names:
            one, other = batch.column(name).slice(0, count), batch.column(name).slice(1, count)
            equal = pc.equal(one, other)
            same = equal if same is None else pc.and_(same, equal)
    return same


def _is_same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Whether the last row of one and the first of the other have one address."""
    return all(
        one.column(name)[-1].as_py() == other.column(name)[0].as_py() for name in _ADDRESS if name in one.schema.names
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
        # An element of a queue has nothing that could be merged.
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
