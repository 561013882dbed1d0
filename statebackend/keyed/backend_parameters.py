"""What a keyed state backend is made from, and what it gives back: a snapshot, and reports of what was restored."""

from __future__ import annotations

from typing import Any

from attrs import define, field, frozen

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from migration.conversion import ConversionTable
from migration.conversion_table import CONVERSIONS
from snapshots.type_serializer_snapshot import RULES, VerdictRules
from statebackend.api.clock import Clock, wall_clock
from statebackend.api.key_groups import KeyGroupRange
from statebackend.api.progress import ProgressListener, no_progress
from statebackend.keyed.snapshot_task import SnapshotTask
from statebackend.keyed.state_verdicts import StateVerdict
from statebackend.metrics.state_metrics import StateMetricsConfig
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class RestoredHandle:
    """A state handle and the store that its files are in."""

    handle: KeyedStateHandle
    file_system: CheckpointFileSystem


@frozen(kw_only=True)
class KeyedStateBackendParameters:
    """Everything a subtask's backend is made from.

    ``file_system`` and ``file_prefix`` say where snapshots put their files; ``local_directory`` is the subtask's own
    directory on the local disk, kept between epochs. ``clock`` says what the time is for state with a time-to-live.
    ``progress`` hears how far restores and migrations are. ``metrics`` turns metrics on (see `statebackend.metrics`).
    ``rules`` judge what is restored, and ``conversions`` say
    how it is migrated; whoever judges the same state before, as a job does at its start, has to be passed the same
    rules.
    """

    operator_uid: str
    key_serializer: TypeSerializer[Any]
    max_parallelism: int
    key_group_range: KeyGroupRange
    file_system: CheckpointFileSystem
    file_prefix: str
    local_directory: str
    restore: tuple[RestoredHandle, ...] = ()
    progress: ProgressListener = field(default=no_progress, eq=False)
    clock: Clock = field(default=wall_clock, eq=False)
    metrics: StateMetricsConfig | None = None
    rules: VerdictRules = field(default=RULES, eq=False, repr=False)
    conversions: ConversionTable = field(default=CONVERSIONS, eq=False, repr=False)


@define
class StateRestoreReport:
    """What happened to one restored state when it was registered."""

    state_name: str
    verdict: StateVerdict
    entries_migrated: int = 0
    duration_s: float = 0.0


@frozen
class KeyedStateSnapshot:
    """What a barrier gives: the handle, a digest of the content, and what it cost."""

    handle: KeyedStateHandle
    digest: str
    entries_written: int
    bytes_written: int


KeyedStateSnapshotTask = SnapshotTask[KeyedStateSnapshot]
"""The asynchronous part of a snapshot."""
