"""What a keyed state backend is made from, and what it returns: parameters, snapshots and restore reports.

The metadata of all handles is read and checked here, before a backend reads any state file. It lists the states of a
snapshot, the files of each state, and their sizes.
"""

from __future__ import annotations

import itertools
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
    RESTORED_STATE_UNCHANGED,
    StateCompatibility,
    check_key_serializer,
    incompatibility_message,
)
from statebackend.state.state_meta import KeyedStateMeta, StateFile, decode_meta, merge_metas
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["file_sizes", "files_of_states"]


def files_of_states(handle: KeyedStateHandle) -> Iterator[tuple[str, Sequence[tuple[StateFile, FileHandle]]]]:
    """Yield each state's name and files, which may be empty. States may share a file.

    Raises `StateRestoreError` for metadata that is damaged or of another library.
    """
    for state in decode_meta(handle.meta, len(handle.files)).states:
        yield state.name, [(file, handle.files[file.index]) for file in state.files]


def file_sizes(handle: KeyedStateHandle) -> dict[str, tuple[int, int]]:
    """By state, the bytes of all its files in a handle, and of the files that the snapshot itself wrote."""
    return {
        name: (
            sum(stored.size_bytes for _, stored in files),
            sum(stored.size_bytes for file, stored in files if file.written_by == handle.state_id),
        )
        for name, files in files_of_states(handle)
    }


@frozen
class RestoredHandle:
    """A state handle and the store of its files."""

    handle: KeyedStateHandle
    file_system: CheckpointFileSystem

    @cached_property
    def meta(self) -> KeyedStateMeta:
        """The metadata, decoded once per process. Raises `StateRestoreError` if it is damaged."""
        return decode_meta(self.handle.meta, len(self.handle.files))

    @property
    def location(self) -> str:
        """The first file, or the place of the store for state without files."""
        return self.file_system.location(self.handle.files[0].path if self.handle.files else "")


def merge_handles(handles: Sequence[RestoredHandle]) -> KeyedStateMeta | None:
    """Merge the metadata of several subtasks as `merge_metas`. An error names files with different schemas."""
    metas = [one.meta for one in handles]
    try:
        return merge_metas(metas)
    except StateRestoreError as error:
        pairs = itertools.combinations(handles, 2)
        differing = next(((one, other) for one, other in pairs if not _can_merge(one.meta, other.meta)), None)
        if differing is None:
            raise
        one, other = differing
        raise StateRestoreError(f"{error}. The schemas differ in {one.location} and {other.location}") from error


def _can_merge(one: KeyedStateMeta, other: KeyedStateMeta) -> bool:
    try:
        merge_metas((one, other))
    except StateRestoreError:
        return False
    return True


@frozen(kw_only=True)
class KeyedStateBackendParameters:
    """The parameters from which the backend of a subtask is created.

    Snapshots write their files to ``file_system``, below ``file_prefix``. ``local_directory`` is the subtask's own
    directory on the local disk, kept between epochs. ``clock`` is the time for state with a time-to-live.
    ``progress`` is called with the progress of restores and migrations. ``metrics`` turns metrics on (see
    `statebackend.state.metrics`). ``rules`` decide the compatibility of restored state, and ``conversions`` define its
    migration. A job that checks the same state at its start must use the same rules.
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
    """The result for one restored state when it was registered."""

    state_name: str
    compatibility: StateCompatibility
    entries_migrated: int = 0
    duration_s: float = 0.0


@frozen
class KeyedStateSnapshot:
    """The result of a snapshot: the handle, a digest of the content, and its cost."""

    handle: KeyedStateHandle
    digest: str
    entries_written: int
    bytes_written: int


KeyedStateSnapshotTask = SnapshotTask[KeyedStateSnapshot]
"""The asynchronous part of a snapshot."""


@frozen
class RestoredStates:
    """All states that a backend restores. ``meta`` merges the metadata of ``handles``, which hold their own.

    ``key_serializer`` is the given one, or its reconfigured form.
    """

    key_serializer: TypeSerializer[Any]
    meta: KeyedStateMeta | None = None
    handles: tuple[tuple[RestoredHandle, KeyedStateMeta], ...] = ()


def read_restored_states(parameters: KeyedStateBackendParameters, readable_formats: Collection[str]) -> RestoredStates:
    """Read the states of the handles; without handles, start empty.

    Raises `StateRestoreError` if a handle is not in one of the given formats, if metadata is malformed, or if a state
    has different schemas in different handles. Raises `StateMigrationException` if the key serializer is another one or
    would need a migration: key groups and stored addresses depend on the bytes of keys.
    """
    for restored in parameters.restore:
        if restored.handle.backend not in readable_formats:
            raise StateRestoreError(
                f"the state of operator {parameters.operator_uid!r} was written by the backend "
                f"{restored.handle.backend!r}, whose own format is not among those that can be read here "
                f"({', '.join(sorted(readable_formats))}); take a savepoint, which every backend reads"
            )
    merged = merge_handles(parameters.restore)
    if merged is None:
        return RestoredStates(parameters.key_serializer)
    compatibility = check_key_serializer(merged.key_snapshot, parameters.key_serializer, parameters.rules)
    if compatibility.kind is CompatibilityKind.INCOMPATIBLE:
        message = incompatibility_message(parameters.operator_uid, [compatibility], RESTORED_STATE_UNCHANGED)
        raise StateMigrationException(message)
    handles = tuple((one, one.meta) for one in parameters.restore)
    return RestoredStates(compatibility.serializers["key"], merged, handles)
