"""When state is durable: handles, metadata, barriers, the coordinator, stores of completed checkpoints, savepoints.

State is opaque here: subtasks hand over `SubtaskState`s, and this package makes them durable and consistent. The
rooms, each of which imports only what is above it in this list:

* `errors`: every exception;
* `barriers`: what the channels of a task do with barriers, as tables;
* `handles`: what a checkpoint knows about state without knowing what the state is;
* `metadata`: what a checkpoint says of itself, as objects and as bytes. It comes before the coordinator, whose
  acknowledgements and completed checkpoints are made of the same sections;
* `coordinator`: who must acknowledge and what becomes of a checkpoint, as state machines without clock, thread or file;
* `storage`: the only room that touches files: file systems, stores, savepoints, the job directory, leadership.

`docs/formats-checkpoint.md` describes every file that is written. What state means, and what an epoch is, does not
belong here.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.checkpoint_coordinator import (
    AbortedCheckpoint,
    AcknowledgementOutcome,
    AcknowledgementResult,
    CheckpointCoordinator,
)
from checkpointing.coordinator.pending_checkpoint import CheckpointState, CompletedCheckpoint
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
    UncertainCheckpointError,
    UnsafePathError,
    UnsupportedMetadataVersionError,
)
from checkpointing.handles.operator_states import OperatorState
from checkpointing.handles.state_handles import FileHandle, KeyedStateHandle, OpaqueStateHandle, SubtaskState
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.metadata.checkpoint_sections import (
    ChannelTimestamp,
    ChannelWatermark,
    InputChannel,
    InputWatermark,
    NodeWatermark,
    ReadSource,
    SavepointIdentity,
    SourcePositions,
    TimersDue,
    WatermarkState,
)
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.directory_checkpoint_store import DirectoryCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JobDirectory, JobIdentity
from checkpointing.storage.job_origin import JobOrigin
from checkpointing.storage.leadership import Leadership, LeadershipProvider
from checkpointing.storage.metadata_file import read_metadata
from checkpointing.storage.object_store_high_availability import ObjectStoreHighAvailability
from checkpointing.storage.savepoint_directory import SavedSourceProgress, read_savepoint, write_savepoint
from checkpointing.storage.zookeeper_high_availability import ZooKeeperHighAvailability

__all__ = [
    "AbortedCheckpoint",
    "Acknowledgement",
    "AcknowledgementOutcome",
    "AcknowledgementResult",
    "ChannelTimestamp",
    "ChannelWatermark",
    "CheckpointCoordinator",
    "CheckpointError",
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
    "LeadershipProvider",
    "MalformedAcknowledgementError",
    "MissingFileError",
    "NodeWatermark",
    "ObjectStoreHighAvailability",
    "OpaqueStateHandle",
    "OperatorState",
    "ReadSource",
    "SavedSourceProgress",
    "SavepointError",
    "SavepointExistsError",
    "SavepointIdentity",
    "SourcePositions",
    "StorageError",
    "SubtaskState",
    "TaskId",
    "TimersDue",
    "UncertainCheckpointError",
    "UnsafePathError",
    "UnsupportedMetadataVersionError",
    "WatermarkState",
    "ZooKeeperHighAvailability",
    "read_metadata",
    "read_savepoint",
    "write_savepoint",
]
