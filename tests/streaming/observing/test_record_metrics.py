"""Records in, out, late and dropped, by operator, output and sink, on both runtimes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import event_time_model
import pytest
from chain_runner import write_batches
from event_time_model import SCHEMA, SIZE, SUMS, Record, Summed, bounded, model
from spark_job_fixture import memory_sink, pickled_by_value

from statebackend import OutputTag, TumblingEventTimeWindows
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.metrics import JobMetrics, OutputMetrics, SinkMetrics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATE: OutputTag[Any] = OutputTag("late", SCHEMA)
EPOCHS: list[list[Record]] = [
    [("a", 1, 1), ("b", 3, 2), ("a", 31, 4)],
    [("a", 2, 8), ("b", 33, 16), ("b", 4, 32), ("c", 60, 64)],
    [("a", 5, 128), ("c", 61, 256)],
]
RECORDS = sum(map(len, EPOCHS))


def add_windows(stream: Any, sinks: list[Any], *, reads_late: bool) -> None:
    keyed = stream.assign_timestamps_and_watermarks(bounded()).key_by("k")
    windows = keyed.window(TumblingEventTimeWindows.of(SIZE)).side_output_late_data(LATE)
    sums = windows.process(Summed(), uid="sums", schema=SUMS)
    sums.sink_to(sinks[0], uid="sums")
    if reads_late:
        sums.get_side_output(LATE).sink_to(sinks[1], uid="late")


def check(metrics: JobMetrics, fired: int, *, reads_late: bool) -> None:
    late = len(model(EPOCHS)[1])
    assert late == 3
    assert fired > 2
    operator = metrics.totals.operators["sums"]
    assert (operator.records_in, operator.late_records) == (RECORDS, late)
    assert operator.late_records_dropped == metrics.totals.late_records_dropped == (0 if reads_late else late)
    side = {"side/late": OutputMetrics(late, late)} if reads_late else {}
    assert operator.outputs == {"main": OutputMetrics(fired), **side}
    assert operator.records_out == fired + (late if reads_late else 0)
    assert metrics.totals.sinks == {
        "sums": SinkMetrics(fired),
        **({"late": SinkMetrics(late)} if reads_late else {}),
    }
    for name, of_epoch in (
        ("records_in", lambda epoch: epoch.operators["sums"].records_in),
        ("late_records", lambda epoch: epoch.operators["sums"].late_records),
        ("records_out", lambda epoch: epoch.sinks["sums"].records_out),
    ):
        total = fired if name == "records_out" else getattr(operator, name)
        assert sum(map(of_epoch, metrics.epochs)) == total, name
    values = {(one.metric.full_name, *one.labels.values()): one.value for one in metrics.values()}
    assert values["output.records_out", "sums", "main"] == values["sink.records_out", "sums"] == fired
    assert values["operator.late_records", "sums"] == late
    assert ("output.late_records", "sums", "side/late") in values or not reads_late


@pytest.mark.parametrize("reads_late", [True, False])
def test_records_are_counted_by_operator_output_and_sink(reads_late: bool) -> None:
    environment = LocalStreamEnvironment(epoch_size=3, parallelism=2)
    rows = [dict(zip("ktv", record, strict=True)) for record in [*EPOCHS[0], *EPOCHS[1], *EPOCHS[2]]]
    sinks: list[Any] = [[], []]
    add_windows(environment.from_elements(rows, SCHEMA), sinks, reads_late=reads_late)
    check(environment.execute().metrics(), len(sinks[0]), reads_late=reads_late)


@pytest.mark.extended_after(1)
@pytest.mark.spark
@pytest.mark.parametrize("reads_late", [True, False])
def test_records_are_counted_by_operator_output_and_sink_on_spark(
    spark: SparkSession, tmp_path: Path, reads_late: bool
) -> None:
    from statebackend.spark import SparkStreamEnvironment

    source = write_batches(tmp_path, [[dict(zip("ktv", row, strict=True)) for row in rows] for rows in EPOCHS])
    environment = SparkStreamEnvironment(
        spark, job_dir=tmp_path / "job", local_state_directory=tmp_path / "local", parallelism=2, max_parallelism=16
    )
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(source))
    sinks = [memory_sink(), memory_sink()]
    with pickled_by_value(event_time_model):
        add_windows(environment.from_dataframe(frame), sinks, reads_late=reads_late)
        job = environment.execute("counted")
        job.process_all_available()
        job.stop()
    metrics = job.metrics()
    check(metrics, len(sinks[0].rows), reads_late=reads_late)
    progress = job.last_progress()
    assert progress is not None
    observed = progress["observedMetrics"]["statebackend"]
    assert observed["operator.records_in"] == [{"labels": {"operator": "sums"}, "value": RECORDS}]
    assert {one.metric.full_name for one in metrics.values()} == observed.keys()


@pytest.mark.spark
def test_a_sink_after_a_step_has_no_count_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    from statebackend.spark import SparkStreamEnvironment

    source = write_batches(tmp_path, [[{"k": "a", "t": 1, "v": 1}]])
    environment = SparkStreamEnvironment(spark, job_dir=tmp_path / "job", parallelism=1, max_parallelism=4)
    frame = spark.readStream.schema(SCHEMA).json(str(source))
    with pickled_by_value(event_time_model):
        timers = (
            environment.from_dataframe(frame)
            .key_by("k")
            .process(event_time_model.SetsTimers(), uid="timers", schema=event_time_model.TIMERS)
        )
        timers.transform_dataframe(lambda rows: rows.where("fired > 0")).sink_to(memory_sink(), uid="filtered")
        timers.union(timers).sink_to(memory_sink(), uid="twice")
        job = environment.execute("counted", trigger={"availableNow": True})
        job.await_termination()
    assert job.metrics().totals.sinks.keys() == {"twice"}
