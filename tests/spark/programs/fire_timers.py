"""A job for tests that kill a driver in a no-data epoch.

    python fire_timers.py WORK_DIRECTORY [MOMENT]

It reads ``WORK_DIRECTORY/source`` and sets a processing-time timer for each record, which fires on the idle stream.
With the MOMENT "stage" or "commit", the driver kills itself at that moment of the first epoch with rows. Otherwise it
ends when the rows that the timers emit are visible.

``WORK_DIRECTORY/staged`` gets a JSON line for each attempt at an epoch with rows: its id and its rows.
``WORK_DIRECTORY/out`` is the output.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from statebackend import KeyedProcessFunction, OnTimerContext, ProcessContext
from statebackend.connectors import SinkEpoch
from statebackend.spark import ForEachEpochSink, ParquetSink

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


class Notes:
    """Records the rows of epochs, and kills the driver at a moment of an epoch that has rows."""

    def __init__(self, work: Path, moment: str) -> None:
        self._work, self._moment = work, moment
        self._has_rows: set[int] = set()
        self.is_visible = threading.Event()

    def stage(self, frame: DataFrame, epoch_id: int) -> None:
        rows = sorted(map(list, frame.collect()))
        if rows:
            self._has_rows.add(epoch_id)
            with (self._work / "staged").open("a") as staged:
                staged.write(json.dumps([epoch_id, rows]) + "\n")
            self._die("stage")

    def commit(self, epoch_id: int) -> None:
        if epoch_id in self._has_rows:
            self._die("commit")

    def _die(self, moment: str) -> None:
        if moment == self._moment:
            os.kill(os.getpid(), signal.SIGKILL)


class DeadlySink(ParquetSink):
    """Kills the driver instead of a commit. Only the driver's copy has the notes."""

    def __init__(self, path: Path, notes: Notes) -> None:
        super().__init__(path)
        self._notes = notes

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_notes": None}

    def commit(self, epoch: SinkEpoch, committables: Sequence[bytes]) -> None:
        self._notes.commit(epoch.epoch_id)
        super().commit(epoch, committables)
        if epoch.epoch_id:
            self._notes.is_visible.set()


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
    notes = Notes(work, moment)
    alarms = stream.key_by("k").process(Alarm(), uid="alarms", schema="k string, timer bigint, at bigint")
    alarms.sink_to(DeadlySink(work / "out", notes))
    # This is the last sink, so the other sink has staged the epoch before.
    alarms.sink_to(ForEachEpochSink(notes.stage), uid="notes")
    job = environment.execute("alarms")
    watching = threading.Thread(target=lambda: (job.query.awaitTermination(), notes.is_visible.set()), daemon=True)
    watching.start()
    notes.is_visible.wait()
    job.stop()
    job.await_termination()
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
