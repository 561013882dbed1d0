"""What a keyed state backend is made from, and what it returns: parameters, snapshots and restore reports.

The metadata of all handles is read and checked here, before a backend reads any state file. It lists the states of a
snapshot, the files of each state, and their sizes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

from attrs import define, field, frozen

from migration.conversion import ConversionTable
from migration.conversion_table import CONVERSIONS
from snapshots.compatibility import CompatibilityKind
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle, KeyedStateHandle
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.errors import StateMigrationException, StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.progress import ProgressListener, no_progress
from statebackend.state.snapshot_task import SnapshotTask
from statebackend.state.state_compatibility import (
    RESTORED_AS_IT_WAS,
    StateCompatibility,
    check_key_serializer,
    incompatibility_message,
)
from statebackend.state.state_meta import KeyedStateMeta, StateFile, decode_meta, merge_metas
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["file_sizes", "files_of_states"]


def files_of_states(handle: KeyedStateHandle) -> Iterator[tuple[str, Sequence[tuple[StateFile, FileHandle]]]]:
    """Each state by its name with its files, of which it may have none; a file may be that of several states.

    Raises `StateRestoreError` for meta data that is damaged, or another library's.
    """
    for state in decode_meta(handle.meta, len(handle.files)).states:
        yield state.name, [(file, handle.files[file.index]) for file in state.files]


def file_sizes(handle: KeyedStateHandle) -> dict[str, tuple[int, int]]:
    """By state the bytes of all its files in a handle, and of those that the snapshot itself wrote."""
    return {
        name: (
            sum(stored.size_bytes for _, stored in files),
            sum(stored.size_bytes for file, stored in files if file.written_by == handle.state_id),
        )
        for name, files in files_of_states(handle)
    }


@frozen
class RestoredHandle:
    """A state handle and the store that its files are in."""

    handle: KeyedStateHandle
    file_system: CheckpointFileSystem

    @cached_property
    def meta(self) -> KeyedStateMeta:
        """The meta data, decoded once per process. Raises `StateRestoreError` if it is damaged."""
        return decode_meta(self.handle.meta, len(self.handle.files))


@frozen(kw_only=True)
class KeyedStateBackendParameters:
    """Everything a subtask's backend is made from.

    ``file_system`` and ``file_prefix`` say where snapshots put their files; ``local_directory`` is the subtask's own
    directory on the local disk, kept between epochs. ``clock`` says what the time is for state with a time-to-live.
    ``progress`` hears how far restores and migrations are. ``metrics`` turns metrics on (see
    `statebackend.state.metrics`). ``rules`` judge what is restored, and ``conversions`` say
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
    rules: CompatibilityRules = field(default=RULES, eq=False, repr=False)
    conversions: ConversionTable = field(default=CONVERSIONS, eq=False, repr=False)


@define
class StateRestoreReport:
    """What happened to one restored state when it was registered."""

    state_name: str
    compatibility: StateCompatibility
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


@frozen
class RestoredStates:
    """All states that a backend is to continue with: ``meta`` is of all handles together, ``handles`` has that of each.

    ``key_serializer`` is the given one, or its reconfigured form.
    """

    key_serializer: TypeSerializer[Any]
    meta: KeyedStateMeta | None = None
    handles: tuple[tuple[RestoredHandle, KeyedStateMeta], ...] = ()


def read_restored_states(parameters: KeyedStateBackendParameters, readable_formats: Collection[str]) -> RestoredStates:
    """What the handles say; without any, a fresh start.

    Raises `StateRestoreError` for a handle whose files are in a format that is not among the given ones, for meta data
    that is malformed, and for a state with different schemas in different handles; `StateMigrationException` if the
    keys were written by another serializer, or would have to be migrated: key groups and stored addresses depend on
    their bytes.
    """
    for restored in parameters.restore:
        if restored.handle.backend not in readable_formats:
            raise StateRestoreError(
                f"the state of operator {parameters.operator_uid!r} was written by the backend "
                f"{restored.handle.backend!r}, whose own format is not among those that can be read here "
                f"({', '.join(sorted(readable_formats))}); take a savepoint, which every backend reads"
            )
    metas = [restored.meta for restored in parameters.restore]
    merged = merge_metas(metas)
    if merged is None:
        return RestoredStates(parameters.key_serializer)
    compatibility = check_key_serializer(merged.key_snapshot, parameters.key_serializer, parameters.rules)
    if compatibility.kind is CompatibilityKind.INCOMPATIBLE:
        message = incompatibility_message(parameters.operator_uid, [compatibility], RESTORED_AS_IT_WAS)
        raise StateMigrationException(message)
    handles = tuple(zip(parameters.restore, metas, strict=True))
    return RestoredStates(compatibility.serializers["key"], merged, handles)
