"""Small valid values for the tests of this package."""

from __future__ import annotations

from typing import Any

from statebackend.checkpoint import (
    Acknowledgement,
    CheckpointKind,
    CheckpointMetadata,
    FileHandle,
    KeyedStateHandle,
    OperatorState,
    SourcePositions,
    SubtaskState,
)
from statebackend.checkpoint.invariants import checksum_of_bytes


def file_handle(path: str, data: bytes = b"data") -> FileHandle:
    return FileHandle(path, len(data), checksum_of_bytes(data))


def state_handle(
    state_id: str = "state-0", start: int = 0, end: int = 3, files: tuple[FileHandle, ...] = ()
) -> KeyedStateHandle:
    return KeyedStateHandle(state_id, "heap", start, end, b"meta of " + state_id.encode(), files)


def operator_state(uid: str = "counter", files: tuple[FileHandle, ...] = ()) -> OperatorState:
    """Two subtasks of two key groups each; the files belong to the first."""
    return OperatorState(
        uid=uid,
        name=uid.title(),
        max_parallelism=4,
        subtasks=(
            SubtaskState(state_handle(f"{uid}-0", 0, 1, files)),
            SubtaskState(state_handle(f"{uid}-1", 2, 3)),
        ),
    )


def metadata_of(checkpoint_id: int = 1, files: tuple[FileHandle, ...] = (), **changes: Any) -> CheckpointMetadata:
    content: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "kind": CheckpointKind.CHECKPOINT,
        "job_id": "job",
        "job_name": "flights",
        "timestamp_ms": 1_700_000_000_000 + checkpoint_id,
        "max_parallelism": 4,
        "operators": (operator_state(files=files),),
        "source_positions": SourcePositions(batch_id=checkpoint_id, offsets=b'{"logOffset":1}'),
        "sink_committables": {"sink": b"\0\1"},
        "properties": {"watermark_ms": "42"},
    }
    return CheckpointMetadata(**{**content, **changes})


def acknowledgement(
    checkpoint_id: int = 1,
    subtask_index: int = 0,
    *,
    state_id: str | None = None,
    digest: str = "digest",
    job_id: str = "job",
    run_id: str = "run",
    operator_uid: str = "counter",
    files: tuple[FileHandle, ...] = (),
    **changes: Any,
) -> Acknowledgement:
    start = 2 * subtask_index
    return Acknowledgement(
        job_id=job_id,
        run_id=run_id,
        checkpoint_id=checkpoint_id,
        operator_uid=operator_uid,
        subtask_index=subtask_index,
        attempt_id="attempt-0",
        digest=digest,
        state=SubtaskState(
            state_handle(state_id or f"{operator_uid}-{checkpoint_id}-{subtask_index}", start, start + 1, files)
        ),
        **changes,
    )
