"""The operator state of one subtask: registration, snapshots and export. It is on the heap with every keyed backend.

Restored state stays in its files until a descriptor is registered. Then the compatibility result is resolved and the
rows are read once and decoded, before anything changes. A state that is not registered is not read: the subtask that
carries it copies or refers to its part. Every role may be migrated, even the keys of a broadcast state, because no
address depends on their bytes. The parts of a state may have different schemas. One set of serializers must then be
compatible with all of them: a reconfigured serializer is checked against each part again until no part needs another.

A snapshot freezes the states at the barrier; a task writes them, on any thread. Each state is written, copied, or
referred to. A snapshot refers to the files of an unchanged state only if they are files of its own store, belong to a
completed checkpoint, and are few. Otherwise it writes the state whole, as Flink does. The task checks for cancellation
before each state and each batch of rows.

The digest of a snapshot covers names, modes and rows, not how they were stored, so two attempts at an epoch agree if
their rows do. The digest of the rows of a part is stored with it, or computed once from the table.

A savepoint has one file per state, schema and subtask: ``<directory>/operator=<mode>/<state>/<part>.parquet``. The name
of the state is URL-escaped (`path_segment`) and contains no ``=``, so it cannot collide with keyed state. A second
schema of a state goes to ``<part>.1.parquet``, and so on. Nothing is decoded for it.

One thread owns a backend; only the tasks that `prepare_snapshot` makes run on others.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, cast, overload

import xxhash
from attrs import define, evolve, field, frozen

from migration.conversion import ConversionTable
from migration.conversion_table import CONVERSIONS
from migration.schema_migration import SchemaMigration
from snapshots.compatibility import CompatibilityIssue, CompatibilityKind, FieldCompatibility, Plan, worst_kind
from snapshots.envelope import snapshot_to_bytes
from snapshots.errors import StateFormatError
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules, TypeSerializerSnapshot, resolve_compatibility
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.state_handles import FileHandle, OpaqueStateHandle
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.errors import (
    StateBackendClosedError,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
    StateRestoreError,
)
from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    OperatorStateMode,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.state.operator_state_handles import (
    MAX_SLICES,
    FileSlice,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorStateRow,
    OperatorStateSnapshot,
    StatePart,
    decode_operator_state,
    encode_operator_state,
    encoded_rows,
    envelopes_of,
    read_slices,
)
from statebackend.state.operator_state_redistribution import AssignedState, RestoredOperatorState
from statebackend.state.operator_state_tables import TABLES, FrozenRows, OperatorStateTable, Serializers
from statebackend.state.progress import Operation, ProgressListener, StateProgress, no_progress
from statebackend.state.snapshot_task import SnapshotTask, SnapshotTasks
from statebackend.state.state_compatibility import RESTORED_STATE_UNCHANGED, StateCompatibility, incompatibility_message
from statebackend.state.state_meta import CANONICAL_BACKEND
from statebackend.state.states import BroadcastState, ListState, State
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

FILE_SUFFIX: Final = ".parquet"

_CANCEL_CHECK_ROWS: Final = 1024


@frozen
class ReferencedParts:
    """A state that is already in the store and is only referred to.

    ``table`` holds its rows, if they are known and have no digest yet.
    """

    parts: tuple[StatePart, ...]
    table: FrozenOperatorTable | None = None


@frozen
class CopiedParts:
    """A state that is not registered, in files that must not be referred to. It is copied with its schemas."""

    parts: tuple[StatePart, ...]
    source: CheckpointFileSystem


@frozen
class FrozenOperatorTable:
    """A registered state at the barrier, with duplicates of its serializers."""

    row_count: int
    rows: FrozenRows
    serializers: Serializers


@frozen
class FrozenOperatorState:
    """One state of a snapshot."""

    name: str
    mode: OperatorStateMode
    content: ReferencedParts | CopiedParts | FrozenOperatorTable


class OperatorStateSnapshotTask(SnapshotTask[OperatorStateSnapshot]):
    """Writes a frozen snapshot; ``when_done`` is called after everything is written."""

    def __init__(
        self,
        states: Sequence[FrozenOperatorState],
        file_system: CheckpointFileSystem,
        path_prefix: str,
        when_done: Callable[[OperatorStateHandle], None],
    ) -> None:
        super().__init__()
        self._states = states
        self._file_system = file_system
        self._path_prefix = path_prefix
        self._when_done = when_done
        self._files: list[FileHandle] = []
        self._rows = 0
        self._digest: Any = xxhash.xxh3_128()

    def write(self) -> OperatorStateSnapshot:
        handle = OperatorStateHandle(tuple(self._written(state) for state in self._states))
        written = sum(file.size_bytes for file in self._files)
        return OperatorStateSnapshot(handle, self._digest.hexdigest(), self._rows, written)

    def remove_written(self) -> None:
        for file in self._files:
            # The first error is the one to report; a file that remains is a harmless orphan.
            with contextlib.suppress(CheckpointError):
                self._file_system.delete(file.path)

    def ended(self, snapshot: OperatorStateSnapshot | None) -> None:
        if snapshot is not None:
            self._when_done(snapshot.handle)

    def _written(self, state: FrozenOperatorState) -> OperatorStateMeta:
        self.raise_if_cancelled()
        # Lengths and counts come first, so that different contents have different bytes.
        self._digest.update(f"{len(state.name)} {state.name} {state.mode.value} ".encode("utf-8", "surrogatepass"))
        # The order of a map does not matter.
        new_digest = _UnorderedDigest if state.mode is OperatorStateMode.BROADCAST else _OrderedDigest
        return OperatorStateMeta(state.name, state.mode, _WRITERS[type(state.content)](self, state.content, new_digest))

    def _keep(self, content: ReferencedParts, new_digest: NewDigest) -> tuple[StatePart, ...]:
        parts = content.parts
        if content.table is not None:
            rows = content.table.rows(content.table.serializers)
            digest = _digest_of(self._counted(rows), new_digest())
            # Several parts under one schema are one part when a table writes them.
            self._add(content.table.row_count, digest)
            return (evolve(parts[0], digest=digest),) if len(parts) == 1 else parts
        for part in parts:
            if part.digest is not None:
                self._add(part.row_count, part.digest)
            else:
                # These rows were not read; every attempt refers to the same slices.
                self._digest.update(f"unread {len(part.slices)} ".encode())
                for one in part.slices:
                    self._digest.update(f"{one.file.checksum} {one.start} {one.stop} ".encode())
        return parts

    def _copy(self, content: CopiedParts, new_digest: NewDigest) -> tuple[StatePart, ...]:
        return tuple(
            self._write_rows(part.row_count, read_slices(content.source, part.slices), part.envelopes, new_digest())
            for part in content.parts
        )

    def _write_table(self, content: FrozenOperatorTable, new_digest: NewDigest) -> tuple[StatePart, ...]:
        part = self._write_rows(content.row_count, content.rows(content.serializers), {}, new_digest())
        # Read it after the rows were written, since some serializers learn from what they write.
        return (evolve(part, envelopes=envelopes_of(content.serializers)),)

    def _write_rows(
        self, row_count: int, rows: Iterator[OperatorStateRow], envelopes: Mapping[str, bytes], digest: RowDigest
    ) -> StatePart:
        slices: tuple[FileSlice, ...] = ()
        if row_count:
            data = encoded_rows(self._watched(rows, digest))
            file = self._file_system.write_file(f"{self._path_prefix}-{len(self._files)}{FILE_SUFFIX}", data)
            self._files.append(file)
            slices = (FileSlice(file, 0, row_count),)
        self._add(row_count, digest.value())
        return StatePart(envelopes, slices, digest.value())

    def _add(self, row_count: int, digest: bytes) -> None:
        self._digest.update(f"{row_count} ".encode() + digest)

    def _watched(self, rows: Iterator[OperatorStateRow], digest: RowDigest) -> Iterator[OperatorStateRow]:
        for row in self._counted(rows):
            self._rows += 1
            digest.add(row)
            yield row

    def _counted(self, rows: Iterator[OperatorStateRow]) -> Iterator[OperatorStateRow]:
        for number, row in enumerate(rows):
            if number % _CANCEL_CHECK_ROWS == 0:
                self.raise_if_cancelled()
            yield row


class RowDigest(Protocol):
    """A digest over a sequence of rows."""

    def add(self, row: OperatorStateRow) -> None:
        """Add a row."""

    def value(self) -> bytes:
        """The digest of the rows so far, 16 bytes."""


class _OrderedDigest:
    def __init__(self) -> None:
        self._digest: Any = xxhash.xxh3_128()

    def add(self, row: OperatorStateRow) -> None:
        self._digest.update(_row_bytes(row))

    def value(self) -> bytes:
        digest: bytes = self._digest.digest()
        return digest


class _UnorderedDigest:
    def __init__(self) -> None:
        self._sum = 0

    def add(self, row: OperatorStateRow) -> None:
        self._sum += xxhash.xxh3_128_intdigest(_row_bytes(row))

    def value(self) -> bytes:
        return (self._sum % (1 << 128)).to_bytes(16, "big")


NewDigest = Callable[[], RowDigest]


def _digest_of(rows: Iterator[OperatorStateRow], digest: RowDigest) -> bytes:
    for row in rows:
        digest.add(row)
    return digest.value()


def _row_bytes(row: OperatorStateRow) -> bytes:
    # Lengths come first, so that different rows have different bytes.
    return b"".join([b"\xff" if column is None else len(column).to_bytes(8, "big") + column for column in row])


_WRITERS: Final[Mapping[type, Callable[[OperatorStateSnapshotTask, Any, NewDigest], tuple[StatePart, ...]]]] = {
    ReferencedParts: OperatorStateSnapshotTask._keep,
    CopiedParts: OperatorStateSnapshotTask._copy,
    FrozenOperatorTable: OperatorStateSnapshotTask._write_table,
}


@frozen
class OperatorStateRestorePlan:
    """The compatibility result for the parts of a restored state, and the migration of each schema.

    ``plans`` are by role and by the envelope of the old serializer. They lead to the serializers of the compatibility
    result.
    """

    compatibility: StateCompatibility
    plans: Mapping[tuple[str, bytes], Plan]


def check_operator_state(
    mode: OperatorStateMode,
    parts: Sequence[StatePart],
    descriptor: OperatorStateDescriptor,
    rules: CompatibilityRules = RULES,
) -> StateCompatibility:
    """The compatibility result of `plan_operator_state`."""
    return plan_operator_state(mode, parts, descriptor, rules).compatibility


def plan_operator_state(
    mode: OperatorStateMode,
    parts: Sequence[StatePart],
    descriptor: OperatorStateDescriptor,
    rules: CompatibilityRules = RULES,
) -> OperatorStateRestorePlan:
    """Resolve the compatibility of a descriptor with the parts of a restored state, and the serializers by role.

    Raises `StateRestoreError` if the snapshot of an old serializer cannot be read.
    """
    if mode is not descriptor.mode:
        issue = CompatibilityIssue(
            "",
            FieldCompatibility.REJECT,
            "state-mode",
            f"the restored state is a {mode.value} state, the descriptor is of a {descriptor.mode.value} state",
            "Register the new mode under another name",
        )
        return OperatorStateRestorePlan(
            StateCompatibility(descriptor.name, CompatibilityKind.INCOMPATIBLE, (issue,), {}), {}
        )
    kinds: list[CompatibilityKind] = []
    issues: list[CompatibilityIssue] = []
    serializers: dict[str, TypeSerializer[Any]] = {}
    plans: dict[tuple[str, bytes], Plan] = {}
    for role, serializer in descriptor.serializers.items():
        written = {part.envelopes[role]: part for part in parts}
        snapshots = {envelope: part.snapshot(descriptor.name, role) for envelope, part in written.items()}
        kind, found, serializers[role], migrating = _resolve_role(snapshots, serializer, rules)
        kinds.append(kind)
        issues += [issue.below(f"<{role}>" if len(descriptor.serializers) > 1 else "") for issue in found]
        plans.update({(role, envelope): plan for envelope, plan in migrating.items()})
    compatibility = StateCompatibility(descriptor.name, worst_kind(kinds), tuple(dict.fromkeys(issues)), serializers)
    return OperatorStateRestorePlan(compatibility, plans)


def _resolve_role(
    snapshots: Mapping[bytes, TypeSerializerSnapshot[Any]], serializer: TypeSerializer[Any], rules: CompatibilityRules
) -> tuple[CompatibilityKind, list[CompatibilityIssue], TypeSerializer[Any], dict[bytes, Plan]]:
    kinds = [CompatibilityKind.AS_IS]
    issues: list[CompatibilityIssue] = []
    # Each round but the last adopts the serializer that at least one more schema needs.
    for _ in range(len(snapshots) + 1):
        is_settled, plans = True, dict[bytes, Plan]()
        for envelope, snapshot in snapshots.items():
            compatibility = resolve_compatibility(snapshot, serializer, rules)
            kinds.append(compatibility.kind)
            issues += compatibility.issues
            if compatibility.is_after_migration:
                plans[envelope] = compatibility.plan
            if compatibility.is_with_reconfigured_serializer and not _is_like(
                compatibility.reconfigured_serializer, serializer
            ):
                serializer, is_settled = compatibility.reconfigured_serializer, False
        if is_settled:
            return worst_kind(kinds), issues, serializer, plans
    conflict = CompatibilityIssue(
        "",
        FieldCompatibility.REJECT,
        "reconfiguration-conflict",
        f"it was written with {len(snapshots)} schemas, and no configuration of {serializer!r} can read all of them",
        "Restore once with the old program and register the state in every subtask",
    )
    return CompatibilityKind.INCOMPATIBLE, [*issues, conflict], serializer, {}


def _is_like(one: TypeSerializer[Any], other: TypeSerializer[Any]) -> bool:
    """Whether both have the same snapshot; equal serializers may have learned different things."""
    return snapshot_to_bytes(one.snapshot_configuration()) == snapshot_to_bytes(other.snapshot_configuration())


T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


@frozen(kw_only=True)
class OperatorStateBackendParameters:
    """The parameters from which the operator state of a subtask is created.

    Snapshots write their files to ``file_system``, below ``file_prefix``; both may be shared with the keyed backend.
    ``rules`` decide the compatibility of restored state, and ``conversions`` define its migration.
    """

    operator_uid: str
    file_system: CheckpointFileSystem
    file_prefix: str
    restore: RestoredOperatorState | None = None
    progress: ProgressListener = field(default=no_progress, eq=False)
    rules: CompatibilityRules = field(default=RULES, eq=False, repr=False)
    conversions: ConversionTable = field(default=CONVERSIONS, eq=False, repr=False)


@define
class _Reference:
    """The parts in the store that hold a state at one version of its content; None for unregistered state."""

    version: int | None
    parts: tuple[StatePart, ...]


@define
class _RegisteredState:
    """One state: restored and not yet registered, or with a table."""

    mode: OperatorStateMode
    restored: AssignedState | None = None
    table: OperatorStateTable | None = None
    descriptor: OperatorStateDescriptor | None = None
    reference: _Reference | None = None

    @property
    def version(self) -> int | None:
        return None if self.table is None else self.table.version


class OperatorStateBackend:
    """The operator state of one subtask."""

    def __init__(self, parameters: OperatorStateBackendParameters) -> None:
        self.parameters = parameters
        self.restore_reports: list[StateRestoreReport] = []
        self._held: dict[str, _RegisteredState] = {}
        self._tasks: SnapshotTasks[OperatorStateSnapshot] = SnapshotTasks()
        self._written: dict[int, dict[str, _Reference]] = {}
        # Guards what tasks change on their own threads at their end.
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
        """Return the state of a descriptor, registered on first use.

        Raises `StateRegistrationError` if the name was registered with another descriptor. Raises
        `StateMigrationException`, changing nothing, if the restored state is incompatible.
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
            held = self._held[descriptor.name] = _RegisteredState(descriptor.mode, None, table, descriptor)
        else:
            self._decode_restored(held, descriptor)
        return cast(State, held.table)

    def state_names(self, mode: OperatorStateMode | None = None) -> tuple[str, ...]:
        """The names of all states, or of the states of one mode, registered or only restored."""
        return tuple(name for name, held in self._held.items() if mode is None or held.mode is mode)

    def unregistered_names(self) -> tuple[str, ...]:
        """The names of the restored states that are not registered yet."""
        return tuple(name for name, held in self._held.items() if held.table is None)

    def prepare_snapshot(self, checkpoint_id: int, state_id: str) -> OperatorStateSnapshotTask:
        """Freeze the current state, and return the task that writes it; ``state_id`` is unique to this attempt.

        Later changes and registrations are not in the snapshot. The time is proportional to the number of states, not
        of elements. Several tasks may run at once.
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
        """Run both parts of a snapshot at once."""
        return self.prepare_snapshot(checkpoint_id, state_id).run()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Let later snapshots refer to the files of this checkpoint instead of writing the same rows again."""
        with self._lock:
            references = self._written.get(checkpoint_id, {})
            self._written = {other: kept for other, kept in self._written.items() if other > checkpoint_id}
        for name, reference in references.items():
            # A closed backend takes no more snapshots.
            if name in self._held:
                self._held[name].reference = reference

    def close(self) -> None:
        """Cancel running snapshots and free all resources; may be called twice. States become invalid."""
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
            self._held[state.name] = _RegisteredState(state.mode, state, reference=reference)

    def _decode_restored(self, held: _RegisteredState, descriptor: OperatorStateDescriptor) -> None:
        restored = held.restored
        assert restored is not None
        plan = plan_operator_state(restored.mode, restored.content, descriptor, self.parameters.rules)
        compatibility = plan.compatibility
        if compatibility.kind is CompatibilityKind.INCOMPATIBLE:
            message = incompatibility_message(self.parameters.operator_uid, [compatibility], RESTORED_STATE_UNCHANGED)
            raise StateMigrationException(message)
        started = time.monotonic()
        table = TABLES[descriptor.mode](descriptor.name, compatibility.serializers)
        is_migration = compatibility.kind is CompatibilityKind.AFTER_MIGRATION
        operation = Operation.MIGRATION if is_migration else Operation.RESTORE
        progress = StateProgress(self.parameters.progress, operation, self.parameters.operator_uid, descriptor.name)
        migrated = 0
        for part in restored.content:
            migrated += self._load(table, part, plan.plans, progress)
        progress.done()
        # Later snapshots refer to files only if these equal what would be written now.
        schema = envelopes_of(compatibility.serializers)
        is_reusable = self._may_refer_to_restored and all(part.envelopes == schema for part in restored.content)
        held.reference = _Reference(table.version, restored.content) if is_reusable else None
        held.table, held.descriptor, held.restored = table, descriptor, None
        self.restore_reports.append(
            StateRestoreReport(descriptor.name, compatibility, migrated, time.monotonic() - started)
        )

    def _load(
        self,
        table: OperatorStateTable,
        part: StatePart,
        plans: Mapping[tuple[str, bytes], Plan],
        progress: StateProgress,
    ) -> int:
        """Load one part into a table; return the number of migrated rows."""
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

    def _frozen(self, name: str, held: _RegisteredState) -> FrozenOperatorState:
        reference = held.reference
        if (
            reference is not None
            and reference.version == held.version
            and sum(len(part.slices) for part in reference.parts) <= MAX_SLICES
        ):
            is_known = held.table is None or all(part.digest is not None for part in reference.parts)
            return FrozenOperatorState(
                name, held.mode, ReferencedParts(reference.parts, None if is_known else _frozen_table(held))
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
                f"states live for one epoch and are made again in open()"
            )


