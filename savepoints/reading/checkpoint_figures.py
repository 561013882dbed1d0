"""The sizes in a checkpoint or savepoint, as its metadata says them: of operators, subtasks and states.

No file is read, so the figures of a checkpoint are those of its job while it ran, and any process can tell them. Sizes
of subtasks and operators have their metas in them, as `CheckpointMetadata.size_bytes` has; those of states are of their
files. A file that several subtasks refer to counts once in the whole, its operator and its state, and for each of the
subtasks in theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from attrs import field, frozen

from checkpointing.handles.operator_states import OperatorState
from checkpointing.metadata.checkpoint_metadata import CheckpointMetadata
from statebackend.api.errors import StateBackendError
from statebackend.keyed.snapshot_sizes import files_of_states

__all__ = ["CheckpointFigures", "OperatorFigures", "checkpoint_figures", "skew_of"]


def skew_of(sizes: Sequence[int]) -> float:
    """The largest over the mean; 1.0 where all are equal, or nothing is there."""
    total = sum(sizes)
    return max(sizes) * len(sizes) / total if total else 1.0


@frozen
class OperatorFigures:
    """The state of one operator: bytes of each subtask, in their order, and of the files of each keyed state."""

    uid: str
    name: str
    size_bytes: int
    bytes_by_subtask: tuple[int, ...]
    bytes_by_state: Mapping[str, int] = field(factory=dict)

    @property
    def parallelism(self) -> int:
        """The number of subtasks."""
        return len(self.bytes_by_subtask)

    @property
    def skew(self) -> float:
        """Of the sizes of the subtasks, as `skew_of`."""
        return skew_of(self.bytes_by_subtask)


@frozen(kw_only=True)
class CheckpointFigures:
    """One checkpoint or savepoint. Times in milliseconds, None where it has none."""

    checkpoint_id: int
    kind: str
    job_name: str
    job_id: str
    timestamp_ms: int
    processing_time_ms: int | None
    watermark_ms: int | None
    max_parallelism: int
    size_bytes: int
    file_count: int
    operators: tuple[OperatorFigures, ...]


def checkpoint_figures(metadata: CheckpointMetadata) -> CheckpointFigures:
    """The figures of a checkpoint; takes time in proportion to the number of its files."""
    watermarks = metadata.watermarks
    return CheckpointFigures(
        checkpoint_id=metadata.checkpoint_id,
        kind=metadata.kind.value.lower(),
        job_name=metadata.job_name,
        job_id=metadata.job_id,
        timestamp_ms=metadata.timestamp_ms,
        processing_time_ms=metadata.processing_time_ms,
        watermark_ms=None if watermarks is None else watermarks.watermark_ms,
        max_parallelism=metadata.max_parallelism,
        size_bytes=metadata.size_bytes,
        file_count=len(metadata.files),
        operators=tuple(_operator_figures(one) for one in metadata.operators),
    )


def _operator_figures(operator: OperatorState) -> OperatorFigures:
    by_state: dict[str, dict[str, int]] = {}
    for handle in operator.keyed_handles:
        # What it means is the backend's: another's may say it otherwise.
        with suppress(StateBackendError):
            for name, files in files_of_states(handle):
                by_state.setdefault(name, {}).update((stored.path, stored.size_bytes) for _, stored in files)
    by_subtask = tuple(subtask.size_bytes for subtask in operator.subtasks)
    return OperatorFigures(
        operator.uid,
        operator.name,
        operator.size_bytes,
        by_subtask,
        {name: sum(files.values()) for name, files in by_state.items()},
    )
