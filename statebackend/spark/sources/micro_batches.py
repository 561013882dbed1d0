"""A `MicroBatchSource` as a streaming DataFrame, by Spark's interface for data sources in Python.

The driver plans each micro-batch: it asks the source for the ends of its splits, and Spark's offset log stores the
planned positions before the batch runs. Each task then reads one split between two positions. So a batch that runs
again reads the same records.

    {"payments-0": 17, "payments-1": 4}      an offset: the position of each split; see `SplitOffset`

A new split gets its first position in one batch, and its first records in the next. So the log has the positions
between which each record was read, although the first position of a split may change later.

Spark keeps the source in a process of its own, which is not the driver's. Its class has no importable name, so its
settings, such as passwords, are pickled with the query and are not among the options that Spark prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from statebackend.spark.columns import nullable_type, struct_type_of, to_arrow_schema
from statebackend.streaming.errors import JobDefinitionError, StreamJobError
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.row_writer import RowWriter
from statebackend.streaming.runtime.source_offsets import SOURCE_FORMAT, SplitOffset
from statebackend.streaming.stream_graph import MicroBatchSource

__all__ = ["frame_of", "limited_ends"]


def frame_of(
    spark: SparkSession, source: MicroBatchSource, schema: DeclaredSchema, epoch_size: int | None
) -> DataFrame:
    """Return a streaming DataFrame of the records. Raises `JobDefinitionError` before Spark 4.2."""
    try:
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
    except ImportError:
        raise JobDefinitionError(
            f"from_source() needs Spark 4.2 or later, and this is {spark.version}: earlier versions cannot limit a "
            f"micro-batch of a source in Python"
        ) from None
    struct = nullable_type(struct_type_of(schema.arrow))

    class Reader(_Reader, SupportsTriggerAvailableNow):
        def getDefaultReadLimit(self) -> Any:  # noqa: N802
            return ReadAllAvailable() if epoch_size is None else ReadMaxRows(epoch_size)

        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            self.last = dict(self.source.end_positions())

    class Source(DataSource):
        @classmethod
        def name(cls) -> str:
            return SOURCE_FORMAT

        def schema(self) -> StructType:
            return struct

        def streamReader(self, schema: StructType) -> Reader:  # noqa: N802
            return Reader(source, declared)

    declared = schema
    spark.dataSource.register(Source)
    return spark.readStream.format(SOURCE_FORMAT).load()


class _Range(InputPartition):
    """The records of a split from one position up to another."""

    def __init__(self, split: str, start: int, end: int) -> None:
        self.split, self.start, self.end = split, start, end


class _Reader(DataSourceStreamReader):
    """Plans the micro-batches in one process, and reads them in the tasks."""

    def __init__(self, source: MicroBatchSource, schema: DeclaredSchema) -> None:
        self.source = source
        self.last: dict[str, int] | None = None
        """The positions where a query with the trigger ``availableNow`` ends."""
        self._schema = schema
        self._ends: dict[str, int] = {}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return self._identified(SplitOffset(dict(self.source.splits()))).to_json()

    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:  # noqa: N802
        ends = self._ends = dict(self.source.end_positions()) if self.last is None else self.last
        stored = self._identified(SplitOffset.of_json(start))
        for split, position in stored.positions.items():
            if split not in ends:
                raise StreamJobError(
                    f"{self.source!r}: split {split!r}, which was read up to position {position}, no longer exists, so "
                    f"its other records would be lost. Restore the split, or give the source another uid and pass "
                    f"allow_dropped_sources="
                )
            if ends[split] < position:
                raise StreamJobError(
                    f"{self.source!r}: split {split!r} was read up to position {position}, and now ends at "
                    f"{ends[split]}: it was deleted and created again. Give the source another uid, and pass "
                    f"allow_dropped_sources="
                )
        known = {split: ends[split] for split in stored.positions}
        planned = limited_ends(stored.positions, known, getattr(limit, "max_rows", None))
        new = {split: self.source.position_of_new_split(split) for split in ends if split not in known}
        offset = SplitOffset({**planned, **new}, stored.identities)
        return (self._identified(offset) if new else offset).to_json()

    def _identified(self, offset: SplitOffset) -> SplitOffset:
        return offset.identified_by(self.source, repr(self.source), "allow_dropped_sources=")

    def reportLatestOffset(self) -> dict[str, int] | None:  # noqa: N802
        return self._ends or None

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[_Range]:
        first = SplitOffset.of_json(start).positions
        return [_Range(split, first[split], end[split]) for split in sorted(first) if first[split] < end[split]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)
        writer = RowWriter(self._schema.arrow, f"{self.source!r}, split {partition.split!r}")
        columns = to_arrow_schema(nullable_type(struct_type_of(self._schema.arrow)), "UTC")
        for records in self.source.read_range(partition.split, partition.start, partition.end):
            for batch in writer.batches(records):
                yield batch.cast(columns)

    def stop(self) -> None:
        close = getattr(self.source, "close", None)
        if close is not None:
            close()


def limited_ends(start: Mapping[str, int], ends: Mapping[str, int], max_rows: int | None) -> dict[str, int]:
    """Return the ends of a micro-batch of at most this many positions, shared by what each split has left."""
    left = {split: ends[split] - position for split, position in start.items()}
    total = sum(left.values())
    if max_rows is None or total <= max_rows:
        return dict(ends)
    shares = {split: max_rows * count // total for split, count in left.items()}
    # The splits that fall behind most come first, so that none waits for ever.
    rest = sorted((split for split in left if left[split]), key=lambda split: (shares[split], -left[split], split))
    for split in rest[: max_rows - sum(shares.values())]:
        shares[split] += 1
    return {split: position + shares[split] for split, position in start.items()}
