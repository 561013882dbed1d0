"""Taking a savepoint: the state of a completed checkpoint rewritten in canonical form, one task per subtask.

Where the tasks run (in Spark, or one after the other in this process) is the environment's business; what they return
is put together here. The metadata is written last of all, and makes the savepoint complete.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from attrs import evolve, frozen

from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import FileHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.savepoint_directory import write_savepoint
from savepoints.handle_export import ExportedSubtask, ExportTask, ScratchSpace
from statebackend import StateDescriptor
from statebackend.api.clock import wall_clock


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


def export_tasks(
    metadata: CheckpointMetadata,
    source: CheckpointFileSystem,
    target: CheckpointFileSystem,
    registered: Mapping[str, Iterable[StateDescriptor]],
    now_ms: int,
    scratch_space: ScratchSpace | None = None,
) -> Sequence[ExportTask]:
    """The tasks that rewrite a checkpoint whose files are in ``source``.

    ``registered`` are the descriptors of keyed state by operator uid; what has expired by them at ``now_ms`` is left
    out. ``scratch_space`` is where they work, by default the system's temporary directory.
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
    """Writes the savepoint's metadata, last of all; ``started_s`` is the monotonic time of the beginning."""
    subtasks: dict[str, dict[int, SubtaskState]] = {}
    rows: dict[str, Counter[str]] = {}
    operator_state_rows: dict[str, Counter[str]] = {}
    for one in exported:
        subtasks.setdefault(one.operator_uid, {})[one.subtask_index] = one.state
        # A Counter's update adds, and keeps states without rows.
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
        source_progress={},
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
