"""The whole contract of a keyed state backend; `statebackend.testing.backends` shows how to use it.

The cases are those of Flink's ``StateBackendTestBase`` and ``StateBackendMigrationTestBase`` for keyed value, list,
map, reducing and aggregating state, plus evolving records, canonical savepoints, increments and digests.
"""

from __future__ import annotations

from statebackend.testing.backends.asynchronous_snapshot_contract import AsynchronousSnapshotContract
from statebackend.testing.backends.bulk_contract import BulkContract
from statebackend.testing.backends.configuration_contract import BackendConfigurationContract
from statebackend.testing.backends.digest_contract import DigestContract
from statebackend.testing.backends.failing_migration_contract import FailingMigrationContract
from statebackend.testing.backends.folding_state_contract import FoldingStateContract
from statebackend.testing.backends.interrupted_snapshot_contract import InterruptedSnapshotContract
from statebackend.testing.backends.key_enumeration_contract import KeyEnumerationContract
from statebackend.testing.backends.keyed_context_contract import KeyedContextContract
from statebackend.testing.backends.learning_contract import LearningContract
from statebackend.testing.backends.list_state_contract import ListStateContract
from statebackend.testing.backends.map_state_contract import MapStateContract
from statebackend.testing.backends.merging_contract import MergingContract
from statebackend.testing.backends.migration_contract import MigrationContract, UnreadableEntriesContract
from statebackend.testing.backends.namespace_contract import NamespaceContract
from statebackend.testing.backends.priority_queue_contract import PriorityQueueContract
from statebackend.testing.backends.priority_queue_restore_contract import PriorityQueueRestoreContract
from statebackend.testing.backends.reconfiguration_contract import ReconfigurationContract
from statebackend.testing.backends.snapshot_contract import RescaleContract, SnapshotContract
from statebackend.testing.backends.state_metrics_contract import StateMetricsContract
from statebackend.testing.backends.ttl_cleanup_contract import TtlCleanupContract
from statebackend.testing.backends.ttl_restore_contract import TtlRestoreContract
from statebackend.testing.backends.ttl_state_contract import TtlStateContract
from statebackend.testing.backends.union_contract import UnionContract
from statebackend.testing.backends.value_state_contract import ValueStateContract


class StateBackendContract(
    ValueStateContract,
    ListStateContract,
    MapStateContract,
    FoldingStateContract,
    BulkContract,
    NamespaceContract,
    MergingContract,
    PriorityQueueContract,
    PriorityQueueRestoreContract,
    KeyEnumerationContract,
    KeyedContextContract,
    SnapshotContract,
    AsynchronousSnapshotContract,
    InterruptedSnapshotContract,
    DigestContract,
    RescaleContract,
    MigrationContract,
    FailingMigrationContract,
    ReconfigurationContract,
    LearningContract,
    UnionContract,
    UnreadableEntriesContract,
    TtlStateContract,
    TtlRestoreContract,
    TtlCleanupContract,
    StateMetricsContract,
    BackendConfigurationContract,
):
    """All tests of a keyed state backend. Derive a class ``Test...`` and implement `create_state_backend`."""
