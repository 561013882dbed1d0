"""The Spark runtime: environment, sinks, epochs. The only package that imports pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from statebackend.savepoint.export import SavepointReport
    from statebackend.spark.environment import SparkStreamEnvironment
    from statebackend.spark.job import SparkJob
    from statebackend.spark.parquet_sink import ForEachEpochSink, MemorySink, NoopSink, ParquetSink
    from statebackend.streaming.observing.restore_report import RestoredStateReport, RestoreReport

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

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "statebackend.savepoint.export": ("SavepointReport",),
        "statebackend.spark.environment": ("SparkStreamEnvironment",),
        "statebackend.spark.job": ("SparkJob",),
        "statebackend.spark.parquet_sink": (
            "ForEachEpochSink",
            "MemorySink",
            "NoopSink",
            "ParquetSink",
        ),
        "statebackend.streaming.observing.restore_report": (
            "RestoreReport",
            "RestoredStateReport",
        ),
    },
)
