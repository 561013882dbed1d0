"""When state is durable: storage, coordinator, completed checkpoints, savepoints, the job directory.

State is opaque here: backends hand over `StateHandle`s, and this package makes them durable and
consistent. `docs/formats-checkpoint.md` describes every file it writes.
"""

from checkpoint.acknowledgement import MAX_ACKNOWLEDGEMENT_BYTES, Acknowledgement, ReportValue, TaskId
from checkpoint.coordinator import (
    AbortedCheckpoint,
    AcknowledgementOutcome,
    AcknowledgementResult,
    CheckpointCoordinator,
)
from checkpoint.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptFileError,
    CorruptJobIdentityError,
    CorruptMetadataError,
    IllegalTransitionError,
    IncompleteCheckpointError,
    InvariantViolationError,
    JobDirectoryError,
    JobDirectoryLockedError,
    JobDirectoryMismatchError,
    MalformedAcknowledgementError,
    MissingFileError,
    SavepointError,
    SavepointExistsError,
    StorageError,
    UnsafePathError,
    UnsupportedMetadataVersionError,
)
from checkpoint.file_system import CheckpointFileSystem
from checkpoint.handles import (
    MAX_MAX_PARALLELISM,
    FileHandle,
    OperatorState,
    StateHandle,
    SubtaskState,
    check_operator_state,
    check_operator_states,
    files_of_operators,
)
from checkpoint.pending_checkpoint import TRANSITIONS, CheckpointEvent, CheckpointState, PendingCheckpoint

__all__ = [
    "MAX_ACKNOWLEDGEMENT_BYTES",
    "MAX_MAX_PARALLELISM",
    "TRANSITIONS",
    "AbortedCheckpoint",
    "Acknowledgement",
    "AcknowledgementOutcome",
    "AcknowledgementResult",
    "CheckpointCoordinator",
    "CheckpointError",
    "CheckpointEvent",
    "CheckpointFileSystem",
    "CheckpointNotFoundError",
    "CheckpointState",
    "CorruptFileError",
    "CorruptJobIdentityError",
    "CorruptMetadataError",
    "FileHandle",
    "IllegalTransitionError",
    "IncompleteCheckpointError",
    "InvariantViolationError",
    "JobDirectoryError",
    "JobDirectoryLockedError",
    "JobDirectoryMismatchError",
    "MalformedAcknowledgementError",
    "MissingFileError",
    "OperatorState",
    "PendingCheckpoint",
    "ReportValue",
    "SavepointError",
    "SavepointExistsError",
    "StateHandle",
    "StorageError",
    "SubtaskState",
    "TaskId",
    "UnsafePathError",
    "UnsupportedMetadataVersionError",
    "check_operator_state",
    "check_operator_states",
    "files_of_operators",
]
