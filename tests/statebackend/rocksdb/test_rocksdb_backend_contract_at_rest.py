"""RocksDB keeps those parts of the contract that restore also where a backend finds what it wants on the disk."""

import os

from attrs import evolve

from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.keyed.state_backend import StateBackend
from statebackend.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from testkit.backends.asynchronous_snapshot_contract import AsynchronousSnapshotContract
from testkit.backends.digest_contract import DigestContract
from testkit.backends.failing_migration_contract import FailingMigrationContract
from testkit.backends.interrupted_snapshot_contract import InterruptedSnapshotContract
from testkit.backends.learning_contract import LearningContract
from testkit.backends.list_state_contract import ListStateContract
from testkit.backends.map_state_contract import MapStateContract
from testkit.backends.merging_contract import MergingContract
from testkit.backends.namespace_contract import NamespaceContract
from testkit.backends.priority_queue_contract import PriorityQueueContract
from testkit.backends.priority_queue_restore_contract import PriorityQueueRestoreContract
from testkit.backends.reconfiguration_contract import ReconfigurationContract
from testkit.backends.snapshot_contract import SnapshotContract
from testkit.backends.ttl_cleanup_contract import TtlCleanupContract
from testkit.backends.ttl_restore_contract import TtlRestoreContract
from testkit.backends.ttl_state_contract import TtlStateContract
from testkit.backends.union_contract import UnionContract
from testkit.backends.unreadable_entries_contract import UnreadableEntriesContract
from testkit.backends.value_state_contract import ValueStateContract


class FoundOnTheDisk(RocksDBStateBackend):
    """What a backend of one handle would restore is in its local directory already."""

    def create_keyed_state_backend(self, parameters):
        if len(parameters.restore) == 1 and not os.path.exists(os.path.join(parameters.local_directory, "VERSION")):
            elsewhere = CheckpointFileSystem.from_uri(f"{parameters.local_directory}-elsewhere")
            before = super().create_keyed_state_backend(evolve(parameters, file_system=elsewhere))
            before.snapshot(1, parameters.restore[0].handle.state_id)
            before.close()
        return super().create_keyed_state_backend(parameters)


class TestRocksDBStateBackendAtRest(
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
