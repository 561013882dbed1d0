"""The contract of keyed state backends, as pytest classes.

    from statebackend.testing.backends import StateBackendContract

    class TestPagedStateBackend(StateBackendContract):
        def create_state_backend(self) -> StateBackend:
            return PagedStateBackend()

`StateBackendContract` is the whole suite. Its parts are also exported, for a backend that supports only some of them.
"""

import pytest

_ASSERTING_MODULES = (
    "asynchronous_snapshot_contract",
    "configuration_contract",
    "digest_contract",
    "failing_migration_contract",
    "folding_state_contract",
    "interrupted_snapshot_contract",
    "key_enumeration_contract",
    "keyed_context_contract",
    "learning_contract",
    "list_state_contract",
    "map_state_contract",
    "merging_contract",
    "migration_contract",
    "namespace_contract",
    "priority_queue_contract",
    "priority_queue_restore_contract",
    "reconfiguration_contract",
    "snapshot_contract",
    "state_metrics_contract",
    "ttl_cleanup_contract",
    "ttl_restore_contract",
    "ttl_state_contract",
    "union_contract",
    "value_state_contract",
    "state_backend_contract",
    "harness",
    "gated_stores",
    "ttl_cases",
)

# pytest shows the values of failed assertions only for modules that are imported after this call.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _ASSERTING_MODULES))

from statebackend.testing.backends.asynchronous_snapshot_contract import AsynchronousSnapshotContract
from statebackend.testing.backends.configuration_contract import BackendConfigurationContract
from statebackend.testing.backends.digest_contract import DigestContract
from statebackend.testing.backends.failing_migration_contract import FailingMigrationContract
from statebackend.testing.backends.folding_state_contract import FoldingStateContract
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.backends.interrupted_snapshot_contract import InterruptedSnapshotContract
from statebackend.testing.backends.key_enumeration_contract import KeyEnumerationContract
from statebackend.testing.backends.keyed_context_contract import KeyedContextContract
from statebackend.testing.backends.learning_contract import LearningContract
from statebackend.testing.backends.list_state_contract import ListStateContract
from statebackend.testing.backends.map_state_contract import MapStateContract
from statebackend.testing.backends.merging_contract import MergingContract
from statebackend.testing.backends.migration_contract import (
    MigrationContract,
    UnreadableEntriesContract,
)
from statebackend.testing.backends.namespace_contract import NamespaceContract
from statebackend.testing.backends.priority_queue_contract import PriorityQueueContract
from statebackend.testing.backends.priority_queue_restore_contract import PriorityQueueRestoreContract
from statebackend.testing.backends.reconfiguration_contract import ReconfigurationContract
from statebackend.testing.backends.snapshot_contract import (
    RescaleContract,
    SnapshotContract,
)
from statebackend.testing.backends.state_backend_contract import StateBackendContract
from statebackend.testing.backends.state_metrics_contract import StateMetricsContract
from statebackend.testing.backends.ttl_cleanup_contract import TtlCleanupContract
from statebackend.testing.backends.ttl_restore_contract import TtlRestoreContract
from statebackend.testing.backends.ttl_state_contract import TtlStateContract
from statebackend.testing.backends.union_contract import UnionContract
from statebackend.testing.backends.value_state_contract import ValueStateContract

__all__ = [
    "AsynchronousSnapshotContract",
    "BackendConfigurationContract",
    "BackendHarness",
    "DigestContract",
    "FailingMigrationContract",
    "FoldingStateContract",
    "InterruptedSnapshotContract",
    "KeyEnumerationContract",
    "KeyedContextContract",
    "LearningContract",
    "ListStateContract",
    "MapStateContract",
    "MergingContract",
    "MigrationContract",
    "NamespaceContract",
    "PriorityQueueContract",
    "PriorityQueueRestoreContract",
    "ReconfigurationContract",
    "RescaleContract",
    "SnapshotContract",
    "StateBackendContract",
    "StateMetricsContract",
    "TtlCleanupContract",
    "TtlRestoreContract",
    "TtlStateContract",
    "UnionContract",
    "UnreadableEntriesContract",
    "ValueStateContract",
]
