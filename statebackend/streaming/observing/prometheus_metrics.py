"""Metrics of the jobs of this process for Prometheus, computed at each scrape and stored nowhere.

    listener = PrometheusMetrics()                   # in the default registry of prometheus_client, or in another
    environment.add_listener(listener)               # of any number of environments
    prometheus_client.start_http_server(9464, addr="127.0.0.1")

One listener serves any number of jobs, from the start of each to its end. Labels are the name and id of the job,
operators, states and sources: as many as the program has, and never a key or a value. Names follow the conventions of
Prometheus: base units, and ``_total`` for counters. `FAMILIES` lists them, as does the table in docs/observing.md.
Needs ``prometheus_client``, which the extra ``prometheus`` installs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen

from statebackend.streaming.observing.job_events import JobListener, JobStarted, JobTerminated, ObservedJob
from statebackend.streaming.observing.job_metrics import JobFigures

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

__all__ = ["FAMILIES", "Family", "PrometheusMetrics"]

LABEL_CHARACTERS: Final = 200
"""What is longer of a name is cut: a label is kept for every sample."""

JOB_LABELS: Final = ("job_name", "job_id")


@frozen
class _Source:
    """Where figures are taken from: what there is of a job at a moment, under the values of its own labels."""

    labels: tuple[str, ...]
    found: Callable[[JobFigures], Iterable[tuple[tuple[str, ...], Any]]]


@frozen
class Family:
    """One metric: a ``counter``, whose samples end in ``_total``, or a ``gauge``.

    ``attribute`` is the figure by its name in what the source has; milliseconds are told in seconds.
    """

    name: str
    kind: str
    source: _Source
    attribute: str
    told: str

    @property
    def labels(self) -> tuple[str, ...]:
        """Those beside the labels of the job."""
        return self.source.labels

    @property
    def sample_name(self) -> str:
        """What a query asks for."""
        return f"{self.name}_total" if self.kind == "counter" else self.name

    def samples(self, figures: JobFigures) -> Iterator[tuple[tuple[str, ...], float]]:
        """The values of the labels, and the number, where there is one."""
        figure, unit = attrgetter(self.attribute), 1000 if self.attribute.endswith("_ms") else 1
        for labels, one in self.source.found(figures):
            number = figure(one)
            if number is not None:
                yield labels, number if unit == 1 else number / unit


def _operators(figures: JobFigures) -> Iterator[tuple[tuple[str, ...], Any]]:
    newest = figures.newest_checkpoint
    return (((one.uid,), one) for one in (() if newest is None else newest.operators))


def _operators_of_last_epoch(figures: JobFigures) -> Iterator[tuple[tuple[str, ...], Any]]:
    return (((uid,), one) for epoch in figures.epochs[-1:] for uid, one in epoch.operators.items())


def _stored_states(figures: JobFigures) -> Iterator[tuple[tuple[str, ...], Any]]:
    # A size is the figure itself, which is the real part of a number.
    return (((*uid, state), size) for uid, one in _operators(figures) for state, size in one.bytes_by_state.items())


def _measured_states(figures: JobFigures) -> Iterator[tuple[tuple[str, ...], Any]]:
    operators = figures.totals.state_metrics.items()
    return (((uid, state), one) for uid, metrics in operators for state, one in metrics.states.items())


_JOB: Final = _Source((), lambda figures: [((), figures)])
_LAST_EPOCH: Final = _Source((), lambda figures: [((), one) for one in figures.epochs[-1:]])
_NEWEST: Final = _Source((), lambda figures: [((), one) for one in (figures.newest_checkpoint,) if one is not None])
_OPERATOR: Final = _Source(("operator",), _operators)
_OPERATOR_OF_LAST_EPOCH: Final = _Source(("operator",), _operators_of_last_epoch)
_STORED_STATE: Final = _Source(("operator", "state"), _stored_states)
_MEASURED_STATE: Final = _Source(("operator", "state"), _measured_states)
_NODE: Final = _Source(("node",), lambda figures: [((node,), one) for node, one in figures.time.items()])

FAMILIES: Final[tuple[Family, ...]] = tuple(
    Family(f"statebackend_{name}", kind, source, attribute, told)
    for name, kind, source, attribute, told in (
        ("job_parallelism", "gauge", _JOB, "run.parallelism", "Subtasks of each operator."),
        ("epochs", "counter", _JOB, "totals.epochs", "Epochs that are over."),
        (
            "epochs_without_records",
            "counter",
            _JOB,
            "totals.epochs_without_records",
            "Epochs that ran since time had something to do.",
        ),
        ("epoch_seconds", "counter", _JOB, "totals.duration_s", "Seconds of all epochs."),
        ("last_epoch_duration_seconds", "gauge", _LAST_EPOCH, "duration_s", "Seconds of the last epoch."),
        ("checkpoint_seconds", "counter", _JOB, "totals.checkpoint_s", "Seconds of all complete checkpoints."),
        (
            "failed_checkpoints",
            "counter",
            _JOB,
            "totals.failed_checkpoints",
            "Checkpoints that did not complete, those that a newer one overtook as well.",
        ),
        ("savepoints", "counter", _JOB, "totals.savepoints", "Savepoints written."),
        ("records_in", "counter", _JOB, "totals.records_in", "Records that came to operators."),
        ("entries_written", "counter", _JOB, "totals.entries_written", "Entries written for checkpoints."),
        ("written_bytes", "counter", _JOB, "totals.bytes_written", "Bytes written for checkpoints."),
        (
            "late_records_dropped",
            "counter",
            _JOB,
            "totals.late_records_dropped",
            "Records behind the watermark that went to no side output.",
        ),
        ("local_opens", "counter", _JOB, "totals.local_opens", "Subtasks that found their state where they ran."),
        ("restores", "counter", _JOB, "totals.restores", "Subtasks that had to fetch their state."),
        ("migrated_entries", "counter", _JOB, "entries_migrated", "Entries that were brought to a new schema."),
        (
            "kept_bytes",
            "gauge",
            _LAST_EPOCH,
            "kept_bytes_of_host",
            "What the workers of a host keep for later epochs, of the host that keeps most.",
        ),
        ("checkpoint_id", "gauge", _NEWEST, "checkpoint_id", "The newest checkpoint."),
        ("checkpoint_timestamp_seconds", "gauge", _NEWEST, "timestamp_ms", "When the newest checkpoint was stored."),
        ("checkpoint_size_bytes", "gauge", _NEWEST, "size_bytes", "All state in the newest checkpoint."),
        ("operator_state_bytes", "gauge", _OPERATOR, "size_bytes", "The state of an operator."),
        ("operator_state_skew_ratio", "gauge", _OPERATOR, "skew", "The largest subtask over the mean."),
        (
            "operator_records_skew_ratio",
            "gauge",
            _OPERATOR_OF_LAST_EPOCH,
            "records_skew",
            "The busiest subtask of the last epoch over the mean.",
        ),
        ("state_bytes", "gauge", _STORED_STATE, "real", "The files of a keyed state."),
        ("state_reads", "counter", _MEASURED_STATE, "reads", "Reads of a keyed state, where metrics of state are on."),
        (
            "state_writes",
            "counter",
            _MEASURED_STATE,
            "writes",
            "Writes of a keyed state, where metrics of state are on.",
        ),
        (
            "state_entries",
            "gauge",
            _MEASURED_STATE,
            "entries",
            "Entries of a keyed state, where metrics of state are on.",
        ),
        ("watermark_seconds", "gauge", _NODE, "watermark_ms", "The watermark of a source or operator."),
        (
            "watermark_lag_seconds",
            "gauge",
            _NODE,
            "lag_ms",
            "How far a watermark is behind the clock of the last epoch.",
        ),
    )
)


class PrometheusMetrics(JobListener):
    """A listener, and a collector of ``prometheus_client``; raises `ImportError` if that is not installed.

    Args:
        registry: The registry that has the collector while any job runs; by default that of ``prometheus_client``.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        try:
            from prometheus_client import REGISTRY
        except ImportError as error:
            raise ImportError(
                "PrometheusMetrics needs prometheus_client: pip install 'statebackend[prometheus]'"
            ) from error
        self._registry = REGISTRY if registry is None else registry
        self._lock = threading.Lock()
        self._jobs: Mapping[str, ObservedJob] = {}

    def started(self, event: JobStarted) -> None:
        """The job is there from now on; raises `ValueError` if the registry has these metrics from somebody else."""
        with self._lock:
            if not self._jobs:
                self._registry.register(self)
            self._jobs = {**self._jobs, event.run.run_id: event.job}

    def terminated(self, event: JobTerminated) -> None:
        """The job is there no more."""
        with self._lock:
            if event.run.run_id not in self._jobs:
                return
            self._jobs = {run_id: job for run_id, job in self._jobs.items() if run_id != event.run.run_id}
            if not self._jobs:
                with contextlib.suppress(KeyError):
                    self._registry.unregister(self)

    def describe(self) -> Iterator[Any]:
        """The families without samples, so that a registry rejects a second collector of the same names."""
        return (_family(one) for one in FAMILIES)

    def collect(self) -> Iterator[Any]:
        """The samples of all jobs, as they are at this moment; called by the registry, on any thread."""
        figures = [job.figures() for job in self._jobs.values()]
        for family in FAMILIES:
            made = _family(family)
            for one in figures:
                job = (one.run.job_name, one.run.job_id)
                for labels, value in family.samples(one):
                    made.add_metric([_label(label) for label in (*job, *labels)], value)
            yield made


def _family(family: Family) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    kinds = {"counter": CounterMetricFamily, "gauge": GaugeMetricFamily}
    return kinds[family.kind](family.name, family.told, labels=[*JOB_LABELS, *family.labels])


def _label(name: str) -> str:
    # A name may hold halves of surrogate pairs, which no answer can be written with.
    return name[:LABEL_CHARACTERS].encode("utf-8", "backslashreplace").decode("utf-8")
