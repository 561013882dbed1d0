"""A sink for a driver that another process controls: it reports each epoch, and waits for permission to continue."""

from __future__ import annotations

import sys

from pyspark.sql import DataFrame

from examples.demonstration.driver_process import WRITTEN
from statebackend.spark import ForEachEpochSink


def supervised_sink() -> ForEachEpochSink:
    """Return a sink that waits, before the checkpoint, for a line on standard input or its end.

    It ignores its rows. It must be the last sink of the program: then the other sinks have staged the epoch.
    """
    return ForEachEpochSink(_wait)


def _wait(frame: DataFrame, epoch_id: int) -> None:
    print(WRITTEN, epoch_id, flush=True)
    sys.stdin.readline()
