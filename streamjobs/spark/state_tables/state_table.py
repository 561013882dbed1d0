"""What a table of state is to Spark: columns, parts that tasks read one by one, and batches of rows in Arrow.

A table travels to the tasks by pickling, and so do its parts. It is of one checkpoint or savepoint, which was chosen
when the table was made; what a job does afterwards does not change it. A task reads nothing but its part and the files
that the part names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import pyarrow as pa

from streamjobs.spark.state_tables.key_pruning import KeyCondition

__all__ = ["SparkTable"]


class SparkTable(Protocol):
    """See the module; picklable."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, all that there are."""

    def parts(self, conditions: Sequence[KeyCondition]) -> Sequence[Any]:
        """What tasks read, one part each; rows for which not all conditions hold may be left out, or not."""

    def batches(self, part: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a part with these columns, in this order; what is not asked for is not read or decoded."""
