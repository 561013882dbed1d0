from statebackend.savepoint.export import SavepointReport as SavepointReport
from statebackend.spark.environment import SparkStreamEnvironment as SparkStreamEnvironment
from statebackend.spark.frame_sinks import (
    ForEachEpochSink as ForEachEpochSink,
    MemorySink as MemorySink,
    NoopSink as NoopSink,
)
from statebackend.spark.job import SparkJob as SparkJob
from statebackend.connectors.file_sink import ParquetSink as ParquetSink
from statebackend.streaming.observing.job_recorder import (
    RestoredStateReport as RestoredStateReport,
    RestoreReport as RestoreReport,
)
