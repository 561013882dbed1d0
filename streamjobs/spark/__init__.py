"""Jobs on Spark: Spark brings sources, shuffle, scheduling, retries and sinks; we bring the state."""

from streamjobs.spark.environment import SparkStreamEnvironment
from streamjobs.spark.job import RestoredStateReport, SparkJob
from streamjobs.spark.savepoints import SavepointReport

__all__ = ["RestoredStateReport", "SavepointReport", "SparkJob", "SparkStreamEnvironment"]
