"""What the environments of all runtimes share: settings, listeners, the check of stored state, and the start."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from attrs import frozen

from migration import LIBRARY_RULES, EvolutionRules
from snapshots.loggers import logger_of
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.savepoint.column_codecs import column_codec
from statebackend.state.key_groups import check_parallelism
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend, state_backend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import TtlStateVisibility
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.streaming.aggregates import AggregateDefinition, bound_aggregates
from statebackend.streaming.batch_functions import KeyedBatchFunction
from statebackend.streaming.compatibility_check import (
    CompatibilityChecker,
    DescribedJob,
    SchemaReports,
    StartingOperator,
)
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.observing.job_events import JobListener, JobListeners
from statebackend.streaming.operators.aggregate import aggregates_of
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.runtime.job_start import LockedStart, locked_start, read_starting_point
from statebackend.streaming.runtime.settings import check_whole_numbers, is_instance_of
from statebackend.streaming.runtime.starting_point import StartingPoint, check_restored_progress
from statebackend.streaming.stream_graph import JobGraph, OperatorNode, StreamGraph
from typeserializers.containers.lists import ListSerializer

__all__ = ["CheckedProgram", "ExplainedOperator", "StartOptions", "StreamEnvironment", "explain_operators"]


_logger = logger_of(__name__)


class CheckedProgram(Protocol):
    """A checked job of either runtime."""

    @property
    def graph(self) -> JobGraph: ...
    @property
    def operators(self) -> Mapping[str, ExplainedOperator]: ...


P = TypeVar("P", bound=CheckedProgram)


@frozen(kw_only=True)
class StartOptions:
    """What a start restores. The options are those of ``execute``."""

    from_savepoint: str | os.PathLike[str] | None = None
    allow_non_restored_state: bool = False
    roll_back_to: int | str | None = None
    restore_source_progress: bool | Mapping[str, bool] = True


class StreamEnvironment(ABC, Generic[P]):
    """Builds one job. A runtime adds its sources and the start.

    Raises:
        JobDefinitionError: A setting is invalid.
    """

    job_dir: str
    """The path or URI of the job directory."""

    _services: JobServices
    _restores_channel_state: ClassVar = False

    def __init__(
        self,
        *,
        backend: str | StateBackend,
        parallelism: int,
        max_parallelism: int,
        metrics: StateMetricsConfig | None,
        rules: EvolutionRules | None,
        high_availability: JobServices | None,
    ) -> None:
        numbers = {"parallelism": parallelism, "max_parallelism": max_parallelism}
        for name, number in numbers.items():
            if number is None:
                raise JobDefinitionError(f"{name} is None; it takes a whole number")
        check_whole_numbers(numbers)
        try:
            check_parallelism(parallelism, max_parallelism)
        except ValueError as error:
            raise JobDefinitionError(str(error)) from error
        for name, given, kind in (
            ("metrics", metrics, StateMetricsConfig),
            ("rules", rules, EvolutionRules),
            ("high_availability", high_availability, JobServices),
        ):
            if given is not None and not is_instance_of(given, kind):
                raise JobDefinitionError(
                    f"{name} is {format_instance(given)}; it takes an instance of {kind.__name__}, or None"
                )
        self.backend = state_backend(backend)
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.metrics = metrics
        self.rules = rules or LIBRARY_RULES
        self._graph = StreamGraph()
        self._listeners = JobListeners()
        self._split_sources: set[str] = set()
        """The uids of the sources whose positions are in checkpoints."""

    def add_listener(self, listener: JobListener) -> None:
        """Add a listener for jobs that start from now on; see `statebackend.streaming.observing.job_events`."""
        self._listeners.add(listener)

    def remove_listener(self, listener: JobListener) -> None:
        """Remove a listener for jobs that start from now on."""
        self._listeners.remove(listener)

    def explain(self) -> str:
        """Explain how each operator takes its records and accesses its state: vectorised, or as Python objects.

        Raises as `execute`. Nothing is started.
        """
        return explain_operators(self._prepare().operators, self.backend, self.metrics)

    def described(self) -> DescribedJob:
        """Return the job by its operators and state. Needs no records of sources with schemas; raises as `execute`."""
        return self._described(self._prepare(), StartingPoint())

    def check(
        self,
        *,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        restore_source_progress: bool | Mapping[str, bool] = True,
    ) -> Mapping[str, SchemaReport]:
        """Return the compatibility results of a start by operator uid, without starting or changing anything.

        It checks the state that `execute` would restore: the newest checkpoint of the job directory or, without one,
        the savepoint. Raises as `execute`, except for incompatible state, which is in the results.
        """
        program = self._prepare()
        check_restored_progress(program.graph.source_uids, restore_source_progress)
        options = StartOptions(
            from_savepoint=from_savepoint,
            allow_non_restored_state=allow_non_restored_state,
            restore_source_progress=restore_source_progress,
        )
        point = read_starting_point(
            self.job_dir, self._services, lambda records: self._starting_point(records, options)
        )
        return self._reports(program, point, allow_non_restored_state)

    @abstractmethod
    def _prepare(self) -> P:
        """Check the program, without its state and records."""

    @abstractmethod
    def _starting_point(self, records: JobRecords, options: StartOptions) -> StartingPoint:
        """Find the state that a start restores; change nothing."""

    def _described(self, program: P, point: StartingPoint) -> DescribedJob:
        sources: Sequence[str] = [uid for uid in program.graph.source_uids if uid in self._split_sources]
        if point.restarts_every_source and point.state is not None:
            # The start drops the positions of a local job's sources.
            sources = point.state.positioned_sources
        return DescribedJob(program.operators, self.max_parallelism, self.rules.compatibilities, sources)

    def _locked_start(
        self,
        name: str,
        program: P,
        options: StartOptions,
        check: Callable[[JobRecords, StartingPoint], object],
    ) -> LockedStart[SchemaReports]:
        """Find the starting point, check its state and then by ``check``, and become the leader of the job."""

        def compatible(records: JobRecords, point: StartingPoint) -> SchemaReports:
            reports = self._compatible(name, program, point, options.allow_non_restored_state)
            check(records, point)
            return reports

        return locked_start(
            self.job_dir,
            name,
            self.max_parallelism,
            self._services,
            lambda records: self._starting_point(records, options),
            compatible,
        )

    def _compatible(self, name: str, program: P, point: StartingPoint, allow_non_restored_state: bool) -> SchemaReports:
        """Raise `StateMigrationException` for incompatible state, and log a warning for all that the start drops."""
        reports = self._reports(program, point, allow_non_restored_state)
        reports.require_compatible()
        for uid, state_name, issue in reports.data_loss():
            _logger.warning("job %r: operator %r, state %r: %s", name, uid, state_name, issue)
        return reports

    def _reports(self, program: P, point: StartingPoint, allow_non_restored_state: bool) -> SchemaReports:
        if point.state is None:
            return SchemaReports()
        return CompatibilityChecker(self._described(program, point), point.state).check_start(
            backend=self.backend,
            parallelism=self.parallelism,
            allow_non_restored_state=allow_non_restored_state,
            restores_channel_state=self._restores_channel_state,
        )


class ExplainedOperator(StartingOperator, Protocol):
    """An operator of either runtime, with its node of the graph."""

    @property
    def node(self) -> OperatorNode: ...


def explain_operators(
    operators: Mapping[str, ExplainedOperator], backend: StateBackend, metrics: StateMetricsConfig | None
) -> str:
    """Return a line for each operator and each of its keyed states."""
    lines = []
    for uid, operator in operators.items():
        function, states = operator.node.function, operator.states
        lines.append(f"operator {uid!r}: {_records(function, states.input_schemas, uid)}")
        for one in states.keyed:
            obstacle = "per record"
            if isinstance(function, KeyedBatchFunction):
                obstacle = _obstacle(one, backend, metrics)
            elif aggregates_of(function) is not None:
                obstacle = _obstacle_of_aggregates(function, states.input_schemas[0], uid, one, backend, metrics)
            access = f"as objects ({obstacle})" if obstacle else "vectorised"
            lines.append(f"    {one.kind.name} state {one.name!r}: {access}")
    return "\n".join(lines)


def _records(function: Any, schemas: Sequence[DeclaredSchema | None], uid: str) -> str:
    if isinstance(function, KeyedBatchFunction):
        return "batches of Arrow columns"
    aggregates = aggregates_of(function)
    if aggregates is None:
        return "record by record"
    ordered = bound_aggregates(aggregates, schemas[0], f"operator {uid!r}").without_partials
    if ordered:
        return f"aggregates, record by record because of {', '.join(ordered)}"
    return "aggregates; Arrow aggregates batches of columns by key before state is read"


def _obstacle_of_aggregates(
    function: Any,
    schema: DeclaredSchema | None,
    uid: str,
    descriptor: StateDescriptor,
    backend: StateBackend,
    metrics: StateMetricsConfig | None,
) -> str:
    """Return how often accumulators are converted one by one; empty if they are vectorised."""
    if isinstance(function, AggregateDefinition):
        columns = bound_aggregates(function.aggregates, schema, f"operator {uid!r}").has_columns
        return "" if columns and not _obstacle(descriptor, backend, metrics) else "once per key and epoch"
    return "once per key, window and batch"


def _obstacle(descriptor: StateDescriptor, backend: StateBackend, metrics: StateMetricsConfig | None) -> str:
    """Return why bulk state converts values one by one; empty if it is vectorised."""
    if isinstance(descriptor, MapStateDescriptor):
        return "map state is not vectorised"
    of_rows = ("rocksdb",) if isinstance(descriptor, ListStateDescriptor) else ("rocksdb", "heap")
    if backend.name not in of_rows:
        return f"the backend {backend.name} keeps objects"
    if metrics is not None:
        return "state metrics are on"
    ttl = descriptor.ttl
    if ttl is not None and not isinstance(descriptor, ValueStateDescriptor):
        return "it has a time-to-live"
    if ttl is not None and ttl.visibility is TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP:
        return "its expired values are visible"
    [serializer] = descriptor.serializers.values()
    if isinstance(descriptor, ListStateDescriptor):
        serializer = ListSerializer(serializer)
    return "" if column_codec(serializer) is not None else "its type has no vectorised codec"
