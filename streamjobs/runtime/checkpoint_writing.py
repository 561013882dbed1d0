"""What the checkpoint of an epoch says, the same in every runtime, and its storing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from checkpointing.handles.state_handles import OperatorState
from checkpointing.metadata.metadata_file import CheckpointKind, CheckpointMetadata
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.job_directory import JobIdentity
from streamjobs.runtime.epoch_events import DurableEpoch, Epoch
from streamjobs.runtime.processing_time import PROCESSING_TIME_PROPERTY

__all__ = ["durable_epoch_of", "store_checkpoint"]


def store_checkpoint(
    store: CompletedCheckpointStore,
    identity: JobIdentity,
    epoch: Epoch,
    operators: Sequence[OperatorState],
    *,
    processing_time_ms: int,
    properties: Mapping[str, str],
    sink_committables: Mapping[str, bytes],
) -> CheckpointMetadata:
    """Stores the checkpoint of an epoch behind the newest one; once this returns, it survives a crash."""
    parent = store.latest()
    metadata = CheckpointMetadata(
        checkpoint_id=epoch.checkpoint_id,
        kind=CheckpointKind.CHECKPOINT,
        job_id=identity.job_id,
        job_name=identity.job_name,
        timestamp_ms=time.time_ns() // 1_000_000,
        max_parallelism=identity.max_parallelism,
        operators=tuple(operators),
        parent_checkpoint_id=parent.checkpoint_id if parent is not None else None,
        parent_digest=store.digest(parent.checkpoint_id) if parent is not None else None,
        source_offsets=epoch.offsets,
        sink_committables=sink_committables,
        properties={**properties, PROCESSING_TIME_PROPERTY: str(processing_time_ms)},
    )
    store.add(metadata)
    return metadata


def durable_epoch_of(metadata: CheckpointMetadata, *, is_own: bool) -> DurableEpoch:
    """The epoch that a checkpoint of the job directory (``is_own``) or a savepoint was taken at."""
    return DurableEpoch(metadata.checkpoint_id, metadata.checkpoint_id, metadata.source_offsets, is_own)
