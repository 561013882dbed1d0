"""Checks whether a job can restore stored state: a savepoint, a checkpoint, or a schema lockfile. Changes nothing.

One `CompatibilityChecker` serves `check` and the start of both runtimes, the commands `check`, `lock` and `migrate`,
and the pytest plugin. A start raises for the first thing that does not fit the job. A comparison collects all results:

| Outcome | Meaning |
|---|---|
| restores | nothing is lost |
| loses | a start drops parts of values that the new types do not have |
| rejected unless allowed | only a start with ``allow_non_restored_state=True`` drops the listed states or operators |
| rejected | no start restores the state: an incompatible schema, or other key groups |
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from attrs import field, frozen

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, worst_kind
from snapshots.errors import StateFormatError
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules
from statebackend.checkpoint.errors import CheckpointError
from statebackend.checkpoint.state_handles import OperatorState, files_of_operators
from statebackend.savepoint.html_pages import table_fragment
from statebackend.savepoint.lockfile import LockedOperator, StateLock
from statebackend.savepoint.restored_state import RestoredState, StoredSchemas
from statebackend.state.backend_parameters import merge_handles
from statebackend.state.descriptors import ELEMENT_ROLE, Descriptor
from statebackend.state.errors import StateBackendError, StateRestoreError
from statebackend.state.operator_state_backend import check_operator_state
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor, OperatorStateMode
from statebackend.state.operator_state_handles import OperatorStateMeta, StatePart, envelopes_of
from statebackend.state.priority_queue import TIMER_STATES, PriorityQueueDescriptor, displayed_state
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility, check_key_serializer, check_state
from statebackend.state.state_kind import StateDescriptor, StateKind
from statebackend.state.state_meta import KeyedStateMeta, StateMeta, first_meta_of
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError
from statebackend.streaming.operators.merging_windows import SETS_NAME
from statebackend.streaming.operators.window_state import CONTENTS_NAME
from statebackend.streaming.runtime.restore_plan import overlaps
from statebackend.streaming.runtime.state_registration import RegisteredStates, keyed_descriptors
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "COMPATIBILITY_COLUMNS",
    "Comparison",
    "CompatibilityChecker",
    "DescribedJob",
    "DescribesJob",
    "Outcome",
    "SchemaReports",
    "StartingOperator",
    "compatibility_rows",
    "schema_report",
]


class StartingOperator(Protocol):
    """An operator before its start: the operators of both runtimes.

    ``key_serializer`` is None as long as the types of the keys are unknown. The stored ones are used then, and the
    keys are checked with the first record.
    """

    @property
    def key_serializer(self) -> TypeSerializer[Any] | None: ...
    @property
    def states(self) -> RegisteredStates: ...


@frozen
class DescribedJob:
    """A job by its operators and registered state, without source, session or records.

    ``sources`` are the uids of the sources that continue from positions in the state.
    """

    operators: Mapping[str, StartingOperator]
    max_parallelism: int
    rules: CompatibilityRules = field(default=RULES, repr=False)
    sources: Sequence[str] = ()

    @classmethod
    def of_lock(cls, lock: StateLock, stored: StoredSchemas) -> DescribedJob:
        """Return the job that a schema lockfile describes, to compare it with stored state.

        A lockfile does not name sources. Stored operators without keyed state count as such.

        Raises:
            StateFormatError: A serializer of the lockfile is unknown in this process.
        """
        sources = [uid for uid in stored.operator_uids if not stored.keyed_metas_of(uid)]
        return cls({one.uid: _LockedStart.of(one) for one in lock.operators}, lock.max_parallelism, sources=sources)

    def require_known_keys(self) -> None:
        """Raise `JobDefinitionError` for an operator whose key types are unknown without a record."""
        for uid, operator in self.operators.items():
            _known_key_serializer(uid, operator)

    def lock(self) -> StateLock:
        """Return the schema lockfile of the job, with operators and states sorted by name.

        Raises `JobDefinitionError` as `require_known_keys`.
        """
        operators = tuple(_locked(uid, operator) for uid, operator in sorted(self.operators.items()))
        return StateLock(self.max_parallelism, operators)


@frozen
class _LockedState(StateDescriptor):
    """A keyed state of a lockfile. Its serializers may already have the time of the last access."""

    kind: StateKind = field(kw_only=True)  # type: ignore[misc]
    serializers: Mapping[str, TypeSerializer[Any]] = field(kw_only=True)

    @classmethod
    def of(cls, state: StateMeta) -> Descriptor:
        serializers = {role: snapshot.restore_serializer() for role, snapshot in state.role_snapshots.items()}
        if not isinstance(state.kind, StateKind):
            return PriorityQueueDescriptor(state.name, serializers[ELEMENT_ROLE])
        timed = serializers[state.kind.timed_role]
        if not isinstance(timed, TtlSerializer):
            return cls(state.name, kind=state.kind, serializers=serializers)
        serializers[state.kind.timed_role] = timed.value_serializer
        return cls(state.name, kind=state.kind, serializers=serializers, ttl=StateTtlConfig(1))


@frozen
class _LockedOperatorState(OperatorStateDescriptor):
    """An operator state of a lockfile."""

    mode: OperatorStateMode = field(kw_only=True)  # type: ignore[misc]
    serializers: Mapping[str, TypeSerializer[Any]] = field(kw_only=True)


@frozen
class _LockedStart:
    """An operator of a lockfile, as a `StartingOperator`."""

    key_serializer: TypeSerializer[Any]
    states: RegisteredStates

    @classmethod
    def of(cls, operator: LockedOperator) -> _LockedStart:
        keyed = operator.keyed
        operator_states = [
            _LockedOperatorState(
                one.name,
                mode=one.mode,
                serializers={
                    role: one.parts[-1].snapshot(one.name, role).restore_serializer()
                    for role in one.parts[-1].envelopes
                },
            )
            for one in operator.operator_states
        ]
        states = RegisteredStates(
            tuple(_LockedState.of(one) for one in keyed.states),  # type: ignore[misc]
            tuple(operator_states),
            namespaces={one.name: one.namespace_snapshot.restore_serializer() for one in keyed.states},
        )
        return cls(keyed.key_snapshot.restore_serializer(), states)


@runtime_checkable
class DescribesJob(Protocol):
    """An environment, or a user's object that builds one."""

    def described(self) -> DescribedJob:
        """Return the job as it is built so far. Raises `JobDefinitionError` for a job that cannot run."""
        ...


