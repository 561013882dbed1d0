"""Jobs on Spark: Spark brings sources, shuffle, scheduling, retries and sinks; we bring the state."""

from streamjobs.savepoint_export import SavepointReport
from streamjobs.spark.environment import SparkStreamEnvironment
from streamjobs.spark.job import RestoredStateReport, SparkJob

__all__ = ["RestoredStateReport", "SavepointReport", "SparkJob", "SparkStreamEnvironment"]
