"""A job for tests that kill a driver in a no-data epoch.

    python fire_timers.py WORK_DIRECTORY [MOMENT]

Reads ``WORK_DIRECTORY/source`` and sets a timer of processing time for each record, which fires on the idle stream.
With the MOMENT "stage" or "commit" the driver kills itself at that moment of the first epoch with rows. Otherwise it
ends when what the timers emit is visible.

``WORK_DIRECTORY/staged`` gets a line of JSON for each attempt at an epoch that emits anything: its id, its rows.
``WORK_DIRECTORY/out`` is the output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statebackend import KeyedProcessFunction, OnTimerContext, ProcessContext
from statebackend.spark.parquet_sink import ParquetSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

DELAY_MS = 300


class Alarm(KeyedProcessFunction[str, Any, Any]):
    """Emits key, timer and clock once for each record."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> None:
        timers = context.timer_service
        timers.register_processing_time_timer(timers.current_processing_time() + DELAY_MS)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterator[Any]:
        yield context.current_key, timestamp, context.timer_service.current_processing_time()


class Deadly:
    """A sink that records its input, and kills the process at one step of an epoch with rows."""

    def __init__(self, work: Path, moment: str) -> None:
        self._work, self._moment = work, moment
        self._sink = ParquetSink(work / "out")
        self._has_rows: set[int] = set()
        self.is_visible = threading.Event()

    @property
    def identity(self) -> str:
        return self._sink.identity

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        committable = self._sink.stage(frame, epoch_id, attempt_id)
        rows = sorted(map(list, frame.collect()))
        if rows:
            self._has_rows.add(epoch_id)
            with (self._work / "staged").open("a") as staged:
                staged.write(json.dumps([epoch_id, rows]) + "\n")
            self._die("stage")
        return committable

    def commit(self, epoch_id: int, committable: bytes) -> None:
        if epoch_id in self._has_rows:
            self._die("commit")
        self._sink.commit(epoch_id, committable)
        if epoch_id:
            self.is_visible.set()

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        self._sink.abort(epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        self._sink.recover(last_completed_epoch_id, job_id)

    def _die(self, moment: str) -> None:
        if moment == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


def main(work: Path, moment: str = "") -> None:
    from pyspark.sql import SparkSession

    from statebackend.spark import SparkStreamEnvironment

    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    environment = SparkStreamEnvironment(
        spark,
        job_dir=work / "job",
        backend="rocksdb",
        max_parallelism=16,
        local_state_directory=work / "local",
    )
    stream = environment.from_dataframe(spark.readStream.schema("k string").json(str(work / "source")))
    sink = Deadly(work, moment)
    alarms = stream.key_by("k").process(Alarm(), uid="alarms", schema="k string, timer bigint, at bigint")
    alarms.sink_to(sink)
    job = environment.execute("alarms")
    watching = threading.Thread(target=lambda: (job.query.awaitTermination(), sink.is_visible.set()), daemon=True)
    watching.start()
    sink.is_visible.wait()
    job.stop()
    job.await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
