"""Where state lives: descriptors, state handles, key groups, and the backends."""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from statebackend.api.aggregate_function import AggregateFunction, ReduceFunction
from statebackend.api.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from statebackend.api.errors import (
    NoCurrentKeyError,
    StateBackendClosedError,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
    StateRestoreError,
)
from statebackend.api.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.api.priority_queue import KeyGroupedPriorityQueue
from statebackend.api.states import (
    AggregatingState,
    DefaultedValueState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
)
from statebackend.api.time_to_live import IncrementalCleanup, StateTtlConfig, TtlStateVisibility, TtlUpdateType
from statebackend.keyed.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    RestoredHandle,
    StateRestoreReport,
)
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.schema_resolution import SchemaReport, StateVerdict
from statebackend.keyed.state_backend import StateBackend
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
