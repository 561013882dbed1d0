"""The storage of a run's checkpoints and savepoints, and its invariants.

On a disk there is one writer, unless the run leads through ZooKeeper. On an object store the lease decides who writes.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.object_store import ObjectPointers
from statebackend.checkpoint.ha.zookeeper import (
    JobNodes,
    ZooKeeperLeadership,
    ZooKeeperPointers,
    ZooKeeperSettings,
    encode_text,
)
from statebackend.checkpoint.invariants import checksum_of_bytes
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.checkpoint.store.completed_checkpoint_store import (
    CompletedCheckpointStore,
    DirectoryCheckpointStore,
)
from statebackend.checkpoint.store.savepoint_directory import write_savepoint
from verification.simulation.cluster.history import History
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.run_lease import RunLease
from verification.simulation.cluster.task import TaskState
from verification.simulation.host.disk import Process
from verification.simulation.host.machine import Machine
from verification.simulation.promises import check_files, check_nothing_is_left
from verification.simulation.violation import require_that

__all__ = ["RunStorage", "StoredTask"]

_JOB_ROOT: Final = "job"

StoredTask = tuple[TaskState, tuple[tuple[FileHandle, int], ...]]
"""The state of a task in a checkpoint, and its files, each with the number of origins up to its end."""


@define(eq=False)
class RunStorage:
    """The storage of a run. Call `open` first."""

    plan: ClusterPlan
    machine: Machine
    history: History
    process: Process
    run_id: str
    lease: RunLease
    store: CompletedCheckpointStore = field(init=False)
    files: CheckpointFileSystem = field(init=False)

    @property
    def leads(self) -> bool:
        """Whether no other driver has taken the lease."""
        return not self.plan.may_be_taken_over or self.history.leader == self.run_id

    def open(self) -> CheckpointMetadata | None:
        """Check the stored files, and return the newest checkpoint. None if another driver leads."""
        known = max(self.history.stored, default=-1)
        self.store = self._made_store()
        newest = self.store.recover()
        struck = len(self.machine.faults.struck)
        self.store.delete_orphans()
        if self.leads:
            self._check_start(newest, known, orphans_are_gone=len(self.machine.faults.struck) == struck)
        return newest

    def files_of(self, checkpoint_id: int, *, is_savepoint: bool) -> CheckpointFileSystem:
        """Return the directory for a task's part of a checkpoint or savepoint."""
        return self._savepoint_files(checkpoint_id) if is_savepoint else self.files

    def add(self, metadata: CheckpointMetadata) -> str:
        """Store a checkpoint or savepoint and return its root. Raises the errors of the storage."""
        if metadata.kind is CheckpointKind.SAVEPOINT:
            write_savepoint(self._savepoint_files(metadata.checkpoint_id), metadata)
            return self._savepoint_root(metadata.checkpoint_id)
        self.store.add(metadata)
        return _JOB_ROOT

    def states_of(self, metadata: CheckpointMetadata, root: str = _JOB_ROOT) -> dict[TaskId, StoredTask]:
        """Return each task's state in a checkpoint."""
        states: dict[TaskId, StoredTask] = {}
        for operator in metadata.operators:
            for index, subtask in enumerate(operator.subtasks):
                assert subtask.operator is not None
                pieces, files, upto = [], [], 0
                for file in subtask.operator.files:
                    content = self.machine.disk.files.get(f"{root}/{file.path}", b"")
                    require_that(
                        checksum_of_bytes(content) == file.checksum,
                        f"no file is missing: {file.path} is not as written",
                    )
                    pieces.append(content)
                    upto = len(TaskState.decode(pieces).seen)
                    files.append((file, upto))
                states[TaskId(operator.uid, index)] = TaskState.decode(pieces), tuple(files)
        return states

    def check_retained(self) -> None:
        """Check that every retained checkpoint has all its files."""
        for one in self.store.all():
            check_files(self.machine.disk, _JOB_ROOT, one, must_be_synced=False)

    def _made_store(self) -> CompletedCheckpointStore:
        are_objects = self.plan.is_on_objects
        self.files = self.machine.file_system(_JOB_ROOT, self.process, are_objects=are_objects)
        if self.plan.is_led_by_zookeeper:
            return self._store_in_zookeeper()
        return self._store_on_objects() if are_objects else DirectoryCheckpointStore(self.files, self.plan.retained)

    def _store_in_zookeeper(self) -> CompletedCheckpointStore:
        nodes = JobNodes("/jobs", "job")
        leadership = ZooKeeperLeadership(ZooKeeperSettings("simulated"), nodes, None)
        self.history.leader = self.run_id
        session = leadership.session
        for parent in (nodes.checkpoints, nodes.set_aside):
            session.make(parent)
        if not session.exists(nodes.last_id):
            rejected = leadership.commit(
                "begin the job",
                lambda transaction: transaction.create(nodes.last_id, encode_text(-1)),
                lambda: session.exists(nodes.last_id),
            )
            require_that(rejected is None, f"a job begins in ZooKeeper: {rejected}")
        pointers = ZooKeeperPointers(self.files, nodes, session, leadership)
        return CompletedCheckpointStore(self.files, pointers, self.plan.retained, leadership=leadership)

    def _store_on_objects(self) -> CompletedCheckpointStore:
        files = self.files
        objects = files.conditional
        assert objects is not None
        lease = self.lease.take(files)
        self.history.leader = self.run_id
        pointers = ObjectPointers(files, objects, "job")
        pointers.take_over(lease.token, lambda record: record)
        return CompletedCheckpointStore(files, pointers, self.plan.retained, leadership=lease)

    def _check_start(self, newest: CheckpointMetadata | None, known: int, *, orphans_are_gone: bool) -> None:
        disk = self.machine.disk
        found = -1 if newest is None else newest.checkpoint_id
        require_that(found >= known, f"a start finds the newest stored checkpoint: {known}, and not {found}")
        self.check_retained()
        for root, metadata in self.history.savepoints.items():
            check_files(disk, root, metadata, must_be_synced=False)
        if orphans_are_gone and not (self.plan.is_on_objects and disk.lists_late):
            check_nothing_is_left(disk, _JOB_ROOT, self.store.all())

    def _savepoint_files(self, checkpoint_id: int) -> CheckpointFileSystem:
        root = self._savepoint_root(checkpoint_id)
        return self.machine.file_system(root, self.process, are_objects=self.plan.is_on_objects)

    def _savepoint_root(self, checkpoint_id: int) -> str:
        return f"statebackend/savepoint/{self.run_id}-{checkpoint_id}"
