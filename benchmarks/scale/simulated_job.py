"""A job with simulated tasks: the acknowledgements are made up, and the code of the driver is the real one."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from attrs import frozen
from pyspark import cloudpickle

from statebackend import ValueStateDescriptor
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import CheckpointCoordinator
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.handle_records import encode_subtask_state
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import (
    FileHandle,
    KeyedStateHandle,
    OperatorState,
    SubtaskState,
    files_by_path,
)
from statebackend.checkpoint.store.completed_checkpoint_store import DirectoryCheckpointStore
from statebackend.spark.tasks.channels import AcknowledgementSender, ProgressSender
from statebackend.spark.tasks.epoch_task import EpochTask, RunReference
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.state_meta import KeyedStateMeta, StateFile, encode_meta, meta_of_descriptor
from statebackend.streaming.runtime.restore_plan import write_restore_plan
from statebackend.streaming.runtime.subtask import OperatorEpoch
from typeserializers import StringSerializer

UID = "simulated"


@frozen
class CheckpointCost:
    """Processor time of the driver, and the largest closure, restore plan and acknowledgement of a task in bytes."""

    driver_s: float
    closure_bytes: int
    restore_bytes: int
    acknowledgement_bytes: int


class SimulatedJob:
    """A job of one operator; in each epoch each of its states gets one new file and loses its oldest."""

    def __init__(self, directory: Path, subtasks: int, states: int, files: int) -> None:
        self.directory = directory
        self._file_system = CheckpointFileSystem.from_uri(directory)
        self._store = DirectoryCheckpointStore(self._file_system, 3)
        self._store.recover()
        self._max_parallelism = max(subtasks, 128)
        self._coordinator = CheckpointCoordinator("job", "run", 2**50, max_parallelism=self._max_parallelism)
        descriptors = [ValueStateDescriptor(f"state-{number}", str) for number in range(states)]
        self._states = [meta_of_descriptor(descriptor, VOID_NAMESPACE_SERIALIZER) for descriptor in descriptors]
        self._key_snapshot = StringSerializer().snapshot_configuration()
        self._files: list[list[list[tuple[FileHandle, str]]]] = [
            [[self._new_file(index) for _ in range(files)] for _ in range(states)] for index in range(subtasks)
        ]
        self._restore: dict[str, Any] = {}
        self._operators: tuple[OperatorState, ...] = ()
        self._epoch_id = -1

    def run_epoch(self) -> CheckpointCost:
        """Run the next epoch, and return its cost."""
        self._epoch_id += 1
        epoch_id = self._epoch_id
        encoded = [self._acknowledgement(index).encode() for index in range(len(self._files))]
        started = time.process_time()
        closure = self._send(epoch_id)
        self._coordinator.trigger(epoch_id, [TaskId(UID, index) for index in range(len(encoded))], epoch_id)
        known_files = files_by_path(self._operators)
        for data in encoded:
            self._coordinator.acknowledge(Acknowledgement.decode(data, known_files))
        self._operators = operators = self._coordinator.complete(epoch_id).operators
        parent = self._store.latest()
        self._store.add(
            CheckpointMetadata(
                checkpoint_id=epoch_id,
                kind=CheckpointKind.CHECKPOINT,
                job_id="job",
                job_name="job",
                timestamp_ms=epoch_id,
                max_parallelism=self._max_parallelism,
                operators=operators,
                parent_checkpoint_id=None if parent is None else parent.checkpoint_id,
                parent_digest=None if parent is None else self._store.digest(parent.checkpoint_id),
            )
        )
        self._file_system.delete(f"restore-plans/run-{epoch_id}")
        self._restore = {operator.uid: operator.subtasks for operator in operators}
        driver_s = time.process_time() - started
        states = self._restore[UID]
        return CheckpointCost(
            driver_s,
            closure,
            max(len(encode_subtask_state(state)) for state in states),
            max(map(len, encoded)),
        )

    def _send(self, epoch_id: int) -> int:
        sections = write_restore_plan(self._file_system, f"restore-plans/run-{epoch_id}", self._restore)
        task = EpochTask(
            run_reference=RunReference("run", None),  # type: ignore[arg-type]
            operator_uid=UID,
            epoch=OperatorEpoch(epoch_id=epoch_id, processing_time_ms=epoch_id),
            restore=sections.get(UID),
            restored_from=self._file_system,
            acknowledgements=AcknowledgementSender(None),  # type: ignore[arg-type]
            progress=ProgressSender(None),  # type: ignore[arg-type]
        )
        return len(cloudpickle.dumps(task.run))  # type: ignore[no-untyped-call]

    def _acknowledgement(self, index: int) -> Acknowledgement:
        for state in self._files[index]:
            state[:] = [*state[1:], self._new_file(index)]
        handles: list[FileHandle] = []
        metas = []
        for meta, state in zip(self._states, self._files[index], strict=True):
            first = len(handles)
            handles += [file for file, _ in state]
            written = tuple(StateFile(first + number, state_id) for number, (_, state_id) in enumerate(state))
            metas.append(meta.with_files(written))
        key_groups = key_group_range_of_subtask(index, len(self._files), self._max_parallelism)
        return Acknowledgement(
            job_id="job",
            run_id="run",
            checkpoint_id=self._epoch_id,
            operator_uid=UID,
            subtask_index=index,
            attempt_id=f"0.{index}.0.0",
            digest="digest",
            state=SubtaskState(
                KeyedStateHandle(
                    os.urandom(16).hex(),
                    "rocksdb",
                    key_groups.start,
                    key_groups.end,
                    encode_meta(KeyedStateMeta(self._key_snapshot, 0, tuple(metas))),
                    tuple(handles),
                )
            ),
        )

    def _new_file(self, index: int) -> tuple[FileHandle, str]:
        state_id = os.urandom(16).hex()
        path = f"shared/{UID}/{index:05d}/{state_id}.sst"
        target = self.directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
        return FileHandle(path, 0, f"xxh3:{os.urandom(16).hex()}"), state_id
