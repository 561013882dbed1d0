"""Batch functions on a real Spark session read and emit Arrow batches. Per-record functions continue their state."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from spark_job_fixture import BACKENDS, SEEN, Seen, WordCount, memory_sink, pickled_by_value, rows_of

from statebackend import (
    BatchContext,
    BatchRuntimeContext,
    KeyedBatchFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    ValueStateDescriptor,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LONG: OutputTag[Any] = OutputTag("long", "number int, word string")


@pytest.fixture(scope="module")
def _by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


class CountInBatches(KeyedBatchFunction[str, Any, Any]):
    def open(self, context: BatchRuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", SEEN))

    def process_batch(self, batch: pa.RecordBatch, context: BatchContext[str]) -> Iterator[Any]:
        assert batch.schema.names == ["word", "number"]
        groups = context.groups(batch)
        rows = groups.rows["number"].to_pylist()
        sizes = groups.sizes.to_pylist()
        for start, size in zip(_starts(sizes), sizes, strict=True):
            assert rows[start : start + size] == sorted(rows[start : start + size])
        before = self.seen.get_many(groups)
        times, total = (part.fill_null(0) for part in before.flatten())
        times = pc.add(times, groups.sizes)
        total = pc.add(total, groups.aggregate([("number", "sum")]).column(0))
        self.seen.put_many(groups, pa.StructArray.from_arrays([times, total], ["times", "total"]))
        context.output(LONG, batch.filter(pc.greater(pc.utf8_length(batch["word"]), 1)))
        yield pa.table({"word": groups.keys, "times": times, "total": total})


def _starts(sizes: list[int]) -> list[int]:
    return [sum(sizes[:index]) for index in range(len(sizes))]


class CountInRecords(KeyedProcessFunction[str, Any, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_state(ValueStateDescriptor("seen", SEEN))

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        before = self.seen.value() or Seen(0, 0)
        after = Seen(before.times + 1, before.total + value.number)
        self.seen.update(after)
        yield value.word, after.times, after.total


def last_rows(sink: Any) -> dict[str, Any]:
    return {word: rest for word, *rest in rows_of(sink)}


@pytest.mark.extended_after(1)
@pytest.mark.usefixtures("_by_value")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_job_changes_form_between_runs(spark: SparkSession, tmp_path: Path, backend: str) -> None:
    place, long = WordCount(spark, tmp_path), memory_sink()

    def run(function: Any) -> dict[str, Any]:
        sink = memory_sink()
        environment = place.environment(backend=backend)
        words = environment.from_dataframe(place.stream()).key_by("word")
        counted = words.process(
            function, uid="words", schema="word string, times bigint, total bigint", order_by="number"
        )
        counted.sink_to(sink)
        if isinstance(function, CountInBatches):
            counted.get_side_output(LONG).sink_to(long, uid="long")
        environment.execute("count words", trigger={"availableNow": True}).await_termination()
        return last_rows(sink)

    place.add_batch([("a", 2), ("b", 3), ("a", 1), ("cc", 4)])
    assert run(CountInRecords()) == {"a": [2, 3], "b": [1, 3], "cc": [1, 4]}
    place.add_batch([("a", 10), ("cc", 1), ("a", 5)])
    place.add_batch([("cc", 2)])
    assert run(CountInBatches()) == {"a": [4, 18], "cc": [3, 7]}
    assert rows_of(long) == [(1, "cc"), (2, "cc")]
    place.add_batch([("a", 1), ("b", 1)])
    assert run(CountInRecords()) == {"a": [5, 19], "b": [2, 4]}
