"""Jobs on Spark: Spark brings sources, shuffle, scheduling, retries and sinks; we bring the state.

The one room that knows Spark, and a rim: what a job is, what it may restore and what comes next in an epoch is decided
in `streamjobs.runtime`, and must not be decided here again.
"""

from savepoints.export import SavepointReport
from streamjobs.observing.restore_report import RestoredStateReport, RestoreReport
from streamjobs.spark.environment import SparkStreamEnvironment
from streamjobs.spark.job import SparkJob
from streamjobs.spark.sinks import ForEachEpochSink, MemorySink, NoopSink, ParquetSink

__all__ = [
    "ForEachEpochSink",
    "MemorySink",
    "NoopSink",
    "ParquetSink",
    "RestoreReport",
    "RestoredStateReport",
    "SavepointReport",
    "SparkJob",
    "SparkStreamEnvironment",
]
