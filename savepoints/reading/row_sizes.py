"""How many bytes the rows of a state have, counted column by column."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["sizes_of_rows"]


def sizes_of_rows(batch: pa.RecordBatch) -> pa.Array:
    """The stored bytes of each row, of the columns that are there."""
    sizes = pa.repeat(pa.scalar(0, pa.int64()), batch.num_rows)
    for name in batch.schema.names:
        if name != "key_group":
            lengths = pc.fill_null(pc.binary_length(batch.column(name)), 0)
            sizes = pc.add(sizes, pc.cast(lengths, pa.int64()))
    return sizes
