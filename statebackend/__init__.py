"""Where state lives: descriptors, state handles, key groups, and the backends.

No stream, job or Spark is known here, and none of what a checkpoint holds beside state.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from statebackend.api.aggregate_function import AggregateFunction, ReduceFunction
from statebackend.api.broadcast_state import BroadcastState, ReadOnlyBroadcastState
from statebackend.api.errors import (
    NoCurrentKeyError,
    StateBackendClosedError,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
    StateRestoreError,
)
from statebackend.api.key_groups import KeyGroupRange, key_group_range_of_subtask, subtask_of_key_group
from statebackend.api.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.api.priority_queue import KeyGroupedPriorityQueue
from statebackend.api.progress import Operation, Progress, ProgressListener
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
from statebackend.keyed.backend_registry import UnknownStateBackendError, known_state_backends, state_backend
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_store import StateStore, StateTable
from statebackend.keyed.state_verdicts import SchemaReport, StateVerdict
from statebackend.kinds.aggregating_kind import AggregatingStateDescriptor
from statebackend.kinds.list_kind import ListStateDescriptor
from statebackend.kinds.map_kind import MapStateDescriptor
from statebackend.kinds.reducing_kind import ReducingStateDescriptor
from statebackend.kinds.state_kind import StateDescriptor, StateKind
from statebackend.kinds.value_kind import ValueStateDescriptor
from statebackend.metrics import LatencyHistogram, StateMetrics, StateMetricsConfig
from statebackend.operator_state import OperatorStateBackend, OperatorStateBackendParameters
from statebackend.queues.queue_kind import PriorityQueueDescriptor

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
    "Operation",
    "OperatorStateBackend",
    "OperatorStateBackendParameters",
    "OperatorStateDescriptor",
    "OperatorStateMode",
    "PriorityQueueDescriptor",
    "Progress",
    "ProgressListener",
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
    "StateStore",
    "StateTable",
    "StateTtlConfig",
    "StateVerdict",
    "TtlStateVisibility",
    "TtlUpdateType",
    "UnionListStateDescriptor",
    "UnknownStateBackendError",
    "ValueState",
    "ValueStateDescriptor",
    "key_group_range_of_subtask",
    "known_state_backends",
    "state_backend",
    "subtask_of_key_group",
]
