"""The whole contract of a keyed state backend; see the package for how to use it.

The cases follow what Flink's ``StateBackendTestBase`` and ``StateBackendMigrationTestBase`` show for keyed value, list,
map, reducing and aggregating state, and add what is promised here: records that evolve, canonical savepoints,
increments, digests.
"""

from __future__ import annotations

from testkit.backends.asynchronous_snapshot_contract import AsynchronousSnapshotContract
from testkit.backends.backend_configuration_contract import BackendConfigurationContract
from testkit.backends.digest_contract import DigestContract
from testkit.backends.failing_migration_contract import FailingMigrationContract
from testkit.backends.folding_state_contract import FoldingStateContract
from testkit.backends.interrupted_snapshot_contract import InterruptedSnapshotContract
from testkit.backends.key_enumeration_contract import KeyEnumerationContract
from testkit.backends.keyed_context_contract import KeyedContextContract
from testkit.backends.learning_contract import LearningContract
from testkit.backends.list_state_contract import ListStateContract
from testkit.backends.map_state_contract import MapStateContract
from testkit.backends.merging_contract import MergingContract
from testkit.backends.migration_contract import MigrationContract
from testkit.backends.namespace_contract import NamespaceContract
from testkit.backends.priority_queue_contract import PriorityQueueContract
from testkit.backends.priority_queue_restore_contract import PriorityQueueRestoreContract
from testkit.backends.reconfiguration_contract import ReconfigurationContract
from testkit.backends.rescale_contract import RescaleContract
from testkit.backends.snapshot_contract import SnapshotContract
from testkit.backends.state_metrics_contract import StateMetricsContract
from testkit.backends.ttl_cleanup_contract import TtlCleanupContract
from testkit.backends.ttl_restore_contract import TtlRestoreContract
from testkit.backends.ttl_state_contract import TtlStateContract
from testkit.backends.union_contract import UnionContract
from testkit.backends.unreadable_entries_contract import UnreadableEntriesContract
from testkit.backends.value_state_contract import ValueStateContract


class StateBackendContract(
    ValueStateContract,
    ListStateContract,
    MapStateContract,
    FoldingStateContract,
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
    """Subclass it and implement `create_state_backend`; pytest collects the subclass if its name begins with Test."""
