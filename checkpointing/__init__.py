"""When state is durable: handles, metadata, the coordinator, stores of completed checkpoints, savepoints.

State is opaque here: subtasks hand over `SubtaskState`s, and this package makes them durable and consistent. The
rooms, each of which imports only what is above it in this list:

* `errors`: every exception;
* `handles`: what a checkpoint knows about state without knowing what the state is;
* `metadata`: what a checkpoint says of itself, as objects and as bytes. It comes before the coordinator, whose
  acknowledgements and completed checkpoints are made of the same sections;
* `coordinator`: who must acknowledge and what becomes of a checkpoint, as state machines without clock, thread or file;
* `storage`: the only room that touches files: file systems, stores, savepoints, the job directory, leadership.

`docs/formats-checkpoint.md` describes every file that is written. What state means, and what an epoch is, does not
belong here.
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
    CompletedCheckpoint,
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
    LeadershipLostError,
    MalformedAcknowledgementError,
    MissingFileError,
    SavepointError,
    SavepointExistsError,
    StorageError,
    UnsafePathError,
    UnsupportedMetadataVersionError,
)
from checkpointing.handles.operator_states import (
    OperatorState,
    check_operator_state,
    check_operator_states,
    files_of_operators,
)
from checkpointing.handles.state_handles import (
    MAX_MAX_PARALLELISM,
    FileHandle,
    KeyedStateHandle,
    OpaqueStateHandle,
    SubtaskState,
)
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import (
    ChannelTimestamp,
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    WatermarkState,
)
from checkpointing.metadata.metadata_bytes import MAX_METADATA_BYTES
from checkpointing.metadata.metadata_schema import FORMAT_VERSION
from checkpointing.storage.checkpoint_directories import CHECKPOINTS_DIRECTORY, SHARED_DIRECTORY, checkpoint_directory
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.directory_checkpoint_store import DirectoryCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JOB_FILE_NAME, JobDirectory, JobIdentity
from checkpointing.storage.job_origin import ORIGIN_FILE_NAME, JobOrigin, read_origin, write_origin
from checkpointing.storage.leadership import Leadership
from checkpointing.storage.metadata_file import (
    METADATA_FILE_NAME,
    read_metadata,
    read_metadata_with_handle,
    write_metadata,
)
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
    "ChannelTimestamp",
    "ChannelWatermark",
    "CheckpointCoordinator",
    "CheckpointError",
    "CheckpointEvent",
    "CheckpointFileSystem",
    "CheckpointKind",
    "CheckpointMetadata",
    "CheckpointNotFoundError",
    "CheckpointState",
    "CompletedCheckpoint",
    "CompletedCheckpointStore",
    "CorruptFileError",
    "CorruptJobIdentityError",
    "CorruptMetadataError",
    "DirectoryCheckpointStore",
    "FileHandle",
    "IllegalTransitionError",
    "IncompleteCheckpointError",
    "InputChannel",
    "InputWatermark",
    "InvariantViolationError",
    "JobDirectory",
    "JobDirectoryError",
    "JobDirectoryLockedError",
    "JobDirectoryMismatchError",
    "JobIdentity",
    "JobOrigin",
    "KeyedStateHandle",
    "Leadership",
    "LeadershipLostError",
    "MalformedAcknowledgementError",
    "MissingFileError",
    "NodeWatermark",
    "OpaqueStateHandle",
    "OperatorState",
    "PendingCheckpoint",
    "ReportValue",
    "SavedSourceProgress",
    "SavepointError",
    "SavepointExistsError",
    "SavepointIdentity",
    "SharedStateRegistry",
    "SourcePositions",
    "StorageError",
    "SubtaskState",
    "TaskId",
    "TimersDue",
    "UnsafePathError",
    "UnsupportedMetadataVersionError",
    "WatermarkState",
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
