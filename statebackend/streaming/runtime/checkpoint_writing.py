"""Creates and stores the checkpoint of an epoch, the same in every runtime."""

from __future__ import annotations

from collections.abc import Mapping

from statebackend.checkpoint.coordinator.pending_checkpoint import CompletedCheckpoint
from statebackend.checkpoint.metadata import (
    CheckpointKind,
    CheckpointMetadata,
    SavepointIdentity,
    SourcePositions,
    WatermarkState,
)
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobIdentity
from statebackend.state.clock import wall_clock

__all__ = ["batch_of", "store_checkpoint"]


def store_checkpoint(
    store: CompletedCheckpointStore,
    identity: JobIdentity,
    completed: CompletedCheckpoint,
    *,
    processing_time_ms: int,
    source_positions: SourcePositions | None = None,
    restored_from: SavepointIdentity | None = None,
    sink_committables: Mapping[str, bytes],
    sink_identities: Mapping[str, str],
    watermarks: WatermarkState | None = None,
) -> CheckpointMetadata:
    """Store a checkpoint durably as the newest one, and return its metadata.

    ``watermarks`` are the watermarks of the next epoch. ``source_positions`` is None without a log of source offsets.
    """
    parent = store.latest()
    metadata = CheckpointMetadata(
        checkpoint_id=completed.checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        job_id=identity.job_id,
        job_name=identity.job_name,
        timestamp_ms=wall_clock(),
        max_parallelism=identity.max_parallelism,
        operators=completed.operators,
        parent_checkpoint_id=parent.checkpoint_id if parent is not None else None,
        parent_digest=store.digest(parent.checkpoint_id) if parent is not None else None,
        processing_time_ms=processing_time_ms,
        source_positions=source_positions,
        timers_due=completed.timers_due,
        watermarks=watermarks,
        restored_from=restored_from,
        sink_committables=sink_committables,
        sink_identities=sink_identities,
    )
    store.add(metadata)
    return metadata


def batch_of(metadata: CheckpointMetadata) -> int:
    """Return the last batch in a checkpoint or savepoint, or the checkpoint id if there was no source log."""
    positions = metadata.source_positions
    return metadata.checkpoint_id if positions is None else positions.batch_id
