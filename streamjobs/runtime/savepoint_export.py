"""Taking a savepoint: the handles of a completed checkpoint rewritten in canonical form, one task per subtask.

A task opens one handle in a temporary directory and exports all its states, keyed and operator state, as Parquet. Where
the tasks run (in Spark, or one after the other in this process) is the environment's business; what they return is put
together here.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager

from attrs import evolve, frozen

from checkpointing.handles.relative_path import path_segment
from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle, OperatorState, SubtaskState
from checkpointing.metadata.metadata_file import CheckpointKind, CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.savepoint_directory import write_savepoint
from statebackend.api.clock import StoppedClock
from statebackend.api.descriptors import StateDescriptor
from statebackend.api.key_groups import KeyGroupRange
from statebackend.api.time_to_live import StateTtlConfig
from statebackend.canonical.canonical_handles import export_canonical_handle
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, RestoredHandle
from statebackend.keyed.backend_registry import state_backend
from statebackend.keyed.state_meta import decode_meta
from statebackend.operator_state import export_operator_state, join_handles, split_handle
from streamjobs.runtime.local_state_root import LocalStateRoot


@frozen
class SavepointReport:
    """What was written: where, of which epoch, the rows of each operator's states, its size, and how long it took.

    ``rows`` are those of keyed state, ``operator_state_rows`` those of operator state, by uid and name of the state.
    """

    path: str
    epoch_id: int
    rows: Mapping[str, Mapping[str, int]]
    operator_state_rows: Mapping[str, Mapping[str, int]]
    size_bytes: int
    duration_s: float


@frozen
class ExportedSubtask:
    """The canonical handle of one subtask, and the rows of each state."""

    operator_uid: str
    subtask_index: int
    handle: KeyedStateHandle
    rows: Mapping[str, int]
    operator_state_rows: Mapping[str, int]


@frozen
class ExportTask:
    """One subtask's handle to export; picklable.

    What has expired at ``now_ms`` is left out: ``ttl`` says, by state, how long entries live, since nobody registers
    the states here. The state is opened in ``local_root``, or in the system's temporary directory if there is none.
    """

    operator_uid: str
    subtask_index: int
    max_parallelism: int
    handle: KeyedStateHandle
    source: CheckpointFileSystem
    target: CheckpointFileSystem
    ttl: Mapping[str, StateTtlConfig]
    now_ms: int
    local_root: LocalStateRoot | None = None

    def run(self) -> ExportedSubtask:
        """Writes the files."""
        handle, operator_state = split_handle(self.handle)
        directory, part = f"operators/{path_segment(self.operator_uid)}", f"part-{self.subtask_index:05d}"
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
            with state_backend(handle.backend).create_keyed_state_backend(parameters) as backend:
                for name, ttl in self.ttl.items():
                    backend.declare_ttl(name, ttl)
                exported, rows = export_canonical_handle(
                    backend, self.target, directory, part, uuid.uuid4().hex, scratch_directory=local_directory
                )
        copied, operator_state_rows = export_operator_state(operator_state, self.source, self.target, directory, part)
        return ExportedSubtask(
            self.operator_uid, self.subtask_index, join_handles(exported, copied), rows, operator_state_rows
        )

    def _scratch(self) -> AbstractContextManager[str]:
        if self.local_root is not None:
            return self.local_root.scratch()
        return tempfile.TemporaryDirectory(prefix="statebackend-savepoint-")


def export_tasks(
    metadata: CheckpointMetadata,
    source: CheckpointFileSystem,
    target: CheckpointFileSystem,
    registered: Mapping[str, Iterable[StateDescriptor]],
    now_ms: int,
    local_root: LocalStateRoot | None = None,
) -> Sequence[ExportTask]:
    """The tasks that rewrite a checkpoint whose files are in ``source``.

    ``registered`` are the descriptors of keyed state by operator uid; what has expired by them at ``now_ms`` is left
    out. ``local_root`` is where they work, by default the system's temporary directory.
    """
    ttl_by_operator = {
        uid: {descriptor.name: descriptor.ttl for descriptor in descriptors if descriptor.ttl is not None}
        for uid, descriptors in registered.items()
    }
    return [
        ExportTask(
            operator.uid,
            subtask.subtask_index,
            metadata.max_parallelism,
            subtask.handle,
            source,
            target,
            ttl_by_operator.get(operator.uid, {}),
            now_ms,
            local_root,
        )
        for operator in metadata.operators
        for subtask in operator.subtasks
    ]


def finish_savepoint(
    metadata: CheckpointMetadata,
    exported: Iterable[ExportedSubtask],
    target: CheckpointFileSystem,
    source_progress_files: tuple[FileHandle, ...],
    started_s: float,
) -> SavepointReport:
    """Writes the savepoint's metadata, last of all; ``started_s`` is the monotonic time of the beginning."""
    subtasks: dict[str, list[SubtaskState]] = {}
    rows: dict[str, Counter[str]] = {}
    operator_state_rows: dict[str, Counter[str]] = {}
    for one in exported:
        subtasks.setdefault(one.operator_uid, []).append(SubtaskState(one.subtask_index, one.handle))
        # A Counter's update adds, and keeps states without rows.
        rows.setdefault(one.operator_uid, Counter()).update(one.rows)
        operator_state_rows.setdefault(one.operator_uid, Counter()).update(one.operator_state_rows)
    operators = tuple(
        OperatorState(
            operator.uid,
            operator.name,
            operator.parallelism,
            operator.max_parallelism,
            tuple(sorted(subtasks[operator.uid], key=lambda subtask: subtask.subtask_index)),
        )
        for operator in metadata.operators
    )
    savepoint = evolve(
        metadata,
        kind=CheckpointKind.SAVEPOINT,
        operators=operators,
        timestamp_ms=time.time_ns() // 1_000_000,
        parent_checkpoint_id=None,
        parent_digest=None,
        source_progress={},
        source_progress_files=source_progress_files,
        sink_committables={},
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
