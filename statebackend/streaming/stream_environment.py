"""What the environments of all runtimes share: settings, listeners, and the check of stored state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from migration import LIBRARY_RULES, EvolutionRules
from snapshots.loggers import logger_of
from statebackend.checkpoint.ha.services import JobServices
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.key_groups import check_parallelism
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend, state_backend
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob, SchemaReports
from statebackend.streaming.errors import JobDefinitionError, format_instance
from statebackend.streaming.explain import ExplainedOperator, explain_operators
from statebackend.streaming.observing.job_events import JobListener, JobListeners
from statebackend.streaming.runtime.settings import check_whole_numbers, is_instance_of
from statebackend.streaming.stream_graph import StreamGraph

__all__ = ["StreamEnvironment", "require_compatible"]

_logger = logger_of(__name__)


class StreamEnvironment(ABC):
    """Builds one job. A runtime adds its sources and the start.

    Raises:
        JobDefinitionError: A setting is invalid.
    """

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
        return explain_operators(self._operators(), self.backend, self.metrics)

    @abstractmethod
    def described(self) -> DescribedJob:
        """Return the job by its operators and state; raises as `execute`."""

    @abstractmethod
    def _operators(self) -> Mapping[str, ExplainedOperator]:
        """The operators of the checked job, by uid."""

    def _compatibilities(
        self,
        described: DescribedJob,
        state: RestoredState | None,
        *,
        allow_non_restored_state: bool,
        restores_channel_state: bool = False,
    ) -> SchemaReports:
        """The compatibility results of a start from this state; none without state."""
        if state is None:
            return SchemaReports()
        return CompatibilityChecker(described, state).check_start(
            backend=self.backend,
            parallelism=self.parallelism,
            allow_non_restored_state=allow_non_restored_state,
            restores_channel_state=restores_channel_state,
        )


def require_compatible(reports: SchemaReports, job_name: str) -> None:
    """Raise `StateMigrationException` for incompatible state, and log a warning for all that the start drops."""
    reports.require_compatible()
    for uid, state_name, issue in reports.data_loss():
        _logger.warning("job %r: operator %r, state %r: %s", job_name, uid, state_name, issue)
