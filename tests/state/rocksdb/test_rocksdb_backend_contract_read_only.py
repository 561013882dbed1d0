"""The restore tests of the backend contract, on RocksDB backends that find their state on the local disk."""

import os

import pytest
from attrs import evolve

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.testing.backends.asynchronous_snapshot_contract import AsynchronousSnapshotContract
from statebackend.testing.backends.digest_contract import DigestContract
from statebackend.testing.backends.failing_migration_contract import FailingMigrationContract
from statebackend.testing.backends.interrupted_snapshot_contract import InterruptedSnapshotContract
from statebackend.testing.backends.learning_contract import LearningContract
from statebackend.testing.backends.list_state_contract import ListStateContract
from statebackend.testing.backends.map_state_contract import MapStateContract
from statebackend.testing.backends.merging_contract import MergingContract
from statebackend.testing.backends.migration_contract import UnreadableEntriesContract
from statebackend.testing.backends.namespace_contract import NamespaceContract
from statebackend.testing.backends.priority_queue_contract import PriorityQueueContract
from statebackend.testing.backends.priority_queue_restore_contract import PriorityQueueRestoreContract
from statebackend.testing.backends.reconfiguration_contract import ReconfigurationContract
from statebackend.testing.backends.snapshot_contract import SnapshotContract
from statebackend.testing.backends.ttl_cleanup_contract import TtlCleanupContract
from statebackend.testing.backends.ttl_restore_contract import TtlRestoreContract
from statebackend.testing.backends.ttl_state_contract import TtlStateContract
from statebackend.testing.backends.union_contract import UnionContract
from statebackend.testing.backends.value_state_contract import ValueStateContract


class FoundOnTheDisk(RocksDBStateBackend):
    """The state of a single handle is already in the local directory."""

    def create_keyed_state_backend(self, parameters):
        if len(parameters.restore) == 1 and not os.path.exists(os.path.join(parameters.local_directory, "VERSION")):
            elsewhere = CheckpointFileSystem.from_uri(f"{parameters.local_directory}-elsewhere")
            before = super().create_keyed_state_backend(evolve(parameters, file_system=elsewhere))
            before.snapshot(1, parameters.restore[0].handle.state_id)
            before.close()
        return super().create_keyed_state_backend(parameters)


@pytest.mark.extended
class TestRocksDBStateBackendReadOnly(
    ValueStateContract,
    ListStateContract,
    MapStateContract,
    NamespaceContract,
    MergingContract,
    PriorityQueueContract,
    PriorityQueueRestoreContract,
    SnapshotContract,
    AsynchronousSnapshotContract,
    InterruptedSnapshotContract,
    DigestContract,
    FailingMigrationContract,
    ReconfigurationContract,
    LearningContract,
    UnionContract,
    UnreadableEntriesContract,
    TtlStateContract,
    TtlRestoreContract,
    TtlCleanupContract,
):
    def create_state_backend(self) -> StateBackend:
        return FoundOnTheDisk()
