"""What every keyed state backend promises, as pytest classes that the author of a backend subclasses.

    from testkit.backends import StateBackendContract

    class TestPagedStateBackend(StateBackendContract):
        def create_state_backend(self) -> StateBackend:
            return PagedStateBackend()

`StateBackendContract` is all of it. Each part is exported by itself, for a backend that keeps some of it only, or that
runs a part once more in another configuration; a part is subclassed in the same way.

pytest must be installed; nothing else of the project imports this package.
"""

import pytest

_ASSERTING_MODULES = (
    "asynchronous_snapshot_contract",
    "backend_configuration_contract",
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
    "rescale_contract",
    "snapshot_contract",
    "state_metrics_contract",
    "ttl_cleanup_contract",
    "ttl_restore_contract",
    "ttl_state_contract",
    "union_contract",
    "unreadable_entries_contract",
    "value_state_contract",
    "state_backend_contract",
    "all_kinds",
    "contract_base",
    "gated_store_contract",
    "ttl_cases",
)

# Only modules that are imported after this call show what the two sides of a failed assertion were.
pytest.register_assert_rewrite(*(f"{__name__}.{module}" for module in _ASSERTING_MODULES))

from testkit.backends.asynchronous_snapshot_contract import AsynchronousSnapshotContract  # noqa: E402
from testkit.backends.backend_configuration_contract import BackendConfigurationContract  # noqa: E402
from testkit.backends.digest_contract import DigestContract  # noqa: E402
from testkit.backends.failing_migration_contract import FailingMigrationContract  # noqa: E402
from testkit.backends.folding_state_contract import FoldingStateContract  # noqa: E402
from testkit.backends.harness import BackendHarness  # noqa: E402
from testkit.backends.interrupted_snapshot_contract import InterruptedSnapshotContract  # noqa: E402
from testkit.backends.key_enumeration_contract import KeyEnumerationContract  # noqa: E402
from testkit.backends.keyed_context_contract import KeyedContextContract  # noqa: E402
from testkit.backends.learning_contract import LearningContract  # noqa: E402
from testkit.backends.list_state_contract import ListStateContract  # noqa: E402
from testkit.backends.map_state_contract import MapStateContract  # noqa: E402
from testkit.backends.merging_contract import MergingContract  # noqa: E402
from testkit.backends.migration_contract import MigrationContract  # noqa: E402
from testkit.backends.namespace_contract import NamespaceContract  # noqa: E402
from testkit.backends.priority_queue_contract import PriorityQueueContract  # noqa: E402
from testkit.backends.priority_queue_restore_contract import PriorityQueueRestoreContract  # noqa: E402
from testkit.backends.reconfiguration_contract import ReconfigurationContract  # noqa: E402
from testkit.backends.rescale_contract import RescaleContract  # noqa: E402
from testkit.backends.snapshot_contract import SnapshotContract  # noqa: E402
from testkit.backends.state_backend_contract import StateBackendContract  # noqa: E402
from testkit.backends.state_metrics_contract import StateMetricsContract  # noqa: E402
from testkit.backends.ttl_cleanup_contract import TtlCleanupContract  # noqa: E402
from testkit.backends.ttl_restore_contract import TtlRestoreContract  # noqa: E402
from testkit.backends.ttl_state_contract import TtlStateContract  # noqa: E402
from testkit.backends.union_contract import UnionContract  # noqa: E402
from testkit.backends.unreadable_entries_contract import UnreadableEntriesContract  # noqa: E402
from testkit.backends.value_state_contract import ValueStateContract  # noqa: E402

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
