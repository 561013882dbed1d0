"""Where state lives: descriptors, state handles, key groups, and the backends."""

from statebackend.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
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
from statebackend.keyed_state_backend import (
    KeyedStateBackend,
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    RestoredHandle,
    StateBackend,
    StateRestoreReport,
)
from statebackend.schema_resolution import SchemaReport, StateVerdict
from statebackend.states import ListState, MapState, State, ValueState

__all__ = [
    "KeyGroupRange",
    "KeyedStateBackend",
    "KeyedStateBackendParameters",
    "KeyedStateSnapshot",
    "ListState",
    "ListStateDescriptor",
    "MapState",
    "MapStateDescriptor",
    "NoCurrentKeyError",
    "RestoredHandle",
    "SchemaReport",
    "State",
    "StateBackend",
    "StateBackendClosedError",
    "StateBackendError",
    "StateDescriptor",
    "StateKind",
    "StateMigrationException",
    "StateRegistrationError",
    "StateRestoreError",
    "StateRestoreReport",
    "StateVerdict",
    "ValueState",
    "ValueStateDescriptor",
    "key_group_range_of_subtask",
    "subtask_of_key_group",
]
