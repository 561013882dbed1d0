"""Sinks and transformations that read the output of an operator repeatedly, partly, or in other tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import COUNTED, CountPerKey, run_chain
from persistent_rdds import persistent_rdds

from statebackend import EpochError, JobDefinitionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from statebackend.streaming.data_stream import DataStream

pytestmark = pytest.mark.spark

SCHEMA = "word string"
BATCHES = [[{"word": "x"}, {"word": "y"}, {"word": "x"}], [], [{"word": "x"}, {"word": "z"}, {"word": "q"}]]
COUNTS_OF_THE_FIRST = [("x", 1), ("x", 2), ("y", 1)]
COUNTS = [("q", 1), ("x", 1), ("x", 2), ("x", 3), ("y", 1), ("z", 1)]


def pairs(rows: Any) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in rows)


@pytest.mark.extended
def test_a_sink_function_may_read_several_times_and_the_operator_runs_once(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[Any] = []
    sizes: list[tuple[int, ...]] = []

    def write(frame: DataFrame, epoch_id: int) -> None:
        if epoch_id == 0:
            # The function may leave the rows of an epoch unread.
            return
        if frame.isEmpty():
            sizes.append(())
            return
        rows = frame.collect()
        seen.extend(rows)
        assert pairs(frame.coalesce(1).collect()) == pairs(rows)
        assert [row.key for row in frame.orderBy("key", "count").collect()] == sorted(row.key for row in rows)
        assert pairs(frame.union(frame).collect()) == pairs(rows + rows)
        sizes.append((len(rows), len(frame.limit(2).collect()), int(frame.first() in rows), frame.count()))

    before = persistent_rdds(spark)
    job = run_chain(spark, tmp_path, SCHEMA, BATCHES, lambda stream: to_function(stream, write))
    assert pairs(seen) == [("q", 1), ("x", 3), ("z", 1)]
    assert sizes == [(), (3, 2, 1, 3)]
    assert job.last_completed_epoch == 2
    assert persistent_rdds(spark) <= before


def to_function(stream: DataStream, function: Callable[[DataFrame, int], object]) -> None:
    from statebackend.spark.frame_sinks import ForEachEpochSink

    words = stream.key_by("word").process(CountPerKey(), uid="count", schema=COUNTED)
    words.sink_to(ForEachEpochSink(function))


def _sorted_by_count(frame: DataFrame) -> DataFrame:
    return frame.orderBy("count")


def _joined_with_itself(frame: DataFrame) -> DataFrame:
    return frame.join(frame.select("key").distinct(), "key")


def _behind_others(frame: DataFrame) -> DataFrame:
    return frame.sparkSession.createDataFrame([("w", -1)], COUNTED).repartition(3).union(frame)


def _in_one_task(frame: DataFrame) -> DataFrame:
    return frame.coalesce(1)


def _after_an_action(frame: DataFrame) -> DataFrame:
    return frame if frame.isEmpty() else frame.where("count > 0")


@pytest.mark.parametrize(
    ("steps", "is_last"),
    [
        ((_sorted_by_count, _joined_with_itself, _in_one_task, _after_an_action), True),
        ((_behind_others,), False),
    ],
)
@pytest.mark.extended
def test_a_step_may_sort_merge_join_or_run_actions_and_the_operator_runs_once(
    spark: SparkSession, tmp_path: Path, steps: Sequence[Callable[[DataFrame], DataFrame]], is_last: bool
) -> None:
    from statebackend.spark.frame_sinks import MemorySink

    for step in steps:
        sink = MemorySink()
        place = tmp_path / step.__name__

        def chain(stream: DataStream, step: Any = step, sink: Any = sink) -> None:
            counted = (
                stream.key_by("word").process(CountPerKey(), uid="count", schema=COUNTED).transform_dataframe(step)
            )
            if not is_last:
                counted = counted.key_by("key", "count").process(CountPerKey(), uid="again", schema=COUNTED)
            counted.sink_to(sink)

        run_chain(spark, place, SCHEMA, BATCHES[:1] if is_last else BATCHES, chain)
        rows = [row for row in pairs(sink.rows) if row[0] != "w" and "'w'" not in row[0]]
        assert rows == (COUNTS_OF_THE_FIRST if is_last else sorted((str(row), 1) for row in COUNTS)), step.__name__


def test_the_exchange_of_rows_depends_on_the_downstream_plan(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.types import LongType, StringType, StructType

    from statebackend.spark.plans.pipeline import empty_input, reads_partitions_once

    schema = StructType().add("key", StringType()).add("count", LongType())

    def reads_once(step: Callable[[DataFrame], DataFrame]) -> bool:
        return reads_partitions_once(step(empty_input(spark, schema)))

    harmless: Sequence[Callable[[DataFrame], DataFrame]] = (
        lambda frame: frame,
        lambda frame: frame.where("count > 1").withColumn("more", F.col("count") + 1).drop("count"),
        lambda frame: frame.select(F.explode(F.split("key", ","))),
        lambda frame: frame.groupBy("key").count(),
        lambda frame: frame.dropDuplicates(),
        lambda frame: frame.repartition(3),
        lambda frame: frame.repartition("key").sortWithinPartitions("count"),
        lambda frame: frame.alias("rows").select("rows.key"),
    )
    assert [reads_once(step) for step in harmless] == [True] * len(harmless)
    other: Sequence[Callable[[DataFrame], DataFrame]] = (
        lambda frame: frame.orderBy("count"),
        lambda frame: frame.limit(3),
        lambda frame: frame.offset(1),
        lambda frame: frame.coalesce(1),
        lambda frame: frame.union(frame),
        lambda frame: frame.join(frame, "key"),
        lambda frame: frame.join(frame.sparkSession.range(3)),
        lambda frame: frame.sparkSession.range(3),
        lambda frame: frame.where(F.col("count") < frame.sparkSession.range(3).agg(F.max("id")).scalar()),
        lambda frame: frame.where("count > (select max(id) from range(3))"),
        lambda frame: frame.sample(0.5),
    )
    assert [reads_once(step) for step in other] == [False] * len(other)


def test_a_step_that_returns_no_frame_is_rejected(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark.frame_sinks import NoopSink

    with pytest.raises(JobDefinitionError, match=r"transform_dataframe\(\) must return a DataFrame, not list"):
        run_chain(
            spark,
            tmp_path,
            SCHEMA,
            BATCHES,
            lambda stream: (
                stream.key_by("word")
                .process(CountPerKey(), uid="count", schema=COUNTED)
                .transform_dataframe(lambda frame: frame.collect())
                .sink_to(NoopSink())
            ),
        )


class HarmlessAtFirst:
    """A transformation that is harmless when the job is checked, and differs when it runs."""

    def __init__(self, later: Callable[[DataFrame], DataFrame]) -> None:
        self._later = later
        self._calls = 0

    def __call__(self, frame: DataFrame) -> DataFrame:
        self._calls += 1
        return frame if self._calls == 1 else self._later(frame)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        (lambda frame: frame.coalesce(1), r"operator 'count': task 0 received the rows of subtask 1"),
        (lambda frame: frame.sparkSession.createDataFrame([], COUNTED), r"operator 'count' sent no acknowledgement"),
    ],
)
def test_a_step_that_changes_while_the_job_runs_fails_the_epoch(
    spark: SparkSession,
    tmp_path: Path,
    later: Callable[[DataFrame], DataFrame],
    message: str,
) -> None:
    from statebackend.spark.frame_sinks import NoopSink

    step = HarmlessAtFirst(later)
    with pytest.raises(EpochError, match=message):
        run_chain(
            spark,
            tmp_path,
            SCHEMA,
            [[{"word": f"w{number}"} for number in range(20)]],
            lambda stream: (
                stream.key_by("word")
                .process(CountPerKey(), uid="count", schema=COUNTED)
                .transform_dataframe(step)
                .sink_to(NoopSink())
            ),
        )
