"""Savepoint export: one task per subtask rewrites the state of a completed checkpoint in canonical form.

1. `export_tasks` makes the tasks. They are picklable and independent of the job's program. The runtime decides where
   they run: in Spark, or one after the other in the local runtime.
2. Each task restores its subtask into a private directory and writes its rows as Parquet. It drops entries that are
   expired by the time-to-live that the caller passes, because no descriptor is registered here.
3. `finish_savepoint` writes the metadata last. Without it the savepoint is incomplete.
"""

from __future__ import annotations

import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from attrs import evolve, frozen

from statebackend.checkpoint.errors import SavepointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle, OperatorState, SubtaskState
from statebackend.checkpoint.store.savepoint_directory import write_savepoint
from statebackend.state.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.state.canonical_files import export_canonical_handle
from statebackend.state.clock import StoppedClock, wall_clock
from statebackend.state.descriptors import Descriptor
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.operator_state_backend import export_operator_state
from statebackend.state.private_directory import temporary_directory
from statebackend.state.progress import Operation, Progress, ProgressListener, StateProgress, no_progress
from statebackend.state.state_backend import state_backend
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import CANONICAL_BACKEND, decode_meta
from statebackend.state.ttl_config import StateTtlConfig
from typeserializers.kernel.type_serializer import TypeSerializer

_BACKEND_OF_CANONICAL: Final = "rocksdb"


class ScratchSpace(Protocol):
    """Local disk space for tasks on the host where they run. Picklable."""

    def scratch(self) -> AbstractContextManager[str]:
        """Return a context manager for a new private directory, removed at its end."""


@frozen
class ExportedSubtask:
    """The canonical state of one subtask, with the number of rows of each state."""

    operator_uid: str
    subtask_index: int
    state: SubtaskState
    rows: Mapping[str, int]
    operator_state_rows: Mapping[str, int]


@frozen
class ExportTask:
    """A picklable task that exports the state of one subtask.

    Attributes:
        ttl: The time-to-live of each state. Entries that are expired at ``now_ms`` are dropped.
        scratch_space: Where the state is restored; None for the system's temporary directory.
    """

    operator_uid: str
    subtask_index: int
    max_parallelism: int
    state: SubtaskState
    source: CheckpointFileSystem
    target: CheckpointFileSystem
    ttl: Mapping[str, StateTtlConfig]
    now_ms: int
    scratch_space: ScratchSpace | None = None
    registered: Sequence[tuple[Descriptor, TypeSerializer[Any]]] = ()
    """Descriptors with their namespace serializers. Entries are migrated to them before they are written."""

    def run(self, progress: ProgressListener = no_progress) -> ExportedSubtask:
        """Write the files and report progress.

        Raises:
            SavepointError: The subtask has in-flight records, which no savepoint can hold.
        """

        def report(one: Progress) -> None:
            progress(evolve(one, subtask_index=self.subtask_index))

        state = self.state
        if state.has_in_flight_records:
            raise SavepointError(
                f"subtask {self.subtask_index} of operator {self.operator_uid!r} has records in flight among its "
                f"state, which a savepoint cannot hold: take it from a checkpoint with aligned barriers"
            )
        directory, stem = f"operators/{path_segment(self.operator_uid)}", f"part-{self.subtask_index:05d}"
        keyed, rows = (None, {}) if state.keyed is None else self._export_keyed(state.keyed, directory, stem, report)
        operator, operator_state_rows = export_operator_state(state.operator, self.source, self.target, directory, stem)
        for name, count in operator_state_rows.items():
            state_progress = StateProgress(report, Operation.SAVEPOINT, self.operator_uid, name)
            state_progress.add(count)
            state_progress.done()
        exported = SubtaskState(keyed, operator)
        return ExportedSubtask(self.operator_uid, self.subtask_index, exported, rows, operator_state_rows)

    def _export_keyed(
        self, handle: KeyedStateHandle, directory: str, stem: str, progress: ProgressListener
    ) -> tuple[KeyedStateHandle, Mapping[str, int]]:
        meta = decode_meta(handle.meta, len(handle.files))
        with self._scratch() as local_directory:
            parameters = KeyedStateBackendParameters(
                operator_uid=self.operator_uid,
                key_serializer=meta.key_snapshot.restore_serializer(),
                max_parallelism=self.max_parallelism,
                key_group_range=KeyGroupRange(handle.key_group_start, handle.key_group_end),
                file_system=self.target,
                file_prefix="unused",
                local_directory=os.path.join(local_directory, "state"),
                restore=(RestoredHandle(handle, self.source),),
                clock=StoppedClock(self.now_ms),
            )
            # Every backend reads canonical files; this one does not hold all of it in memory.
            name_of_backend = _BACKEND_OF_CANONICAL if handle.backend == CANONICAL_BACKEND else handle.backend
            with state_backend(name_of_backend).create_keyed_state_backend(parameters) as backend:
                for name, ttl in self.ttl.items():
                    backend.declare_ttl(name, ttl)
                for descriptor, namespaces in self.registered:
                    if isinstance(descriptor, StateDescriptor):
                        backend.get_or_create_keyed_state(namespaces, descriptor)
                return export_canonical_handle(
                    backend,
                    self.target,
                    directory,
                    stem,
                    uuid.uuid4().hex,
                    scratch_directory=local_directory,
                    progress=progress,
                )

    def _scratch(self) -> AbstractContextManager[str]:
        if self.scratch_space is not None:
            return self.scratch_space.scratch()
        return temporary_directory()


