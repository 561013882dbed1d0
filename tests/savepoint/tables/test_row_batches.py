"""Rows in bounded batches: no row is lost or moved, and lists are complete for any batch sizes."""

from __future__ import annotations

from itertools import chain, groupby, pairwise

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statebackend.savepoint.statistics import sizes_of_rows
from statebackend.savepoint.tables.state_tables import bounded, bounded_columns, whole_lists
from statebackend.state.canonical import SCHEMA, CanonicalBatch

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=2), st.just(b""), st.none(), st.binary(max_size=9)), max_size=12
).map(lambda rows: sorted(rows, key=lambda row: row[:3]))


def batches_of(rows: list, sizes: list[int]) -> list[CanonicalBatch]:
    """The rows in batches of these sizes, and the rest in a last batch. Some batches may be empty."""
    made, start = [], 0
    for size in [*sizes, len(rows)]:
        part = rows[start : start + size]
        made.append(CanonicalBatch(*(list(column) for column in zip(*part, strict=True))) if part else EMPTY)
        start += size
    return made


EMPTY = CanonicalBatch([], [], [], [], [])


@given(ROWS, st.lists(st.integers(0, 4), max_size=4), st.integers(1, 4), st.integers(1, 20))
def test_batches_keep_all_rows_within_their_bounds(rows, sizes, max_rows, max_bytes) -> None:
    found = list(bounded(batches_of(rows, sizes), max_rows, max_bytes))
    assert list(chain.from_iterable(zip(*batch, strict=True) for batch in found)) == rows
    for batch in found:
        assert 1 <= len(batch.keys) <= max_rows
        assert len(batch.keys) == 1 or sum(map(len, chain(batch.keys, batch.values))) <= max_bytes


@given(ROWS, st.integers(1, 4), st.integers(1, 40))
def test_a_batch_ends_only_if_the_next_row_does_not_fit(rows, max_rows, max_bytes) -> None:
    for one, following in pairwise(bounded(batches_of(rows, []), max_rows, max_bytes)):
        together = chain(one.keys, one.values, following.keys[:1], following.values[:1])
        assert len(one.keys) == max_rows or sum(map(len, together)) > max_bytes
    columns = pa.record_batch([list(column) for column in zip(*rows, strict=True)] or [[]] * 5, schema=SCHEMA)
    found = list(bounded_columns([columns], max_rows, max_bytes))
    assert [row for batch in found for row in batch.to_pylist()] == columns.to_pylist()
    for one, following in pairwise(found):
        together = [*sizes_of_rows(one).to_pylist(), *sizes_of_rows(following).to_pylist()[:1]]
        assert one.num_rows == max_rows or sum(together) > max_bytes


@given(ROWS, st.lists(st.integers(0, 4), max_size=4))
def test_lists_are_complete_in_any_chunking(rows, sizes) -> None:
    found = chain.from_iterable(zip(*batch, strict=True) for batch in whole_lists(batches_of(rows, sizes)))
    expected = [(*place, None, [row[4] for row in own]) for place, own in groupby(rows, key=lambda row: row[:3])]
    assert list(found) == expected
