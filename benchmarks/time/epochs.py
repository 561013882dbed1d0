"""Epochs with almost no work in jobs with event time, compared with the almost empty epoch of a job without.

An epoch is a micro-batch of one row. There are two jobs with event time:

1. Each row registers a timer that is never due. An epoch moves the watermark and fires nothing.
2. Each timer is due at once, and batches come at intervals. A no-data epoch runs between them: a timer fires in one
   subtask, and the other subtasks do nothing.

The result is the driver's time for an epoch, from `job.epochs`. Epochs after a pause are compared with epochs after a
pause, because a process that slept is slower at first. A further result compares a no-data epoch with the time from one
batch to the next. Spark plans and logs a batch, and does nothing for a no-data epoch.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result
from benchmarks.spark_stateful.epoch_cost import epoch_cost_ms
from benchmarks.spark_stateful.ours import CountPerKey
from benchmarks.spark_stateful.session import benchmark_session
from benchmarks.spark_stateful.workload import POLL_INTERVAL_S, WARM_UP_BATCHES, await_batches, micro_batches
from benchmarks.time.queries import our_job
from statebackend import KeyedProcessFunction, ProcessContext, WatermarkStrategy
from statebackend.spark import SparkStreamEnvironment

ONE_ROW = "epoch of one row that fires nothing"
WITHOUT_RECORDS = "no-data epoch"
PEER = "almost empty epoch without event time"
PEER_AFTER_PAUSE = f"{PEER}, after a pause"
WHOLE_PEER = f"{PEER}, until the next one"
_PAIRS = ((ONE_ROW, PEER), (WITHOUT_RECORDS, PEER_AFTER_PAUSE), (WITHOUT_RECORDS, WHOLE_PEER))
SCHEMA = "key bigint, count bigint"
FAR_MS = 1 << 50
AT_ONCE = "0 seconds"
ROOM_FOR_AN_EPOCH = "3 seconds"


class Timers(KeyedProcessFunction[int, Any, Any]):
    """Registers a timer `behind_ms` after the timestamp of each record, and does nothing when it fires."""

    def __init__(self, behind_ms: int) -> None:
        self.behind_ms = behind_ms

    def process_element(self, value: Any, context: ProcessContext[int]) -> None:
        assert context.timestamp is not None
        context.timer_service.register_event_time_timer(context.timestamp + self.behind_ms)

    def on_timer(self, timestamp: int, context: Any) -> None:
        pass


def results(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare both kinds of epochs with the almost empty epoch, in milliseconds."""
    with benchmark_session() as (spark, checkpoints):

        def turn_of(job: Callable[..., float]) -> Callable[[], float]:
            def turn() -> float:
                with TemporaryDirectory(dir=checkpoints) as directory:
                    return job(spark, Path(directory), arguments.backend, arguments.epochs)

            return turn

        jobs: dict[str, Callable[..., float]] = {
            ONE_ROW: partial(_timed, FAR_MS, True),
            PEER: partial(_untimed, AT_ONCE),
            # The watermark after a row is one millisecond before the row's timestamp.
            WITHOUT_RECORDS: partial(_timed, -1, False),
            PEER_AFTER_PAUSE: partial(_untimed, ROOM_FOR_AN_EPOCH),
            WHOLE_PEER: _whole,
        }
        turns = {name: turn_of(job) for name, job in jobs.items()}
        measured = measure_alternating(turns, rounds=arguments.rounds, warm_up_rounds=1)
    for name, measurement in measured.items():
        print(f"{name}, ms: {measurement}", file=sys.stderr, flush=True)
    for name, peer in _PAIRS:
        yield Result(name, measured[name].median, measured[peer].median, peer, "ms", 1.0)


def _timed(behind_ms: int, has_batch: bool, spark: SparkSession, directory: Path, backend: str, epochs: int) -> float:
    def stream(rows: Any, environment: SparkStreamEnvironment) -> Any:
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("value")
        timed = environment.from_dataframe(rows).assign_timestamps_and_watermarks(strategy)
        return timed.key_by("key").process(Timers(behind_ms), uid="timers", schema=SCHEMA)

    return _milliseconds(
        stream, has_batch, AT_ONCE if has_batch else ROOM_FOR_AN_EPOCH, spark, directory, backend, epochs
    )


def _untimed(interval: str, spark: SparkSession, directory: Path, backend: str, epochs: int) -> float:
    return _milliseconds(_counted, True, interval, spark, directory, backend, epochs)


def _whole(spark: SparkSession, directory: Path, backend: str, epochs: int) -> float:
    with our_job(spark, directory, backend, partial(_counted, _rows(spark))) as job:
        return epoch_cost_ms(await_batches(job.query, WARM_UP_BATCHES + epochs + 1))


def _counted(rows: Any, environment: SparkStreamEnvironment) -> Any:
    return environment.from_dataframe(rows).key_by("key").process(CountPerKey(), uid="count", schema=SCHEMA)


def _rows(spark: SparkSession) -> DataFrame:
    return micro_batches(spark, 1).selectExpr("value", "value % 1000 AS key")


def _milliseconds(
    stream: Callable[[Any, SparkStreamEnvironment], Any],
    has_batch: bool,
    interval: str,
    spark: SparkSession,
    directory: Path,
    backend: str,
    epochs: int,
) -> float:
    """Return the median duration of epochs with or without records after the warm-up; batches come at the interval."""
    with our_job(spark, directory, backend, partial(stream, _rows(spark)), interval) as job:
        while len(kept := [one for one in job.epochs if one.has_batch == has_batch]) < WARM_UP_BATCHES + epochs:
            if not job.query.isActive:
                job.await_termination()
            time.sleep(POLL_INTERVAL_S)
        return median(epoch.duration_s for epoch in kept[WARM_UP_BATCHES:]) * 1000
