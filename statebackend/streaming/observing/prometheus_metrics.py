"""Metrics of the jobs of this process for Prometheus, computed at each scrape and stored nowhere.

    listener = PrometheusMetrics()                   # in the default registry of prometheus_client, or in another one
    environment.add_listener(listener)               # of any number of environments
    prometheus_client.start_http_server(9464, addr="127.0.0.1")

One listener serves any number of jobs, from the start of each to its end. The metrics are those of
`statebackend.streaming.metrics.METRICS`, with the name and id of the job as further labels. No label contains a key or
a value. Needs ``prometheus_client``, which the extra ``prometheus`` installs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from snapshots.errors import printable
from statebackend.streaming.metrics import METRICS, Metric, MetricType, values_of
from statebackend.streaming.observing.job_events import JobListener, JobStarted, JobTerminated, ObservedJob

if TYPE_CHECKING:
    from prometheus_client.registry import CollectorRegistry

__all__ = ["PrometheusMetrics"]

LABEL_CHARACTERS: Final = 200
"""Longer names are cut: a label is stored with every sample."""

JOB_LABELS: Final = ("job_name", "job_id")


class PrometheusMetrics(JobListener):
    """A listener, and a collector of ``prometheus_client``; raises `ImportError` if that is not installed.

    Args:
        registry: The registry that contains the collector while any job runs. The default is that of
            ``prometheus_client``.
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
        """Add the job. Raises `ValueError` if another collector in the registry has these metrics."""
        with self._lock:
            if not self._jobs:
                self._registry.register(self)
            self._jobs = {**self._jobs, event.run.run_id: event.job}

    def terminated(self, event: JobTerminated) -> None:
        """Remove the job."""
        with self._lock:
            if event.run.run_id not in self._jobs:
                return
            self._jobs = {run_id: job for run_id, job in self._jobs.items() if run_id != event.run.run_id}
            if not self._jobs:
                with contextlib.suppress(KeyError):
                    self._registry.unregister(self)

    def describe(self) -> Iterator[Any]:
        """The families without samples, so that a registry rejects a second collector of the same names."""
        return (_family(metric) for metric in METRICS)

    def collect(self) -> Iterator[Any]:
        """The samples of all jobs at this moment; the registry calls it on any thread."""
        jobs = [job.metrics() for job in self._jobs.values()]
        for metric in METRICS:
            family = _family(metric)
            for job in jobs:
                for one in values_of(metric, job):
                    labels = (job.run.job_name, job.run.job_id, *one.labels.values())
                    family.add_metric([_label(label) for label in labels], one.base_value)
            yield family


def _family(metric: Metric) -> Any:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    family = {MetricType.COUNTER: CounterMetricFamily, MetricType.GAUGE: GaugeMetricFamily}[metric.type]
    return family(metric.prometheus_name, metric.description, labels=[*JOB_LABELS, *metric.scope.labels])


def _label(name: str) -> str:
    # Control and bidirectional characters would reach terminals and dashboards, and a lone surrogate is no UTF-8.
    return printable(name[:LABEL_CHARACTERS])[:LABEL_CHARACTERS]
