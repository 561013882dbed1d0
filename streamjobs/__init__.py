"""Operators over streams: on Spark for production, in-process for tests."""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from streamjobs.api.data_stream import DataStream, KeyedStream
from streamjobs.api.functions import KeyedProcessFunction, ProcessContext, RuntimeContext
from streamjobs.api.operator_state_store import OperatorStateStore
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.sink import Sink, SinkError
from streamjobs.api.watermark_strategy import WatermarkStrategy
from streamjobs.errors import (
    EpochError,
    EpochTimeoutError,
    JobDefinitionError,
    JobRestoreError,
    MissingModuleError,
    NullKeyError,
    SourceProgressMismatchError,
    StreamJobError,
    UserFunctionError,
)
from streamjobs.time.watermark_generators import WatermarkGenerator, WatermarkOutput

__all__ = [
    "DataStream",
    "EpochError",
    "EpochTimeoutError",
    "JobDefinitionError",
    "JobRestoreError",
    "KeyedProcessFunction",
    "KeyedStream",
    "MissingModuleError",
    "NullKeyError",
    "OperatorStateStore",
    "OutputTag",
    "ProcessContext",
    "RuntimeContext",
    "Sink",
    "SinkError",
    "SourceProgressMismatchError",
    "StreamJobError",
    "UserFunctionError",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
]
