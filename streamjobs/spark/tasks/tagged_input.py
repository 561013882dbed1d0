"""The Arrow batches of a task whose operator has several inputs, taken apart into batches of one input each.

A row is a struct in the column of its input, and null in those of the others (see
`streamjobs.spark.plans.input_union`). Rows come sorted by input, so a batch is a few runs of rows of one input, and
each run is a batch of that input without a copy of its values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from streamjobs.rows.row_reader import column_values

__all__ = ["INPUT_COLUMN", "SUBTASK_COLUMN", "row_column_of_input", "runs_of_inputs"]

INPUT_COLUMN: Final = "__statebackend_input"
SUBTASK_COLUMN: Final = "__statebackend_subtask"


def row_column_of_input(index: int) -> str:
    """The column that has the rows of an input."""
    return f"{INPUT_COLUMN}_{index}"


def runs_of_inputs(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of a batch that follow each other and are of one input, with its index, as columns of that input."""
    runs = pc.run_end_encode(batch.column(INPUT_COLUMN))
    start = 0
    for end, index in zip(column_values(runs.run_ends), column_values(runs.values), strict=True):
        rows = batch.column(row_column_of_input(index)).slice(start, end - start)
        names = [rows.type.field(position).name for position in range(rows.type.num_fields)]
        yield index, pa.RecordBatch.from_arrays(rows.flatten(), names=names)
        start = end
