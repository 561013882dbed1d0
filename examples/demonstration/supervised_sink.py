"""A sink for a driver that another process controls: it reports each epoch, and waits for permission to continue."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from examples.demonstration.driver_process import WRITTEN
from statebackend.spark import ParquetSink


class SupervisedSink(ParquetSink):
    """A `ParquetSink` that waits, before the checkpoint, for a line on standard input or its end."""

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        committable = super().stage(frame, epoch_id, attempt_id)
        print(WRITTEN, epoch_id, flush=True)
        sys.stdin.readline()
        return committable
