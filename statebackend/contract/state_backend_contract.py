"""The whole contract of a keyed state backend; see the package for how to use it.

The cases follow what Flink's ``StateBackendTestBase`` and ``StateBackendMigrationTestBase`` show for keyed value, list,
map, reducing and aggregating state, and add what is promised here: records that evolve, canonical savepoints,
increments, digests.
"""

from __future__ import annotations

from statebackend.contract.asynchronous_snapshot_contract import AsynchronousSnapshotContract
from statebackend.contract.backend_configuration_contract import BackendConfigurationContract
from statebackend.contract.digest_contract import DigestContract
from statebackend.contract.failing_migration_contract import FailingMigrationContract
from statebackend.contract.folding_state_contract import FoldingStateContract
from statebackend.contract.key_enumeration_contract import KeyEnumerationContract
from statebackend.contract.keyed_context_contract import KeyedContextContract
from statebackend.contract.learning_contract import LearningContract
from statebackend.contract.list_state_contract import ListStateContract
from statebackend.contract.map_state_contract import MapStateContract
from statebackend.contract.merging_contract import MergingContract
from statebackend.contract.migration_contract import MigrationContract
from statebackend.contract.namespace_contract import NamespaceContract
from statebackend.contract.priority_queue_contract import PriorityQueueContract
from statebackend.contract.priority_queue_restore_contract import PriorityQueueRestoreContract
from statebackend.contract.reconfiguration_contract import ReconfigurationContract
from statebackend.contract.rescale_contract import RescaleContract
from statebackend.contract.snapshot_contract import SnapshotContract
from statebackend.contract.state_metrics_contract import StateMetricsContract
from statebackend.contract.ttl_cleanup_contract import TtlCleanupContract
from statebackend.contract.ttl_restore_contract import TtlRestoreContract
from statebackend.contract.ttl_state_contract import TtlStateContract
from statebackend.contract.union_contract import UnionContract
from statebackend.contract.value_state_contract import ValueStateContract


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
    DigestContract,
    RescaleContract,
    MigrationContract,
    FailingMigrationContract,
    ReconfigurationContract,
    LearningContract,
    UnionContract,
    TtlStateContract,
    TtlRestoreContract,
    TtlCleanupContract,
    StateMetricsContract,
    BackendConfigurationContract,
):
    """Subclass it and implement `create_state_backend`; pytest collects the subclass if its name begins with Test."""
