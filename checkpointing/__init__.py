"""When state is durable: storage, coordinator, completed checkpoints, savepoints, the job directory.

State is opaque here: backends hand over `KeyedStateHandle`s, and this package makes them durable and
consistent. `docs/formats-checkpoint.md` describes every file it writes.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from checkpointing.coordinator.acknowledgement import MAX_ACKNOWLEDGEMENT_BYTES, Acknowledgement, ReportValue, TaskId
from checkpointing.coordinator.checkpoint_coordinator import (
    AbortedCheckpoint,
    AcknowledgementOutcome,
    AcknowledgementResult,
    CheckpointCoordinator,
)
from checkpointing.coordinator.pending_checkpoint import (
    CHECKPOINT_TRANSITIONS,
    CheckpointEvent,
    CheckpointState,
    PendingCheckpoint,
)
from checkpointing.errors import (
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
from checkpointing.handles.state_handles import (
    MAX_MAX_PARALLELISM,
    FileHandle,
    KeyedStateHandle,
    OperatorState,
    SubtaskState,
    check_operator_state,
    check_operator_states,
    files_of_operators,
)
from checkpointing.metadata.metadata_file import (
    FORMAT_VERSION,
    MAX_METADATA_BYTES,
    METADATA_FILE_NAME,
    CheckpointKind,
    CheckpointMetadata,
    read_metadata,
    read_metadata_with_handle,
    write_metadata,
)
from checkpointing.storage.completed_checkpoint_store import (
    CHECKPOINTS_DIRECTORY,
    SHARED_DIRECTORY,
    CompletedCheckpointStore,
    checkpoint_directory,
)
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JOB_FILE_NAME, JobDirectory, JobIdentity
from checkpointing.storage.job_origin import ORIGIN_FILE_NAME, JobOrigin, read_origin, write_origin
from checkpointing.storage.savepoint_directory import (
    SavedSourceProgress,
    create_savepoint_directory,
    read_savepoint,
    write_savepoint,
    write_source_progress,
)
from checkpointing.storage.shared_state_registry import SharedStateRegistry

__all__ = [
    "CHECKPOINTS_DIRECTORY",
    "CHECKPOINT_TRANSITIONS",
    "FORMAT_VERSION",
    "JOB_FILE_NAME",
    "MAX_ACKNOWLEDGEMENT_BYTES",
    "MAX_MAX_PARALLELISM",
    "MAX_METADATA_BYTES",
    "METADATA_FILE_NAME",
    "ORIGIN_FILE_NAME",
    "SHARED_DIRECTORY",
    "AbortedCheckpoint",
    "Acknowledgement",
    "AcknowledgementOutcome",
    "AcknowledgementResult",
    "CheckpointCoordinator",
    "CheckpointError",
    "CheckpointEvent",
    "CheckpointFileSystem",
    "CheckpointKind",
    "CheckpointMetadata",
    "CheckpointNotFoundError",
    "CheckpointState",
    "CompletedCheckpointStore",
    "CorruptFileError",
    "CorruptJobIdentityError",
    "CorruptMetadataError",
    "FileHandle",
    "IllegalTransitionError",
    "IncompleteCheckpointError",
    "InvariantViolationError",
    "JobDirectory",
    "JobDirectoryError",
    "JobDirectoryLockedError",
    "JobDirectoryMismatchError",
    "JobIdentity",
    "JobOrigin",
    "KeyedStateHandle",
    "MalformedAcknowledgementError",
    "MissingFileError",
    "OperatorState",
    "PendingCheckpoint",
    "ReportValue",
    "SavedSourceProgress",
    "SavepointError",
    "SavepointExistsError",
    "SharedStateRegistry",
    "StorageError",
    "SubtaskState",
    "TaskId",
    "UnsafePathError",
    "UnsupportedMetadataVersionError",
    "check_operator_state",
    "check_operator_states",
    "checkpoint_directory",
    "create_savepoint_directory",
    "files_of_operators",
    "read_metadata",
    "read_metadata_with_handle",
    "read_origin",
    "read_savepoint",
    "write_metadata",
    "write_origin",
    "write_savepoint",
    "write_source_progress",
]
