"""A sink of a driver that is watched: it says where an epoch stands, and waits to be told to go on."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from examples.demonstration.driver_process import WRITTEN
from statebackend.spark import ParquetSink


class SupervisedSink(ParquetSink):
    """Writes as a `ParquetSink` does; then, before the checkpoint, waits for a line on standard input or its end."""

    def stage(self, frame: DataFrame, epoch_id: int, attempt_id: str) -> bytes:
        committable = super().stage(frame, epoch_id, attempt_id)
        print(WRITTEN, epoch_id, flush=True)
        sys.stdin.readline()
        return committable
