__version__: str

from statebackend.checkpoint.errors import (
    CheckpointError as CheckpointError,
    CheckpointNotFoundError as CheckpointNotFoundError,
    CorruptFileError as CorruptFileError,
    CorruptJobIdentityError as CorruptJobIdentityError,
    CorruptMetadataError as CorruptMetadataError,
    IllegalTransitionError as IllegalTransitionError,
    IncompleteCheckpointError as IncompleteCheckpointError,
    InvariantViolationError as InvariantViolationError,
    JobDirectoryError as JobDirectoryError,
    JobDirectoryLockedError as JobDirectoryLockedError,
    JobDirectoryMismatchError as JobDirectoryMismatchError,
    LeadershipLostError as LeadershipLostError,
    MalformedAcknowledgementError as MalformedAcknowledgementError,
    MissingFileError as MissingFileError,
    SavepointError as SavepointError,
    SavepointExistsError as SavepointExistsError,
    StorageError as StorageError,
    UncertainCheckpointError as UncertainCheckpointError,
    UnsafePathError as UnsafePathError,
    UnsupportedMetadataVersionError as UnsupportedMetadataVersionError,
)
from statebackend.checkpoint.ha.object_store import ObjectStoreHighAvailability as ObjectStoreHighAvailability
from statebackend.checkpoint.ha.zookeeper import ZooKeeperHighAvailability as ZooKeeperHighAvailability
from statebackend.checkpoint.store.job_directory import JobDirectory as JobDirectory
from statebackend.savepoint.export import (
    ExportedSubtask as ExportedSubtask,
    ExportTask as ExportTask,
    SavepointReport as SavepointReport,
    ScratchSpace as ScratchSpace,
    export_tasks as export_tasks,
    finish_savepoint as finish_savepoint,
)
from statebackend.savepoint.restored_state import RestoredState as RestoredState
from statebackend.savepoint.savepoint import Savepoint as Savepoint
from statebackend.savepoint.state_entries import StateEntries as StateEntries
from statebackend.savepoint.stored_entries import StateEntry as StateEntry
from statebackend.state.backend_parameters import (
    KeyedStateBackendParameters as KeyedStateBackendParameters,
    KeyedStateSnapshot as KeyedStateSnapshot,
    RestoredHandle as RestoredHandle,
    StateRestoreReport as StateRestoreReport,
)
from statebackend.state.errors import (
    NoCurrentKeyError as NoCurrentKeyError,
    StateBackendClosedError as StateBackendClosedError,
    StateBackendError as StateBackendError,
    StateMigrationException as StateMigrationException,
    StateRegistrationError as StateRegistrationError,
    StateRestoreError as StateRestoreError,
)
from statebackend.state.folding_states import (
    AggregatingStateDescriptor as AggregatingStateDescriptor,
    ReducingStateDescriptor as ReducingStateDescriptor,
)
from statebackend.state.heap.heap_state_backend import HeapStateBackend as HeapStateBackend
from statebackend.state.key_groups import (
    KeyGroupRange as KeyGroupRange,
    key_group_range_of_subtask as key_group_range_of_subtask,
    subtask_of_key_group as subtask_of_key_group,
)
from statebackend.state.keyed_state_backend import KeyedStateBackend as KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor as ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor as MapStateDescriptor
from statebackend.state.metrics import (
    LatencyHistogram as LatencyHistogram,
    StateMetrics as StateMetrics,
    StateMetricsConfig as StateMetricsConfig,
)
from statebackend.state.operator_state_backend import (
    OperatorStateBackend as OperatorStateBackend,
    OperatorStateBackendParameters as OperatorStateBackendParameters,
)
from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor as BroadcastStateDescriptor,
    OperatorStateDescriptor as OperatorStateDescriptor,
    OperatorStateMode as OperatorStateMode,
    SplitListStateDescriptor as SplitListStateDescriptor,
    UnionListStateDescriptor as UnionListStateDescriptor,
)
from statebackend.state.priority_queue import (
    KeyGroupedPriorityQueue as KeyGroupedPriorityQueue,
    PriorityQueueDescriptor as PriorityQueueDescriptor,
)
from statebackend.state.progress import (
    Operation as Operation,
    Progress as Progress,
    ProgressListener as ProgressListener,
)
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend as RocksDBStateBackend
from statebackend.state.state_backend import (
    StateBackend as StateBackend,
    UnknownStateBackendError as UnknownStateBackendError,
    known_state_backends as known_state_backends,
    state_backend as state_backend,
)
from statebackend.state.state_compatibility import (
    SchemaReport as SchemaReport,
    StateCompatibility as StateCompatibility,
)
from statebackend.state.state_kind import StateDescriptor as StateDescriptor, StateKind as StateKind
from statebackend.state.state_store import StateStore as StateStore, StateTable as StateTable
from statebackend.state.states import (
    AggregateFunction as AggregateFunction,
    AggregatingState as AggregatingState,
    BroadcastState as BroadcastState,
    DefaultedValueState as DefaultedValueState,
    ListState as ListState,
    MapState as MapState,
    ReadOnlyBroadcastState as ReadOnlyBroadcastState,
    ReduceFunction as ReduceFunction,
    ReducingState as ReducingState,
    State as State,
    ValueState as ValueState,
)
from statebackend.state.ttl_config import (
    IncrementalCleanup as IncrementalCleanup,
    StateTtlConfig as StateTtlConfig,
    TtlStateVisibility as TtlStateVisibility,
    TtlUpdateType as TtlUpdateType,
)
from statebackend.state.value_state import ValueStateDescriptor as ValueStateDescriptor
from statebackend.streaming.aggregates import (
    Aggregate as Aggregate,
    approx_count_distinct as approx_count_distinct,
    approx_percentile as approx_percentile,
    avg as avg,
    count as count,
    first_value as first_value,
    last_value as last_value,
    max_ as max_,
    min_ as min_,
    sum_ as sum_,
    top_k as top_k,
)
from statebackend.streaming.async_functions import (
    AsyncContext as AsyncContext,
    AsyncFunction as AsyncFunction,
    AsyncRetryStrategy as AsyncRetryStrategy,
)
from statebackend.streaming.batch_functions import (
    BatchContext as BatchContext,
    BatchRuntimeContext as BatchRuntimeContext,
    BatchTimerService as BatchTimerService,
    Groups as Groups,
    KeyedBatchFunction as KeyedBatchFunction,
)
from statebackend.streaming.broadcast_functions import (
    BroadcastContext as BroadcastContext,
    BroadcastOnTimerContext as BroadcastOnTimerContext,
    BroadcastProcessFunction as BroadcastProcessFunction,
    KeyedBroadcastContext as KeyedBroadcastContext,
    KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction,
    KeyedReadOnlyContext as KeyedReadOnlyContext,
    ReadOnlyContext as ReadOnlyContext,
)
from statebackend.streaming.bulk_states import (
    BulkAggregatingState as BulkAggregatingState,
    BulkListState as BulkListState,
    BulkMapState as BulkMapState,
    BulkReducingState as BulkReducingState,
    BulkValueState as BulkValueState,
    Keys as Keys,
)
from statebackend.streaming.connected_streams import (
    BroadcastConnectedStream as BroadcastConnectedStream,
    BroadcastStream as BroadcastStream,
    ConnectedStreams as ConnectedStreams,
    IntervalJoin as IntervalJoin,
    JoinedStreams as JoinedStreams,
    MultipleConnectedStreams as MultipleConnectedStreams,
)
from statebackend.streaming.data_stream import (
    AsyncDataStream as AsyncDataStream,
    DataStream as DataStream,
    KeyedStream as KeyedStream,
)
from statebackend.streaming.errors import (
    AggregateOverflowError as AggregateOverflowError,
    AsyncTimeoutError as AsyncTimeoutError,
    EpochError as EpochError,
    EpochTimeoutError as EpochTimeoutError,
    JobDefinitionError as JobDefinitionError,
    JobRestoreError as JobRestoreError,
    MissingModuleError as MissingModuleError,
    MissingTimestampError as MissingTimestampError,
    NullKeyError as NullKeyError,
    SourceProgressMismatchError as SourceProgressMismatchError,
    StreamJobError as StreamJobError,
    UserFunctionError as UserFunctionError,
)
from statebackend.streaming.functions import (
    JoinContext as JoinContext,
    KeyedCoProcessFunction as KeyedCoProcessFunction,
    KeyedMultipleInputFunction as KeyedMultipleInputFunction,
    KeyedProcessFunction as KeyedProcessFunction,
    OnTimerContext as OnTimerContext,
    OperatorStateStore as OperatorStateStore,
    ProcessContext as ProcessContext,
    ProcessJoinFunction as ProcessJoinFunction,
    RuntimeContext as RuntimeContext,
    TimeDomain as TimeDomain,
    TimerService as TimerService,
)
from statebackend.streaming.output_tag import OutputTag as OutputTag
from statebackend.streaming.rows.record_schema import ColumnType as ColumnType
from statebackend.streaming.rows.record_serializer import Row as Row
from statebackend.streaming.sink import Sink as Sink, SinkError as SinkError
from statebackend.streaming.time.watermark_generators import (
    WatermarkGenerator as WatermarkGenerator,
    WatermarkOutput as WatermarkOutput,
)
from statebackend.streaming.watermark_strategy import (
    FUTURE_RECORDS as FUTURE_RECORDS,
    WatermarkStrategy as WatermarkStrategy,
)
from statebackend.streaming.windows.assigners import (
    EventTimeSessionWindows as EventTimeSessionWindows,
    GlobalWindows as GlobalWindows,
    ProcessingTimeSessionWindows as ProcessingTimeSessionWindows,
    SlidingEventTimeWindows as SlidingEventTimeWindows,
    SlidingProcessingTimeWindows as SlidingProcessingTimeWindows,
    TumblingEventTimeWindows as TumblingEventTimeWindows,
    TumblingProcessingTimeWindows as TumblingProcessingTimeWindows,
    WindowAssigner as WindowAssigner,
)
from statebackend.streaming.windows.evictors import (
    CountEvictor as CountEvictor,
    DeltaEvictor as DeltaEvictor,
    Evictor as Evictor,
    TimeEvictor as TimeEvictor,
    TimestampedValue as TimestampedValue,
)
from statebackend.streaming.windows.triggers import (
    ContinuousEventTimeTrigger as ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger as ContinuousProcessingTimeTrigger,
    CountTrigger as CountTrigger,
    DeltaTrigger as DeltaTrigger,
    EventTimeTrigger as EventTimeTrigger,
    NeverTrigger as NeverTrigger,
    OnMergeContext as OnMergeContext,
    ProcessingTimeTrigger as ProcessingTimeTrigger,
    PurgingTrigger as PurgingTrigger,
    Trigger as Trigger,
    TriggerContext as TriggerContext,
    TriggerResult as TriggerResult,
)
from statebackend.streaming.windows.window_functions import (
    ProcessWindowFunction as ProcessWindowFunction,
    WindowContext as WindowContext,
    WindowRuntimeContext as WindowRuntimeContext,
)
from statebackend.streaming.windows.windowed_stream import WindowedStream as WindowedStream
from typeserializers.times.timers import GlobalWindow as GlobalWindow, TimeWindow as TimeWindow
