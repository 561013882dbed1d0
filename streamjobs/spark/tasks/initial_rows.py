"""The rows that a stateful processor begins with, as tasks get them: with the function, each takes its key groups'."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from attrs import frozen

from statebackend.api.key_groups import key_group_range_of_subtask
from streamjobs.operators.input_batch import place_of_input
from streamjobs.spark.tasks.arrow_input import KEY_GROUP_COLUMN, ArrowBatch, InputColumns, InputReader

__all__ = ["InitialRows"]


@frozen(eq=False)
class InitialRows:
    """All rows, with the key group of each beside it."""

    table: pa.Table
    columns: InputColumns
    max_parallelism: int
    operator_uid: str

    def batches(self, subtask_index: int, parallelism: int) -> Iterator[ArrowBatch]:
        """The rows of one subtask, with their keys."""
        groups = key_group_range_of_subtask(subtask_index, parallelism, self.max_parallelism)
        column = self.table.column(KEY_GROUP_COLUMN)
        own = pc.and_(pc.greater_equal(column, groups.start), pc.less_equal(column, groups.end))
        reader = InputReader(self.columns, place_of_input(self.operator_uid, 0, 1))
        for batch in self.table.filter(own).to_batches():
            if batch.num_rows:
                yield from reader.batches(batch)
