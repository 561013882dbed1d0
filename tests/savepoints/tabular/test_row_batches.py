"""Rows in bounded batches: none lost, none moved, and a list whole wherever its chunks lie."""

from __future__ import annotations

from itertools import chain, groupby

from hypothesis import given
from hypothesis import strategies as st

from savepoints.tabular.row_batches import bounded, whole_lists
from statebackend.canonical.canonical_entries import CanonicalBatch

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.binary(max_size=2), st.just(b""), st.none(), st.binary(max_size=9)), max_size=12
).map(lambda rows: sorted(rows, key=lambda row: row[:3]))


def batches_of(rows: list, sizes: list[int]) -> list[CanonicalBatch]:
    """The rows in batches of these sizes, the rest in a last one; some may be empty."""
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


@given(ROWS, st.lists(st.integers(0, 4), max_size=4))
def test_lists_are_whole_wherever_their_chunks_lie(rows, sizes) -> None:
    found = chain.from_iterable(zip(*batch, strict=True) for batch in whole_lists(batches_of(rows, sizes)))
    expected = [(*place, None, [row[4] for row in own]) for place, own in groupby(rows, key=lambda row: row[:3])]
    assert list(found) == expected
