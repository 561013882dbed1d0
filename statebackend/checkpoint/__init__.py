"""Checkpoints: handles, metadata, barriers, coordinator, stores. State is opaque bytes here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from statebackend.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
    from statebackend.checkpoint.coordinator.checkpoint_coordinator import (
        AbortedCheckpoint,
        AcknowledgementOutcome,
        AcknowledgementResult,
        CheckpointCoordinator,
    )
    from statebackend.checkpoint.coordinator.pending_checkpoint import CheckpointState, CompletedCheckpoint
    from statebackend.checkpoint.errors import (
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
    from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
    from statebackend.checkpoint.ha.leadership import Leadership, LeadershipProvider
    from statebackend.checkpoint.ha.object_store import ObjectStoreHighAvailability
    from statebackend.checkpoint.ha.zookeeper import ZooKeeperHighAvailability
    from statebackend.checkpoint.metadata import (
        ChannelTimestamp,
        ChannelWatermark,
        CheckpointKind,
        CheckpointMetadata,
        InputChannel,
        InputWatermark,
        NodeWatermark,
        ReadSource,
        SavepointIdentity,
        SourcePositions,
        TimersDue,
        WatermarkState,
    )
    from statebackend.checkpoint.state_handles import (
        FileHandle,
        KeyedStateHandle,
        OpaqueStateHandle,
        OperatorState,
        SubtaskState,
    )
    from statebackend.checkpoint.store.checkpoint_directories import read_metadata
    from statebackend.checkpoint.store.completed_checkpoint_store import (
        CompletedCheckpointStore,
        DirectoryCheckpointStore,
    )
    from statebackend.checkpoint.store.job_directory import JobDirectory, JobIdentity, JobOrigin
    from statebackend.checkpoint.store.savepoint_directory import SavedSourceProgress, read_savepoint, write_savepoint

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

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "statebackend.checkpoint.coordinator.acknowledgement": (
            "Acknowledgement",
            "TaskId",
        ),
        "statebackend.checkpoint.coordinator.checkpoint_coordinator": (
            "AbortedCheckpoint",
            "AcknowledgementOutcome",
            "AcknowledgementResult",
            "CheckpointCoordinator",
        ),
        "statebackend.checkpoint.coordinator.pending_checkpoint": (
            "CheckpointState",
            "CompletedCheckpoint",
        ),
        "statebackend.checkpoint.errors": (
            "CheckpointError",
            "CheckpointNotFoundError",
            "CorruptFileError",
            "CorruptJobIdentityError",
            "CorruptMetadataError",
            "IllegalTransitionError",
            "IncompleteCheckpointError",
            "InvariantViolationError",
            "JobDirectoryError",
            "JobDirectoryLockedError",
            "JobDirectoryMismatchError",
            "LeadershipLostError",
            "MalformedAcknowledgementError",
            "MissingFileError",
            "SavepointError",
            "SavepointExistsError",
            "StorageError",
            "UncertainCheckpointError",
            "UnsafePathError",
            "UnsupportedMetadataVersionError",
        ),
        "statebackend.checkpoint.fs.file_system": ("CheckpointFileSystem",),
        "statebackend.checkpoint.ha.leadership": (
            "Leadership",
            "LeadershipProvider",
        ),
        "statebackend.checkpoint.ha.object_store": ("ObjectStoreHighAvailability",),
        "statebackend.checkpoint.ha.zookeeper": ("ZooKeeperHighAvailability",),
        "statebackend.checkpoint.metadata": (
            "ChannelTimestamp",
            "ChannelWatermark",
            "CheckpointKind",
            "CheckpointMetadata",
            "InputChannel",
            "InputWatermark",
            "NodeWatermark",
            "ReadSource",
            "SavepointIdentity",
            "SourcePositions",
            "TimersDue",
            "WatermarkState",
        ),
        "statebackend.checkpoint.state_handles": (
            "FileHandle",
            "KeyedStateHandle",
            "OpaqueStateHandle",
            "OperatorState",
            "SubtaskState",
        ),
        "statebackend.checkpoint.store.checkpoint_directories": ("read_metadata",),
        "statebackend.checkpoint.store.completed_checkpoint_store": (
            "CompletedCheckpointStore",
            "DirectoryCheckpointStore",
        ),
        "statebackend.checkpoint.store.job_directory": (
            "JobDirectory",
            "JobIdentity",
            "JobOrigin",
        ),
        "statebackend.checkpoint.store.savepoint_directory": (
            "SavedSourceProgress",
            "read_savepoint",
            "write_savepoint",
        ),
    },
)
