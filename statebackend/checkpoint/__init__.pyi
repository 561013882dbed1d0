from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement as Acknowledgement, TaskId as TaskId
from statebackend.checkpoint.coordinator.checkpoint_coordinator import (
    AbortedCheckpoint as AbortedCheckpoint,
    AcknowledgementOutcome as AcknowledgementOutcome,
    AcknowledgementResult as AcknowledgementResult,
    CheckpointCoordinator as CheckpointCoordinator,
)
from statebackend.checkpoint.coordinator.pending_checkpoint import (
    CheckpointState as CheckpointState,
    CompletedCheckpoint as CompletedCheckpoint,
)
from statebackend.checkpoint.errors import (
    CheckpointError as CheckpointError,
    CheckpointNotFoundError as CheckpointNotFoundError,
    CorruptFileError as CorruptFileError,
    CorruptJobIdentityError as CorruptJobIdentityError,
    CorruptMetadataError as CorruptMetadataError,
    IllegalTransitionError as IllegalTransitionError,
    IncompleteCheckpointError as IncompleteCheckpointError,
    InvariantViolationError as InvariantViolationError,
    JobDirectoryError as JobDirectoryError,
    JobDirectoryLockedError as JobDirectoryLockedError,
    JobDirectoryMismatchError as JobDirectoryMismatchError,
    LeadershipLostError as LeadershipLostError,
    MalformedAcknowledgementError as MalformedAcknowledgementError,
    MissingFileError as MissingFileError,
    SavepointError as SavepointError,
    SavepointExistsError as SavepointExistsError,
    StorageError as StorageError,
    UncertainCheckpointError as UncertainCheckpointError,
    UnsafePathError as UnsafePathError,
    UnsupportedMetadataVersionError as UnsupportedMetadataVersionError,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem as CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership as Leadership, LeadershipProvider as LeadershipProvider
from statebackend.checkpoint.ha.object_store import ObjectStoreHighAvailability as ObjectStoreHighAvailability
from statebackend.checkpoint.ha.zookeeper import ZooKeeperHighAvailability as ZooKeeperHighAvailability
from statebackend.checkpoint.metadata import (
    ChannelTimestamp as ChannelTimestamp,
    ChannelWatermark as ChannelWatermark,
    CheckpointKind as CheckpointKind,
    CheckpointMetadata as CheckpointMetadata,
    InputChannel as InputChannel,
    InputWatermark as InputWatermark,
    NodeWatermark as NodeWatermark,
    ReadSource as ReadSource,
    SavepointIdentity as SavepointIdentity,
    SourcePositions as SourcePositions,
    TimersDue as TimersDue,
    WatermarkState as WatermarkState,
)
from statebackend.checkpoint.state_handles import (
    FileHandle as FileHandle,
    KeyedStateHandle as KeyedStateHandle,
    OpaqueStateHandle as OpaqueStateHandle,
    OperatorState as OperatorState,
    SubtaskState as SubtaskState,
)
from statebackend.checkpoint.store.checkpoint_directories import read_metadata as read_metadata
from statebackend.checkpoint.store.completed_checkpoint_store import (
    CompletedCheckpointStore as CompletedCheckpointStore,
    DirectoryCheckpointStore as DirectoryCheckpointStore,
)
from statebackend.checkpoint.store.job_directory import (
    JobDirectory as JobDirectory,
    JobIdentity as JobIdentity,
    JobOrigin as JobOrigin,
)
from statebackend.checkpoint.store.savepoint_directory import (
    SavedSourceProgress as SavedSourceProgress,
    read_savepoint as read_savepoint,
    write_savepoint as write_savepoint,
)
