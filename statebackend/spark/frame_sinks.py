"""Sinks on Spark: how a `Sink` is staged by the tasks, and sinks that take whole DataFrames.

A `FrameSink` runs on Spark only. It stages on the driver, with any number of Spark actions over the frame. Those of
users and the three of this module are adapted to the protocol by `FrameSinkAdapter`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import pyarrow as pa
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, IntegerType, StructField, StructType

from statebackend.spark.columns import check_are_in_python, spark_row_reader, to_arrow_schema
from statebackend.spark.plans.map_in_arrow import map_in_arrow
from statebackend.streaming.runtime.job_sinks import JobSinks, SinkAdapter, no_sink
from statebackend.streaming.runtime.settings import is_instance_of
from statebackend.streaming.sink import Sink, SinkEpoch
from statebackend.streaming.stream_graph import JobGraph

__all__ = [
    "ForEachEpochSink",
    "FrameSink",
    "FrameSinkAdapter",
    "MemorySink",
    "NoopSink",
    "reads_once",
    "sinks_of",
    "stage_epoch",
]

_STAGED: Final = StructType([StructField("subtask", IntegerType()), StructField("committable", BinaryType())])

_ADVICE: Final = (
    "use a sink of statebackend.connectors, NoopSink(), MemorySink(), ForEachEpochSink(function), or a subclass of Sink"
)


@runtime_checkable
class FrameSink(Protocol):
    """A sink of whole frames, for Spark only; `SinkAdapter` describes its other methods.

    With ``reads_once = True`` on the class, `stage` runs one action over the whole frame, in one pass over its
    partitions, so the rows need not be computed and stored first. Subclasses do not inherit it.
    """

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Write the frame where no reader sees it, and return what `commit` needs."""

    def commit(self, epoch_id: int, committable: bytes) -> None: ...
    def abort(self, epoch_id: int, attempt_id: str) -> None: ...
    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None: ...


class FrameSinkAdapter(SinkAdapter):
    """A `FrameSink` as a `Sink`, staged by the driver."""

    def stage_frame(self, frame: DataFrame, epoch: SinkEpoch) -> list[bytes]:
        """Stage the rows of a frame. Returns the committable."""
        return [self.adapted.stage(frame, epoch.epoch_id, epoch.attempt_id)]


def sinks_of(graph: JobGraph) -> JobSinks:
    """Return the sinks of a graph. Raises `JobDefinitionError` for an object that is not a sink."""
    return JobSinks({node.uid: _sink_of(node.sink) for node in graph.sinks})


def _sink_of(given: Any) -> Sink:
    if is_instance_of(given, Sink):
        sink: Sink = given
        return sink
    if is_instance_of(given, FrameSink):
        return FrameSinkAdapter(given)
    raise no_sink(given, _ADVICE)


def reads_once(sink: object) -> bool:
    """Whether staging computes each row once. A `FrameSink` says so on its own class; it is not inherited."""
    return is_instance_of(sink, Sink) or vars(type(sink)).get("reads_once") is True


def stage_epoch(sink: Sink, frame: DataFrame, epoch: SinkEpoch) -> list[bytes]:
    """Stage the rows of a frame. Returns the committables of the subtasks, in order."""
    if isinstance(sink, FrameSinkAdapter):
        return sink.stage_frame(frame, epoch)
    staged = map_in_arrow(frame, _SubtaskStaging(sink, epoch).stage, _STAGED).collect()
    if not staged:
        schema = to_arrow_schema(frame.schema)
        committables = [sink.stage(epoch, 0, pa.RecordBatchReader.from_batches(schema, []))]
    else:
        committables = [bytes(row.committable) for row in sorted(staged, key=lambda row: row.subtask)]
    return [one for one in committables if one]


@frozen
class _SubtaskStaging:
    """Stages the rows of a partition; sent to the tasks."""

    sink: Sink
    epoch: SinkEpoch

    def stage(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the committable; nothing for a partition without rows."""
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return
        context = TaskContext.get()
        subtask_index = 0 if context is None else context.partitionId()
        rows = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
        committable = self.sink.stage(self.epoch, subtask_index, rows)
        yield pa.RecordBatch.from_pylist(
            [{"subtask": subtask_index, "committable": committable}], to_arrow_schema(_STAGED, "UTC")
        )


class _EffectWhenStaged:
    """A sink without a commit: its effect happens when it stages an epoch, and a replay repeats it."""

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Do nothing."""

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Do nothing."""

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Do nothing."""


class NoopSink(_EffectWhenStaged):
    """Computes every row and keeps none, by Spark's `noop` format: for benchmarks, and for jobs run for their state."""

    identity: ClassVar = "noop"
    reads_once: ClassVar = True

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Compute the rows of the epoch."""
        frame.write.format("noop").mode("overwrite").save()
        return b""

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Do nothing."""
        return []


class ForEachEpochSink(_EffectWhenStaged):
    """Calls `function(frame, epoch_id)` with each epoch, as `foreachBatch` does.

    The rows are computed and cached, in memory and on the executors' disks, before the function is called. So it may
    run any number of actions on all of the frame or a part of it, and the operators still run once. Its effect must be
    idempotent per epoch id: it runs before the checkpoint completes, so after a crash it is called again with the same
    id and the same rows.
    """

    identity: ClassVar = "for-each-epoch"

    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        self._function = function

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Call the function."""
        self._function(frame, epoch_id)
        return b""


class MemorySink:
    """Collects rows on the driver, for tests and notebooks. They are lost when the process ends."""

    identity: ClassVar = "memory"
    reads_once: ClassVar = True

    def __init__(self) -> None:
        self._staged: dict[tuple[int, str], list[Any]] = {}
        self._committed: dict[int, list[Any]] = {}

    @property
    def rows(self) -> list[Any]:
        """The rows of all committed epochs, in the order of epochs."""
        return [row for _, rows in sorted(self._committed.items()) for row in rows]

    @property
    def rows_by_epoch(self) -> dict[int, list[Any]]:
        """Committed epoch -> its rows."""
        return {epoch_id: list(rows) for epoch_id, rows in sorted(self._committed.items())}

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        """Collect the rows of the epoch."""
        check_are_in_python(frame.schema, "MemorySink")
        try:
            self._staged[epoch_id, attempt_id] = frame.collect()
        except (ValueError, OverflowError):
            # Python has no such date: the reader of Arrow names its column and its row.
            table = frame.toArrow()
            reader = spark_row_reader(table.schema, "MemorySink")
            for batch in table.to_batches():
                reader.rows(batch)
            raise
        return attempt_id.encode()

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Add the rows of the epoch once. Rows that another process has staged are lost; that is ignored."""
        rows = self._staged.pop((epoch_id, committable.decode()), None)
        if rows is not None:
            self._committed.setdefault(epoch_id, rows)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Remove the rows of the attempt."""
        self._staged.pop((epoch_id, attempt_id), None)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """Remove the rows of attempts at later epochs."""
        for epoch_id, attempt_id in list(self._staged):
            if last_completed_epoch_id is None or epoch_id > last_completed_epoch_id:
                del self._staged[epoch_id, attempt_id]

    def roll_back(self, last_epoch_id: int, job_id: str) -> list[str]:
        """Remove the rows of later epochs."""
        for epoch_id in [epoch_id for epoch_id in self._committed if epoch_id > last_epoch_id]:
            del self._committed[epoch_id]
        return []