class SchemaReports(dict[str, SchemaReport]):
    """The compatibility results by operator uid; empty if nothing is restored."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.values())) or "no state is restored"

    def _repr_html_(self) -> str:
        is_compatible = all(report.is_compatible for report in self.values())
        title = "no state is restored" if not self else "compatible" if is_compatible else "incompatible"
        return table_fragment(title, COMPATIBILITY_COLUMNS, self.rows())

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield the results as rows under `COMPATIBILITY_COLUMNS`."""
        for uid, report in self.items():
            yield from compatibility_rows(
                uid, (report.key_compatibility, *report.compatibilities, *report.operator_state_compatibilities)
            )
            for name in (*report.unregistered, *report.unregistered_operator_state):
                yield uid, displayed_state(name), "not registered, kept as it is", None, None, None

    def require_compatible(self) -> None:
        """Raise `StateMigrationException` for the first incompatible operator."""
        for report in self.values():
            report.raise_if_incompatible()

    def data_loss(self) -> Iterator[tuple[str, str, CompatibilityIssue]]:
        """Yield operator uid, state name and issue for each part of a state that a start drops."""
        for uid, report in self.items():
            for state in (*report.compatibilities, *report.operator_state_compatibilities):
                for issue in state.issues:
                    if issue.compatibility is FieldCompatibility.LOSSY:
                        yield uid, state.state_name, issue


COMPATIBILITY_COLUMNS: Final = ("operator", "state", "result", "at", "why", "what to do")


