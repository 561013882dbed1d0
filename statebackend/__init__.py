"""Where state lives: descriptors, state handles, key groups, and the backends."""

from statebackend.aggregate_function import AggregateFunction, ReduceFunction
from statebackend.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    RestoredHandle,
    StateRestoreReport,
)
from statebackend.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from statebackend.errors import (
    NoCurrentKeyError,
    StateBackendClosedError,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
    StateRestoreError,
)
from statebackend.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.keyed_state_backend import KeyedStateBackend
from statebackend.metrics import LatencyHistogram, StateMetrics, StateMetricsConfig
from statebackend.operator_state import (
    BroadcastState,
    BroadcastStateDescriptor,
    OperatorStateBackend,
    OperatorStateBackendParameters,
    OperatorStateDescriptor,
    OperatorStateMode,
    ReadOnlyBroadcastState,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.priority_queue import KeyGroupedPriorityQueue
from statebackend.schema_resolution import SchemaReport, StateVerdict
from statebackend.state_backend import StateBackend
from statebackend.states import (
    AggregatingState,
    DefaultedValueState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from statebackend.ttl.config import IncrementalCleanup, StateTtlConfig, TtlStateVisibility, TtlUpdateType

__all__ = [
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastState",
    "BroadcastStateDescriptor",
    "DefaultedValueState",
    "IncrementalCleanup",
    "KeyGroupRange",
    "KeyGroupedPriorityQueue",
    "KeyedStateBackend",
    "KeyedStateBackendParameters",
    "KeyedStateSnapshot",
    "LatencyHistogram",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "NoCurrentKeyError",
    "OperatorStateBackend",
    "OperatorStateBackendParameters",
    "OperatorStateDescriptor",
    "OperatorStateMode",
    "PriorityQueueDescriptor",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RestoredHandle",
    "SchemaReport",
    "SplitListStateDescriptor",
    "State",
    "StateBackend",
    "StateBackendClosedError",
    "StateBackendError",
    "StateDescriptor",
    "StateKind",
    "StateMetrics",
    "StateMetricsConfig",
    "StateMigrationException",
    "StateRegistrationError",
    "StateRestoreError",
    "StateRestoreReport",
    "StateTtlConfig",
    "StateVerdict",
    "TtlStateVisibility",
    "TtlUpdateType",
    "UnionListStateDescriptor",
    "ValueState",
    "ValueStateDescriptor",
    "key_group_range_of_subtask",
    "subtask_of_key_group",
]
