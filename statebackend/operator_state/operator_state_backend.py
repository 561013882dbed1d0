"""The operator state of one subtask, on the heap whatever the backend of keyed state.

What is restored stays in its files until a descriptor is registered; then its rows are read once and decoded by what
turns old bytes into what is kept now. The verdict is taken and the rows are read before anything is held, so that a
refusal changes nothing. A state that nobody registers is not read: it travels on in the part that this subtask carries.

A snapshot refers to the files of a state that did not change, where it may: files of its own store, no savepoint's, of
a checkpoint that is complete; and not too many, or many restores at other parallelisms would leave a state in shreds.
Everything else is written anew, whole. Operator state is small by its nature; this is what Flink does too.

One thread owns a backend; only the tasks that `prepare_snapshot` makes may run on others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast, overload

from attrs import define, field, frozen

from checkpointing.storage.file_system import CheckpointFileSystem
from migration.conversion import ConversionTable
from migration.conversion_table import CONVERSIONS
from migration.schema_migration import SchemaMigration
from snapshots.compatibility import CompatibilityKind
from snapshots.errors import StateFormatError
from snapshots.plans import Plan
from snapshots.type_serializer_snapshot import RULES, VerdictRules
from statebackend.api.broadcast_state import BroadcastState
from statebackend.api.errors import (
    StateBackendClosedError,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
    StateRestoreError,
)
from statebackend.api.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.api.progress import Operation, ProgressListener, StateProgress, no_progress
from statebackend.api.states import ListState, State
from statebackend.keyed.backend_parameters import StateRestoreReport
from statebackend.keyed.snapshot_task import SnapshotTasks
from statebackend.keyed.state_verdicts import RESTORED_AS_IT_WAS, incompatibility_message
from statebackend.operator_state.operator_snapshot_task import (
    CopiedParts,
    FrozenOperatorState,
    FrozenOperatorTable,
    KeptParts,
    OperatorStateSnapshotTask,
)
from statebackend.operator_state.operator_state_handles import (
    MAX_SLICES,
    OperatorStateHandle,
    OperatorStateSnapshot,
    StatePart,
    envelopes_of,
)
from statebackend.operator_state.operator_state_rows import read_slices
from statebackend.operator_state.operator_state_tables import TABLES, OperatorStateTable
from statebackend.operator_state.operator_state_verdict import plan_operator_state
from statebackend.operator_state.redistribution import AssignedState, RestoredOperatorState
from typeserializers.kernel.known_serializers import restored_with

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@frozen(kw_only=True)
class OperatorStateBackendParameters:
    """Everything the operator state of a subtask is made from.

    ``file_system`` and ``file_prefix`` say where snapshots put their files; they may be those of the keyed backend.
    ``rules`` judge what is restored, and ``conversions`` say how it is migrated.
    """

    operator_uid: str
    file_system: CheckpointFileSystem
    file_prefix: str
    restore: RestoredOperatorState | None = None
    progress: ProgressListener = field(default=no_progress, eq=False)
    rules: VerdictRules = field(default=RULES, eq=False, repr=False)
    conversions: ConversionTable = field(default=CONVERSIONS, eq=False, repr=False)


@define
class _Reference:
    """The parts in the store that hold a state at one version of its content; for unregistered state that is None."""

    version: int | None
    parts: tuple[StatePart, ...]


@define
class _HeldState:
    """One state: restored and not yet registered, or with a table."""

    mode: OperatorStateMode
    restored: AssignedState | None = None
    table: OperatorStateTable | None = None
    descriptor: OperatorStateDescriptor | None = None
    reference: _Reference | None = None

    @property
    def version(self) -> int | None:
        """The version of the content."""
        return None if self.table is None else self.table.version


class OperatorStateBackend:
    """See the module."""

    def __init__(self, parameters: OperatorStateBackendParameters) -> None:
        self.parameters = parameters
        self.restore_reports: list[StateRestoreReport] = []
        self._held: dict[str, _HeldState] = {}
        self._tasks: SnapshotTasks[OperatorStateSnapshot] = SnapshotTasks()
        self._written: dict[int, dict[str, _Reference]] = {}
        # Guards what tasks touch when they are done, on their threads.
        self._lock = threading.Lock()
        self._closed = False
        self._restored_files = parameters.restore.file_system if parameters.restore is not None else None
        self._may_refer_to_restored = (
            parameters.restore is not None
            and parameters.restore.may_refer
            and parameters.restore.file_system.uri == parameters.file_system.uri
        )
        if parameters.restore is not None:
            self._restore(parameters.restore)

    @overload
    def get_state(self, descriptor: SplitListStateDescriptor[T]) -> ListState[T]: ...
    @overload
    def get_state(self, descriptor: UnionListStateDescriptor[T]) -> ListState[T]: ...
    @overload
    def get_state(self, descriptor: BroadcastStateDescriptor[K, V]) -> BroadcastState[K, V]: ...
    @overload
    def get_state(self, descriptor: OperatorStateDescriptor) -> State: ...

    def get_state(self, descriptor: OperatorStateDescriptor) -> State:
        """The state of a descriptor, registered on first use.

        Raises `StateRegistrationError` if the name was registered with another descriptor, and
        `StateMigrationException`, with nothing changed, if restored state cannot be taken over.
        """
        self._check_open()
        held = self._held.get(descriptor.name)
        if held is not None and held.table is not None:
            if held.mode is not descriptor.mode:
                raise StateRegistrationError(
                    f"{self._describe(descriptor.name)} is registered as a {held.mode.value} state, it cannot become "
                    f"a {descriptor.mode.value} state; give one of them another name"
                )
            if held.descriptor != descriptor:
                raise StateRegistrationError(
                    f"{self._describe(descriptor.name)} is registered twice, with different descriptors; give one of "
                    f"them another name"
                )
        elif held is None:
            table = TABLES[descriptor.mode](descriptor.name, descriptor.serializers)
            held = self._held[descriptor.name] = _HeldState(descriptor.mode, None, table, descriptor)
        else:
            self._take_over(held, descriptor)
        return cast(State, held.table)

    def state_names(self, mode: OperatorStateMode | None = None) -> tuple[str, ...]:
        """The names of all states, or of those of one mode, registered or only restored."""
        return tuple(name for name, held in self._held.items() if mode is None or held.mode is mode)

    def unregistered_names(self) -> tuple[str, ...]:
        """The names of the restored states that nobody has registered yet."""
        return tuple(name for name, held in self._held.items() if held.table is None)

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> OperatorStateSnapshotTask:
        """Freezes the state as it is now and returns the task that writes it; ``state_id`` is unique to this attempt.

        What is put, cleared or registered afterwards is not in the snapshot. Takes time in proportion to the number of
        states, not of their elements. Several tasks may be under way at once.
        """
        self._check_open()
        states = [self._frozen(name, held) for name, held in self._held.items()]
        versions = {name: held.version for name, held in self._held.items()}

        def when_done(handle: OperatorStateHandle) -> None:
            with self._lock:
                self._written[checkpoint_id] = {
                    state.name: _Reference(versions[state.name], state.parts) for state in handle.states
                }

        prefix = f"{self.parameters.file_prefix}-{checkpoint_id:012d}-{state_id}-operator"
        task = OperatorStateSnapshotTask(states, self.parameters.file_system, prefix, when_done)
        self._tasks.add(task)
        return task

    def snapshot(self, checkpoint_id: int, state_id: str) -> OperatorStateSnapshot:
        """Both parts of a snapshot at once."""
        return self.prepare_snapshot(checkpoint_id, state_id).run()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """From now on snapshots may refer to the files of this checkpoint instead of writing the same rows again."""
        with self._lock:
            references = self._written.get(checkpoint_id, {})
            self._written = {other: kept for other, kept in self._written.items() if other > checkpoint_id}
        for name, reference in references.items():
            # A closed backend has nothing left to refer from.
            if name in self._held:
                self._held[name].reference = reference

    def close(self) -> None:
        """Cancels the snapshots under way and frees everything; may be called twice. States are dead afterwards."""
        if self._closed:
            return
        self._closed = True
        self._tasks.cancel()
        for held in self._held.values():
            if held.table is not None:
                held.table.close()
        self._held.clear()

    def __enter__(self) -> OperatorStateBackend:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _restore(self, restored: RestoredOperatorState) -> None:
        files = {one.file for state in restored.states for part in state.content for one in part.slices}
        restored.file_system.verify_present(files)
        for state in restored.states:
            reference = _Reference(None, state.carried) if self._may_refer_to_restored else None
            self._held[state.name] = _HeldState(state.mode, state, reference=reference)

    def _take_over(self, held: _HeldState, descriptor: OperatorStateDescriptor) -> None:
        restored = held.restored
        assert restored is not None
        takeover = plan_operator_state(restored.mode, restored.content, descriptor, self.parameters.rules)
        verdict = takeover.verdict
        if verdict.kind is CompatibilityKind.INCOMPATIBLE:
            message = incompatibility_message(self.parameters.operator_uid, [verdict], RESTORED_AS_IT_WAS)
            raise StateMigrationException(message)
        started = time.monotonic()
        table = TABLES[descriptor.mode](descriptor.name, verdict.serializers)
        is_migration = verdict.kind is CompatibilityKind.AFTER_MIGRATION
        operation = Operation.MIGRATION if is_migration else Operation.RESTORE
        progress = StateProgress(self.parameters.progress, operation, self.parameters.operator_uid, descriptor.name)
        migrated = 0
        for part in restored.content:
            migrated += self._load(table, part, takeover.plans, progress)
        progress.done()
        # Files go on being referred to only where they say what would be written now.
        schema = envelopes_of(verdict.serializers)
        is_reusable = self._may_refer_to_restored and all(part.envelopes == schema for part in restored.content)
        held.reference = _Reference(table.version, restored.content) if is_reusable else None
        held.table, held.descriptor, held.restored = table, descriptor, None
        self.restore_reports.append(StateRestoreReport(descriptor.name, verdict, migrated, time.monotonic() - started))

    def _load(
        self,
        table: OperatorStateTable,
        part: StatePart,
        plans: Mapping[tuple[str, bytes], Plan],
        progress: StateProgress,
    ) -> int:
        """Loads one part into a table; returns how many rows were migrated."""
        assert self._restored_files is not None
        migrations: dict[str, SchemaMigration[Any]] = {}
        try:
            for role, serializer in table.serializers.items():
                plan = plans.get((role, part.envelopes[role]))
                if plan is not None:
                    old = restored_with(part.snapshot(table.name, role), serializer)
                    migrations[role] = SchemaMigration(old, serializer, plan, self.parameters.conversions)
            rows = table.load_rows(read_slices(self._restored_files, part.slices), migrations)
        except (StateFormatError, StateBackendError) as error:
            kind = StateMigrationException if isinstance(error, StateMigrationException) else StateRestoreError
            where = ", ".join(self._restored_files.location(one.file.path) for one in part.slices)
            raise kind(
                f"operator {self.parameters.operator_uid!r}, {error}. It was restored from {where}, which is unchanged"
            ) from error
        progress.add(rows, sum(file.size_bytes for file in {one.file for one in part.slices}))
        return rows if migrations else 0

    def _frozen(self, name: str, held: _HeldState) -> FrozenOperatorState:
        reference = held.reference
        if reference is not None and reference.version == held.version and _slice_count(reference.parts) <= MAX_SLICES:
            is_known = held.table is None or all(part.digest is not None for part in reference.parts)
            return FrozenOperatorState(
                name, held.mode, KeptParts(reference.parts, None if is_known else _frozen_table(held))
            )
        if held.table is None:
            assert held.restored is not None
            assert self._restored_files is not None
            return FrozenOperatorState(name, held.mode, CopiedParts(held.restored.carried, self._restored_files))
        return FrozenOperatorState(name, held.mode, _frozen_table(held))

    def _describe(self, name: str) -> str:
        return f"operator state {name!r} of operator {self.parameters.operator_uid!r}"

    def _check_open(self) -> None:
        if self._closed:
            raise StateBackendClosedError(
                f"the operator state of operator {self.parameters.operator_uid!r} is closed; "
                f"states live for one epoch and are made anew in open()"
            )


def _frozen_table(held: _HeldState) -> FrozenOperatorTable:
    assert held.table is not None
    row_count, rows = held.table.freeze()
    serializers = {role: serializer.duplicate() for role, serializer in held.table.serializers.items()}
    return FrozenOperatorTable(row_count, rows, serializers)


def _slice_count(parts: Iterable[StatePart]) -> int:
    return sum(len(part.slices) for part in parts)