def compatibility_rows(uid: str, compatibilities: Iterable[StateCompatibility]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each issue, and one for a compatibility result without issues."""
    for compatibility in compatibilities:
        name, kind = displayed_state(compatibility.state_name), compatibility.kind.label
        if not compatibility.issues:
            yield uid, name, kind, None, None, None
        for issue in compatibility.issues:
            yield uid, name, kind, issue.path, issue.reason, issue.fix


class Outcome(enum.Enum):
    """The outcome of a comparison, best first."""

    RESTORES = "restores"
    LOSES = "restores, and loses what is marked 'data loss'"
    REJECTED_UNLESS_ALLOWED = (
        "does not restore, unless the start is given allow_non_restored_state=True, which leaves out the listed state"
    )
    REJECTED = "does not restore"

    def is_accepted(self, allow_loss: bool) -> bool:
        """Whether the outcome is a restore, or a loss that is allowed."""
        return self is Outcome.RESTORES or (allow_loss and self is not Outcome.REJECTED)


@frozen
class Comparison:
    """A job compared with stored state. ``rejection`` rejects the whole, whatever the reports contain.

    ``dropped_operators`` have state and are not in the job.
    """

    stored: str
    reports: SchemaReports = field(factory=SchemaReports)
    dropped_operators: tuple[str, ...] = ()
    rejection: str | None = None

    @property
    def outcome(self) -> Outcome:
        """The outcome."""
        reports = self.reports.values()
        if self.rejection is not None or not all(report.is_compatible for report in reports):
            return Outcome.REJECTED
        if self.dropped_operators or any(one.unregistered or one.unregistered_operator_state for one in reports):
            return Outcome.REJECTED_UNLESS_ALLOWED
        return Outcome.LOSES if any(self.reports.data_loss()) else Outcome.RESTORES


@frozen
class CompatibilityChecker:
    """Checks a job against one stored state."""

    job: DescribedJob
    stored: StoredSchemas

    def check_start(
        self,
        *,
        backend: StateBackend,
        parallelism: int,
        allow_non_restored_state: bool,
        restores_channel_state: bool = False,
    ) -> SchemaReports:
        """Check what a start would restore. Incompatible schemas are in the reports.

        Args:
            backend: The backend that restores.
            parallelism: The parallelism to restore to.
            allow_non_restored_state: Whether operators and states may be missing in the job.
            restores_channel_state: Whether the runtime restores records in flight.

        Raises:
            JobRestoreError: The state does not fit the job.
            MissingFileError: A file of the state is missing.
            CorruptFileError: A file of the state has another size.
        """
        self.check_operators(allow_non_restored_state)
        if not restores_channel_state:
            self._check_no_channel_state()
        self.check_backend(backend)
        self.check_merges(parallelism)
        self.check_files()
        return self._reports(allow_non_restored_state)

    def compare(self, *, backend: StateBackend | None = None, parallelism: int | None = None) -> Comparison:
        """Compare the job with the stored state, by the rules of a start.

        Without ``backend`` and ``parallelism`` the job restores with those that wrote the state. Raises
        `JobDefinitionError` if the types of keys are unknown: the stored ones would be used unchecked.
        """
        self.job.require_known_keys()
        where = self.stored.where
        try:
            if parallelism is not None and parallelism > self.stored.max_parallelism:
                raise JobRestoreError(
                    f"the state at {where} has {self.stored.max_parallelism} key groups, which are too few for a "
                    f"parallelism of {parallelism}: at most so many subtasks can have some"
                )
            if backend is not None:
                self.check_backend(backend)
            if parallelism is not None:
                self.check_merges(parallelism)
            self.check_files()
            reports = self._reports(allow_non_restored_state=True)
        except (JobRestoreError, StateBackendError, StateFormatError, CheckpointError) as error:
            return Comparison(where, rejection=str(error))
        return Comparison(where, reports, tuple(self._unknown_operators()), self._rejection_of_key_groups())

    def report(self, uid: str, allow_non_restored_state: bool) -> SchemaReport | None:
        """Check the state of one operator. Return None if it has none.

        Raises `JobRestoreError` for unregistered state.
        """
        keyed, operator = self.stored.keyed_metas_of(uid), self.job.operators[uid]
        if not keyed:
            return None
        key_serializer = operator.key_serializer or keyed[0].key_snapshot.restore_serializer()
        operator_states = self.stored.operator_state_metas_of(uid)
        report = schema_report(uid, key_serializer, operator.states, keyed, operator_states, self.job.rules)
        restored = {state.name for meta in keyed for state in meta.states}
        registered = {state.name for state in operator.states.keyed}
        has_windows = all(any(name.startswith(CONTENTS_NAME) for name in names) for names in (restored, registered))
        if has_windows:
            self._check_time_of_windows(uid, operator.states)
        if has_windows and SETS_NAME in restored ^ registered:
            was, becomes = ("sessions", "other windows") if SETS_NAME in restored else ("other windows", "sessions")
            raise JobRestoreError(
                f"operator {uid!r} has stored {was}, which would not fire as {becomes}. Give the operator another uid, "
                f"and pass allow_non_restored_state=True to drop the stored windows"
            )
        unregistered = [repr(displayed_state(name)) for name in report.unregistered]
        unregistered += [f"{name!r} (operator state)" for name in report.unregistered_operator_state]
        if unregistered and not allow_non_restored_state:
            raise JobRestoreError(
                f"operator {uid!r} has stored state that its open() does not register: "
                f"{', '.join(unregistered)}. {_fix_of_unregistered(report)}, or pass "
                f"allow_non_restored_state=True: it is then kept untouched and goes into the next savepoint"
            )
        return report

    def _check_time_of_windows(self, uid: str, states: RegisteredStates) -> None:
        """Raise `JobRestoreError` if open windows end in the other time. An open window always has a timer."""
        if states.windows_end_in_event_time is None or not isinstance(self.stored, RestoredState):
            return
        for due in self.stored.metadata.timers_due:
            ends = (due.event_time_ms, due.processing_time_ms)
            here, other = ends if states.windows_end_in_event_time else reversed(ends)
            if due.operator_uid == uid and here is None and other is not None:
                was, becomes = ("processing", "event") if states.windows_end_in_event_time else ("event", "processing")
                raise JobRestoreError(
                    f"operator {uid!r} has stored windows that end in {was} time, and would never fire in {becomes} "
                    f"time. Give the operator another uid, and pass allow_non_restored_state=True to drop the stored "
                    f"windows"
                )

    def _reports(self, allow_non_restored_state: bool) -> SchemaReports:
        reports = SchemaReports()
        for uid in self.job.operators:
            report = self.report(uid, allow_non_restored_state)
            if report is not None:
                reports[uid] = report
        return reports

    def check_operators(self, allow_non_restored_state: bool) -> None:
        """Raise `JobRestoreError` if the state does not fit the job's operators or key groups."""
        rejection = self._rejection_of_key_groups()
        if rejection is not None:
            raise JobRestoreError(rejection)
        unknown = self._unknown_operators()
        if unknown and not allow_non_restored_state:
            raise JobRestoreError(
                f"the state at {self.stored.where} has operators that the job does not have: {_listed(unknown)} (the "
                f"job has {_listed(self._known_uids)}). Give an operator its old uid back, or the state the new one "
                f"(Plan().rename_operator, docs/changing-state.md); or pass allow_non_restored_state=True to drop "
                f"their state"
            )

    @property
    def _known_uids(self) -> list[str]:
        return [*self.job.operators, *self.job.sources]

    def _unknown_operators(self) -> list[str]:
        return [uid for uid in self.stored.operator_uids if uid not in self._known_uids]

    def _rejection_of_key_groups(self) -> str | None:
        stored, max_parallelism = self.stored, self.job.max_parallelism
        if stored.max_parallelism == max_parallelism:
            return None
        return (
            f"the state at {stored.where} has max_parallelism {stored.max_parallelism}, the job {max_parallelism}: "
            f"keys would change their groups. Set max_parallelism={stored.max_parallelism}; or start from a savepoint "
            f"that was rewritten with Plan().change_max_parallelism({max_parallelism}) (docs/rescaling.md)"
        )

    def _check_no_channel_state(self) -> None:
        """For a runtime that does not restore records in flight. Dropping them would lose data."""
        for operator in self._stored_operators:
            for index, subtask in enumerate(operator.subtasks if operator.uid in self.job.operators else ()):
                if subtask.has_in_flight_records:
                    raise JobRestoreError(
                        f"subtask {index} of operator {operator.uid!r} has records in flight in its state at "
                        f"{self.stored.where}, which only the local runtime restores. Nothing was changed; take a "
                        f"savepoint there, which never has such records, and continue from that"
                    )

    def check_files(self) -> None:
        """Raise `MissingFileError` or `CorruptFileError` if a file of the job's operators is missing or truncated.

        Files are not read. A subtask with a local copy of its state would not notice the loss, and later checkpoints
        would refer to missing files.
        """
        if isinstance(self.stored, RestoredState):
            known = [operator for operator in self._stored_operators if operator.uid in self._known_uids]
            self.stored.file_system.verify_present(files_of_operators(known))

    def check_backend(self, backend: StateBackend) -> None:
        """Raise `JobRestoreError` if the state is in the native format of another backend."""
        for operator in self._stored_operators:
            for handle in operator.keyed_handles:
                if not backend.can_restore(handle.backend):
                    raise JobRestoreError(
                        f"the state of operator {operator.uid!r} at {self.stored.where} was written by the backend "
                        f"{handle.backend!r} in its native format. The backend {backend.name!r} does not read it. Take "
                        f"a savepoint with the old backend, and start a new job directory from it with the new one"
                    )

    def check_merges(self, parallelism: int) -> None:
        """Raise `JobRestoreError` if a subtask would restore one state with two schemas."""
        for operator in self._stored_operators:
            uid = operator.uid
            if uid not in self.job.operators or len(self.stored.keyed_metas_of(uid)) < 2:
                continue
            assert isinstance(self.stored, RestoredState)
            handles = self.stored.keyed_handles(uid)
            try:
                for overlap in overlaps(operator.keyed_handles, parallelism, operator.max_parallelism):
                    merge_handles(handles[overlap])
            except StateRestoreError as error:
                raise JobRestoreError(
                    f"operator {uid!r} cannot go from parallelism {operator.parallelism} to {parallelism}; nothing "
                    f"was changed: {error}"
                ) from error

    @property
    def _stored_operators(self) -> Sequence[OperatorState]:
        """The operators with files. A lockfile has schemas only."""
        return self.stored.metadata.operators if isinstance(self.stored, RestoredState) else ()


def schema_report(
    operator_uid: str,
    key_serializer: TypeSerializer[Any],
    registered: RegisteredStates,
    keyed: Sequence[KeyedStateMeta],
    operator_state: Sequence[OperatorStateMeta],
    rules: CompatibilityRules = RULES,
) -> SchemaReport:
    """Return the compatibility results on all registered states of an operator.

    If subtasks stored different schemas, the worst result counts. ``keyed`` has at least one meta.
    """
    restored: dict[str, list[StateMeta]] = {}
    for meta in keyed:
        for state in meta.states:
            restored.setdefault(state.name, []).append(state)
    restored_operator_state = {state.name: state for state in operator_state}
    descriptors = {descriptor.name: descriptor for descriptor in keyed_descriptors(registered, key_serializer)}
    operator_descriptors = {descriptor.name: descriptor for descriptor in registered.operator}
    return SchemaReport(
        operator_uid,
        _worst([check_key_serializer(meta.key_snapshot, key_serializer, rules) for meta in keyed]),
        compatibilities=tuple(
            _worst([check_state(state, descriptor, registered.namespace(name), rules) for state in restored[name]])
            for name, descriptor in descriptors.items()
            if name in restored
        ),
        unregistered=tuple(name for name in restored if name not in descriptors),
        operator_state_compatibilities=tuple(
            check_operator_state(old.mode, old.parts, descriptor, rules)
            for name, descriptor in operator_descriptors.items()
            if (old := restored_operator_state.get(name)) is not None
        ),
        unregistered_operator_state=tuple(name for name in restored_operator_state if name not in operator_descriptors),
    )


def _worst(compatibilities: Sequence[StateCompatibility]) -> StateCompatibility:
    worst = worst_kind([compatibility.kind for compatibility in compatibilities])
    return next(compatibility for compatibility in compatibilities if compatibility.kind is worst)


def _fix_of_unregistered(report: SchemaReport) -> str:
    timers = [name for name in report.unregistered if name.startswith(TIMER_STATES)]
    if not timers:
        return "Register it under its old name"
    if len(timers) == len(report.unregistered) and not report.unregistered_operator_state:
        return "These are timers: keep on_timer, and the kind of windows"
    return "Register it under its old name (for timers: keep on_timer)"


def _locked(uid: str, operator: StartingOperator) -> LockedOperator:
    key_serializer = _known_key_serializer(uid, operator)
    states = [
        first_meta_of(descriptor, operator.states.namespace(descriptor.name))
        for descriptor in _by_name(keyed_descriptors(operator.states, key_serializer))
    ]
    operator_states = [
        OperatorStateMeta(descriptor.name, descriptor.mode, (StatePart(envelopes_of(descriptor.serializers)),))
        for descriptor in _by_name(operator.states.operator)
    ]
    keyed = KeyedStateMeta(key_serializer.snapshot_configuration(), 0, tuple(states))
    return LockedOperator(uid, keyed, tuple(operator_states))


def _known_key_serializer(uid: str, operator: StartingOperator) -> TypeSerializer[Any]:
    if operator.key_serializer is None:
        raise JobDefinitionError(
            f"operator {uid!r}: the types of its keys are not known without a record. Declare the schema of "
            f"its source, as in from_elements([], schema='name string'), and key by names of its columns"
        )
    return operator.key_serializer


def _by_name(descriptors: Iterable[Any]) -> list[Any]:
    return sorted(descriptors, key=lambda one: one.name)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"
