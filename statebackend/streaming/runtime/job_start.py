"""The checks of a start before anything is written, the same in every runtime, and the results of `check`.

1. Find what to restore (`starting_point`), and check that the same runtime wrote it.
2. Check operators, key groups, backend, parallelism and files, and the compatibility of every state.
3. Become the leader of the job; a standby waits here. If another driver was active meanwhile, repeat 1 and 2.

`SchemaReports` are the compatibility results by operator, as text and as HTML for notebooks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import frozen

from snapshots.type_serializer_snapshot import RULES, CompatibilityRules
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import raising_root_cause
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.store.job_directory import JobDirectory
from statebackend.savepoint.html_pages import table_fragment
from statebackend.savepoint.restored_state import RestoredState, StoredSchemas
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport, StateCompatibility
from statebackend.streaming.errors import JobRestoreError
from statebackend.streaming.runtime.restore_plan import (
    check_backend,
    check_files,
    check_merges,
    check_no_channel_state,
    check_operators,
    check_states,
)
from statebackend.streaming.runtime.starting_point import StartingPoint
from statebackend.streaming.runtime.state_registration import RegisteredStates, schema_report
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "COMPATIBILITY_COLUMNS",
    "Engine",
    "LockedStart",
    "SchemaReports",
    "StartingOperator",
    "check_written_by",
    "compatibility_rows",
    "judged",
    "locked_start",
    "looked_up",
    "report_of",
    "reports_of",
    "require_compatible",
]


class SchemaReports(dict[str, SchemaReport]):
    """The reports by operator uid; a dict, which is empty where nothing is restored."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.values())) or "no state is restored"

    def _repr_html_(self) -> str:
        is_compatible = all(report.is_compatible for report in self.values())
        title = "no state is restored" if not self else "compatible" if is_compatible else "incompatible"
        return table_fragment(title, COMPATIBILITY_COLUMNS, self._rows())

    def _rows(self) -> Iterator[tuple[object, ...]]:
        for uid, report in self.items():
            yield from compatibility_rows(
                uid, (report.key_compatibility, *report.compatibilities, *report.operator_state_compatibilities)
            )
            for name in (*report.unregistered, *report.unregistered_operator_state):
                yield uid, name, "not registered, kept as it is", None, None, None


COMPATIBILITY_COLUMNS: Final = ("operator", "state", "verdict", "at", "why", "what to do")


def compatibility_rows(uid: str, compatibilities: Iterable[StateCompatibility]) -> Iterator[tuple[object, ...]]:
    """A row for each issue, or for a compatibility result without any."""
    for compatibility in compatibilities:
        name, kind = compatibility.state_name, compatibility.kind.label
        if not compatibility.issues:
            yield uid, name, kind, None, None, None
        for issue in compatibility.issues:
            yield uid, name, kind, issue.path, issue.reason, issue.fix


T = TypeVar("T")


@frozen
class LockedStart(Generic[T]):
    """A job that this driver leads, what is noted of it, what it continues from, and what the judge said of that."""

    directory: JobDirectory
    records: JobRecords
    point: StartingPoint
    compatibility: T


class Engine(enum.Enum):
    """What runs a job. Each has its own idea of how far the source is read, so a job directory belongs to one."""

    SPARK = "a job on Spark"
    IN_PROCESS = "a job in one process"


class StartingOperator(Protocol):
    """What a start needs to know of an operator.

    ``key_serializer`` is None as long as the types of the keys are not known; what is stored is then taken for right,
    and the keys are judged when they are known.
    """

    @property
    def uid(self) -> str: ...
    @property
    def key_serializer(self) -> TypeSerializer[Any] | None: ...
    @property
    def states(self) -> RegisteredStates: ...


def check_written_by(newest: CheckpointMetadata | None, engine: Engine, file_system: CheckpointFileSystem) -> None:
    """Raises `JobRestoreError` if the job directory is one of the other engine, whose source position is another.

    ``newest`` is the checkpoint of the directory to continue from, if it has one.
    """
    is_spark = file_system.exists("spark/metadata") or (newest is not None and newest.source_positions is not None)
    if newest is None and not is_spark:
        return
    written_by = Engine.SPARK if is_spark else Engine.IN_PROCESS
    if written_by is not engine:
        raise JobRestoreError(
            f"the job directory {file_system.uri} is that of {written_by.value}, and {engine.value} cannot continue "
            f"it: how far its source is read would be lost. Take a savepoint there, and begin a new job directory "
            f"from it"
        )