@frozen
class SavepointReport:
    """A written savepoint: its path, epoch, size, duration, and rows of keyed and operator state by uid and name."""

    path: str
    epoch_id: int
    rows: Mapping[str, Mapping[str, int]]
    operator_state_rows: Mapping[str, Mapping[str, int]]
    size_bytes: int
    duration_s: float


def export_tasks(
    metadata: CheckpointMetadata,
    source: CheckpointFileSystem,
    target: CheckpointFileSystem,
    registered: Mapping[str, Iterable[StateDescriptor]],
    now_ms: int,
    scratch_space: ScratchSpace | None = None,
) -> Sequence[ExportTask]:
    """Return the tasks that export a checkpoint to ``target``.

    Args:
        metadata: The checkpoint.
        source: Where its files are.
        target: Where the savepoint is written.
        registered: The descriptors of keyed state by operator uid. Their time-to-live decides what is expired.
        now_ms: The time for expiry.
        scratch_space: Where tasks restore state; None for the system's temporary directory.
    """
    ttl_by_operator = {
        uid: {descriptor.name: descriptor.ttl for descriptor in descriptors if descriptor.ttl is not None}
        for uid, descriptors in registered.items()
    }
    return [
        ExportTask(
            operator.uid,
            index,
            metadata.max_parallelism,
            subtask,
            source,
            target,
            ttl_by_operator.get(operator.uid, {}),
            now_ms,
            scratch_space,
        )
        for operator in metadata.operators
        for index, subtask in enumerate(operator.subtasks)
    ]


def finish_savepoint(
    metadata: CheckpointMetadata,
    exported: Iterable[ExportedSubtask],
    target: CheckpointFileSystem,
    source_progress_files: tuple[FileHandle, ...],
    started_s: float,
) -> SavepointReport:
    """Write the metadata, which completes the savepoint.

    Args:
        metadata: The checkpoint that was exported.
        exported: The results of all tasks.
        target: Where the savepoint is.
        source_progress_files: Copies of the source progress.
        started_s: Monotonic time at which the export started.
    """
    subtasks: dict[str, dict[int, SubtaskState]] = {}
    rows: dict[str, Counter[str]] = {}
    operator_state_rows: dict[str, Counter[str]] = {}
    for one in exported:
        subtasks.setdefault(one.operator_uid, {})[one.subtask_index] = one.state
        # Counter.update adds, and keeps states without rows.
        rows.setdefault(one.operator_uid, Counter()).update(one.rows)
        operator_state_rows.setdefault(one.operator_uid, Counter()).update(one.operator_state_rows)
    operators = tuple(
        OperatorState(
            operator.uid,
            operator.name,
            operator.max_parallelism,
            tuple(subtasks[operator.uid][index] for index in range(operator.parallelism)),
        )
        for operator in metadata.operators
    )
    savepoint = evolve(
        metadata,
        kind=CheckpointKind.SAVEPOINT,
        operators=operators,
        timestamp_ms=wall_clock(),
        parent_checkpoint_id=None,
        parent_digest=None,
        source_progress_files=source_progress_files,
        sink_committables={},
        sink_identities={},
    )
    write_savepoint(target, savepoint)
    return SavepointReport(
        target.location(""),
        metadata.checkpoint_id,
        rows,
        operator_state_rows,
        savepoint.size_bytes,
        time.monotonic() - started_s,
    )
