"""Operators and jobs over streams, on Spark and in this process.

How state is stored, and what may become of it when its type changes, is decided on the floors below.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from streamjobs.api.async_data_stream import AsyncDataStream
from streamjobs.api.async_functions import AsyncContext, AsyncFunction, AsyncRetryStrategy
from streamjobs.api.broadcast_functions import (
    BroadcastContext,
    BroadcastOnTimerContext,
    BroadcastProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedReadOnlyContext,
    ReadOnlyContext,
)
from streamjobs.api.co_functions import KeyedCoProcessFunction, KeyedMultipleInputFunction
from streamjobs.api.connected_streams import (
    BroadcastConnectedStream,
    BroadcastStream,
    ConnectedStreams,
    JoinedStreams,
    MultipleConnectedStreams,
)
from streamjobs.api.data_stream import DataStream, KeyedStream
from streamjobs.api.functions import KeyedProcessFunction, OnTimerContext, ProcessContext, RuntimeContext
from streamjobs.api.interval_join import IntervalJoin
from streamjobs.api.join_functions import JoinContext, ProcessJoinFunction
from streamjobs.api.operator_state_store import OperatorStateStore
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.sink import Sink, SinkError
from streamjobs.api.timer_service import TimeDomain, TimerService
from streamjobs.api.watermark_strategy import FUTURE_RECORDS, WatermarkStrategy
from streamjobs.api.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor, TimestampedValue
from streamjobs.api.windows.standard_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from streamjobs.api.windows.triggers import OnMergeContext, Trigger, TriggerContext, TriggerResult
from streamjobs.api.windows.window_assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from streamjobs.api.windows.window_functions import ProcessWindowFunction, WindowContext, WindowRuntimeContext
from streamjobs.api.windows.windowed_stream import WindowedStream
from streamjobs.errors import (
    AsyncTimeoutError,
    EpochError,
    EpochTimeoutError,
    JobDefinitionError,
    JobRestoreError,
    MissingModuleError,
    MissingTimestampError,
    NullKeyError,
    SourceProgressMismatchError,
    StreamJobError,
    UserFunctionError,
)
from streamjobs.time.watermark_generators import WatermarkGenerator, WatermarkOutput

__all__ = [
    "FUTURE_RECORDS",
    "AsyncContext",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryStrategy",
    "AsyncTimeoutError",
    "BroadcastConnectedStream",
    "BroadcastContext",
    "BroadcastOnTimerContext",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "DataStream",
    "DeltaEvictor",
    "DeltaTrigger",
    "EpochError",
    "EpochTimeoutError",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "GlobalWindows",
    "IntervalJoin",
    "JobDefinitionError",
    "JobRestoreError",
    "JoinContext",
    "JoinedStreams",
    "KeyedBroadcastContext",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedMultipleInputFunction",
    "KeyedProcessFunction",
    "KeyedReadOnlyContext",
    "KeyedStream",
    "MissingModuleError",
    "MissingTimestampError",
    "MultipleConnectedStreams",
    "NeverTrigger",
    "NullKeyError",
    "OnMergeContext",
    "OnTimerContext",
    "OperatorStateStore",
    "OutputTag",
    "ProcessContext",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReadOnlyContext",
    "RuntimeContext",
    "Sink",
    "SinkError",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "SourceProgressMismatchError",
    "StreamJobError",
    "TimeDomain",
    "TimeEvictor",
    "TimerService",
    "TimestampedValue",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "UserFunctionError",
    "WatermarkGenerator",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowAssigner",
    "WindowContext",
    "WindowRuntimeContext",
    "WindowedStream",
]