def judged(
    restored: RestoredState | None,
    operators: Mapping[str, StartingOperator],
    *,
    backend: StateBackend | None,
    parallelism: int | None,
    max_parallelism: int,
    allow_non_restored_state: bool,
    rules: CompatibilityRules = RULES,
    takes_channel_state: bool = False,
    sources: Collection[str] = (),
) -> SchemaReports:
    """The compatibility results, by ``rules``, on the state that a job would continue from, by operator uid; touches
    nothing.

    ``sources`` are those that go on from positions in the state, by uid. ``takes_channel_state`` says whether records
    that were on their way go on from where they were. Without a ``backend`` or a ``parallelism``, they are those of
    the state. Incompatible state is in the reports. Raises `JobRestoreError` for what does not fit the job,
    `MissingFileError` or `CorruptFileError` for a file of the state.
    """
    if restored is None:
        return SchemaReports()
    check_operators(restored, [*operators, *sources], max_parallelism, allow_non_restored_state)
    if not takes_channel_state:
        check_no_channel_state(restored, operators)
    if backend is not None:
        check_backend(restored, backend)
    if parallelism is not None:
        check_merges(restored, operators, parallelism)
    check_files(restored, [*operators, *sources])
    return reports_of(restored, operators, allow_non_restored_state, rules)


def reports_of(
    stored: StoredSchemas,
    operators: Mapping[str, StartingOperator],
    allow_non_restored_state: bool,
    rules: CompatibilityRules = RULES,
) -> SchemaReports:
    """The compatibility results, by ``rules``, on the stored state of all operators that have some, by uid.

    Raises `JobRestoreError` for unregistered state.
    """
    reports = SchemaReports()
    for uid, operator in operators.items():
        metas = stored.keyed_metas_of(uid)
        if metas:
            key_serializer = operator.key_serializer or metas[0].key_snapshot.restore_serializer()
            reports[uid] = report_of(stored, uid, key_serializer, operator.states, allow_non_restored_state, rules)
    return reports


def report_of(
    stored: StoredSchemas,
    uid: str,
    key_serializer: TypeSerializer[Any],
    states: RegisteredStates,
    allow_non_restored_state: bool,
    rules: CompatibilityRules = RULES,
) -> SchemaReport:
    """The compatibility results, by ``rules``, on the state of one operator, which has some.

    Raises `JobRestoreError` for unregistered state.
    """
    metas = stored.keyed_metas_of(uid)
    report = schema_report(uid, key_serializer, states, metas, stored.operator_state_metas_of(uid), rules)
    check_states(report, allow_non_restored_state)
    return report


def require_compatible(reports: Mapping[str, SchemaReport]) -> None:
    """Raises `StateMigrationException` if state cannot be taken over."""
    for report in reports.values():
        report.raise_if_incompatible()


def looked_up(job_dir: str, services: JobServices, find: Callable[[JobRecords], StartingPoint]) -> StartingPoint:
    """What a start would continue from, found without leading the job; raises what ``find`` raises."""
    with services.read_only(CheckpointFileSystem.from_uri(job_dir), JobDirectory.inspect(job_dir)) as records:
        return find(records)


def locked_start(
    job_dir: str,
    name: str,
    max_parallelism: int,
    services: JobServices,
    find: Callable[[JobRecords], StartingPoint],
    judge: Callable[[JobRecords, StartingPoint], T],
) -> LockedStart[T]:
    """Finds what to continue from, lets it be judged, leads the job by ``services``, and finds it again.

    ``find`` and ``judge`` touch nothing, and raise for what cannot be. The caller closes the directory that is
    returned. What another driver has done in between, as while this one stood by, is continued.

    Raises `JobDirectoryError` for a directory of another job or driver, `StorageError` where nothing can be found out.
    """
    JobDirectory.check(job_dir, name, max_parallelism)
    with services.read_only(CheckpointFileSystem.from_uri(job_dir), JobDirectory.inspect(job_dir)) as records:
        point = find(records)
        compatibility = judge(records, point)
    directory = JobDirectory.open(
        job_dir, name, max_parallelism, leadership=services, kept_in=services.kept_in(name), origin=point.origin
    )
    try:
        # Whoever was overtaken meanwhile may find anything.
        with raising_root_cause(directory.leadership):
            records = services.take_over(directory)
            found = find(records)
            if found.identity != point.identity:
                compatibility = judge(records, found)
        return LockedStart(directory, records, found, compatibility)
    except BaseException:
        directory.close()
        raise