def _frozen_table(held: _RegisteredState) -> FrozenOperatorTable:
    assert held.table is not None
    row_count, rows = held.table.freeze()
    serializers = {role: serializer.duplicate() for role, serializer in held.table.serializers.items()}
    return FrozenOperatorTable(row_count, rows, serializers)


def export_operator_state(
    part: OpaqueStateHandle | None,
    source: CheckpointFileSystem,
    target: CheckpointFileSystem,
    directory: str,
    file_stem: str,
) -> tuple[OpaqueStateHandle | None, dict[str, int]]:
    """Copy the operator part of a subtask's state; return the part in the target, and the rows of each state."""
    states = []
    for state in decode_operator_state(part).states:
        prefix = f"{directory}/operator={state.mode.value}/{path_segment(state.name)}/{file_stem}"
        parts = []
        for number, old in enumerate(state.parts):
            slices: tuple[FileSlice, ...] = ()
            if old.slices:
                data = encoded_rows(read_slices(source, old.slices))
                path = prefix + (f".{number}" if number else "") + FILE_SUFFIX
                slices = (FileSlice(target.write_file(path, data), 0, old.row_count),)
            parts.append(StatePart(old.envelopes, slices, old.digest))
        states.append(OperatorStateMeta(state.name, state.mode, tuple(parts)))
    exported = encode_operator_state(OperatorStateHandle(tuple(states)), CANONICAL_BACKEND)
    return exported, {state.name: state.row_count for state in states}
