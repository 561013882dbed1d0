"""What the environments of all runtimes share: settings, listeners, the check of stored state, and the start."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar, Generic, Protocol, TypeVar

from attrs import frozen

from migration import LIBRARY_RULES, EvolutionRules
from snapshots.loggers import logger_of
from statebackend.checkpoint.ha.services import JobRecords, JobServices
from statebackend.state.key_groups import check_parallelism
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend, state_backend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob, SchemaReports
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.explain import ExplainedOperator, explain_operators
from statebackend.streaming.observing.job_events import JobListener, JobListeners
from statebackend.streaming.runtime.job_start import LockedStart, locked_start, read_starting_point
from statebackend.streaming.runtime.settings import check_whole_numbers, is_instance_of
from statebackend.streaming.runtime.starting_point import StartingPoint
from statebackend.streaming.stream_graph import JobGraph, StreamGraph

__all__ = ["CheckedProgram", "StartOptions", "StreamEnvironment"]

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
    restore_source_progress: bool | Mapping[str, bool] = False


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
        check_whole_numbers({"parallelism": parallelism, "max_parallelism": max_parallelism})
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
        self, *, from_savepoint: str | os.PathLike[str] | None = None, allow_non_restored_state: bool = False
    ) -> Mapping[str, SchemaReport]:
        """Return the compatibility results of a start by operator uid, without starting or changing anything.

        It checks the state that `execute` would restore: the newest checkpoint of the job directory or, without one,
        the savepoint. Raises as `execute`, except for incompatible state, which is in the results.
        """
        program = self._prepare()
        options = StartOptions(from_savepoint=from_savepoint, allow_non_restored_state=allow_non_restored_state)
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
        """The job as it starts from a starting point."""
        sources = [uid for uid in program.graph.source_uids if uid in self._split_sources]
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
