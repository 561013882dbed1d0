"""Jobs on Spark that start from savepoints written by a plan."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from spark_job_fixture import SEEN, Seen, WordCount, memory_sink, pickled_by_value, rows_of

from statebackend import Savepoint, ValueStateDescriptor
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.source import register_state_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def _functions_travel_by_value() -> Iterator[None]:
    with pickled_by_value(sys.modules[__name__]):
        yield


@pytest.fixture
def word_count(spark: SparkSession, tmp_path: Path) -> WordCount:
    place = WordCount(spark, tmp_path)
    place.add_batch([("a", 1), ("a", 10), ("b", 2), ("c", 3)])
    return place


@pytest.mark.extended
def test_a_job_continues_with_other_key_groups_at_its_source_position(word_count: WordCount) -> None:
    job = word_count.start(memory_sink())
    job.process_all_available()
    job.stop_with_savepoint(word_count.directory / "savepoint")
    seen = ValueStateDescriptor("seen", SEEN)
    plan = (
        Plan()
        .change_max_parallelism(100)
        .rename_operator("words", "counted")
        .keep_keys("counted", lambda word: word != "c")
    )
    plan.change_values("counted", "seen", seen, lambda one: Seen(one.times + 100, one.total))
    writer = SavepointWriter.copy_of(
        word_count.directory / "savepoint", word_count.directory / "rewritten", known=[SEEN]
    )
    writer.write(plan)
    before, after = (Savepoint.open(word_count.directory / name).metadata for name in ("savepoint", "rewritten"))
    assert after.source_positions == before.source_positions
    assert [file.checksum for file in after.source_progress_files] == [
        file.checksum for file in before.source_progress_files
    ]
    word_count.add_batch([("a", 100), ("b", 1), ("c", 1), ("d", 1)])
    sink = memory_sink()
    word_count.run(
        sink,
        job="another",
        uid="counted",
        max_parallelism=100,
        parallelism=3,
        execute={"from_savepoint": word_count.directory / "rewritten"},
    )
    assert rows_of(sink) == [("a", 103, 111), ("b", 102, 3), ("c", 1, 1), ("d", 1, 1)]


@pytest.mark.extended
def test_a_job_continues_from_a_frame_made_from_its_state(word_count: WordCount) -> None:
    job = word_count.start(memory_sink())
    job.process_all_available()
    job.stop_with_savepoint(word_count.directory / "savepoint")
    spark = word_count.spark
    register_state_tables(spark)
    stored, raised = str(word_count.directory / "savepoint"), str(word_count.directory / "raised")
    frame = spark.read.format("statebackend").option("operator", "words").option("state", "seen").load(stored)
    changed = frame.where("key <> 'c'").selectExpr(
        "key", "named_struct('times', value.times + 100, 'total', value.total) AS value"
    )
    writer = changed.write.format("statebackend").mode("append").option("source", stored)
    writer.option("operator", "words").option("state", "seen").save(raised)
    found = {entry.key: entry.value for entry in Savepoint.open(raised, known=[SEEN]).read("words", "seen")}
    assert found == {"a": Seen(102, 11), "b": Seen(101, 2)}
    word_count.add_batch([("a", 100), ("c", 1)])
    sink = memory_sink()
    word_count.run(sink, job="another", execute={"from_savepoint": raised})
    assert rows_of(sink) == [("a", 103, 111), ("c", 1, 1)]


def test_a_job_starts_with_state_from_no_job(word_count: WordCount) -> None:
    plan = (
        Plan()
        .add_operator("words", "string")
        .add_state("words", ValueStateDescriptor("seen", SEEN), [("a", Seen(1000, 0)), ("z", Seen(1, 1))])
    )
    SavepointWriter.new(word_count.directory / "begin", max_parallelism=16).write(plan)
    sink = memory_sink()
    start = {"from_savepoint": word_count.directory / "begin", "restore_source_progress": False}
    job = word_count.run(sink, execute=start)
    assert rows_of(sink) == [("a", 1001, 1), ("a", 1002, 11), ("b", 1, 2), ("c", 1, 3)]
    # The source log is stored next to a checkpoint on Spark. A copy would silently lose it.
    writer = SavepointWriter.copy_of(word_count.directory / "job", word_count.directory / "copy")
    with pytest.raises(PlanError, match=r"drop_sinks|drop_source_progress"):
        writer.write(Plan())
    assert job.last_completed_epoch is not None
    writer.write(Plan().drop_sinks().drop_source_progress())
    assert Savepoint.open(word_count.directory / "copy").statistics("words", "seen").entries == 4
