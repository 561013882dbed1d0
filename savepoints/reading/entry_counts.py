"""How many entries a state has, from as little of its files as can tell: nothing is decoded.

Entries are what `EntryReader` gives one by one. But for lists each row is an entry, so of a savepoint's files only the
column of key groups is read, which takes next to nothing; of lists the rows of one key and namespace are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from statebackend.keyed.state_meta import StateMeta
from statebackend.kinds.state_kind import TableForm

__all__ = ["counted_columns", "entries_in"]

_ADDRESS: Final = ("key_group", "key", "namespace")


def counted_columns(state: StateMeta) -> Sequence[str]:
    """The columns of its rows by which the entries of a state are counted."""
    return _ADDRESS if state.form is TableForm.LIST else _ADDRESS[:1]


def entries_in(state: StateMeta, batches: Iterable[pa.RecordBatch]) -> int:
    """The number of entries in rows with `counted_columns`, which come sorted."""
    if state.form is not TableForm.LIST:
        return sum(batch.num_rows for batch in batches)
    entries = 0
    last: pa.RecordBatch | None = None
    for batch in batches:
        entries += pc.sum(starts_of_lists(batch, last)).as_py() or 0
        last = batch.slice(batch.num_rows - 1)
    return entries


def starts_of_lists(batch: pa.RecordBatch, row_before: pa.RecordBatch | None) -> pa.BooleanArray:
    """Which rows have another key group, key or namespace than the row before them."""
    whole = batch if row_before is None else pa.concat_batches([row_before, batch])
    now, before = whole.slice(1), whole.slice(0, whole.num_rows - 1)
    differ = pa.array([False] * now.num_rows, pa.bool_())
    for name in _ADDRESS:
        differ = pc.or_(differ, pc.not_equal(now.column(name), before.column(name)))
    return differ if row_before is not None else pa.concat_arrays([pa.array([True]), differ])
