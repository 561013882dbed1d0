"""Prometheus scrapes the metrics of the jobs of a process, while they run, over HTTP."""

from __future__ import annotations

import logging
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from observed_job import HOSTILE, RUN, acknowledged, recorder_by_hand, visits_environment

pytest.importorskip("prometheus_client")

import attrs
from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from statebackend import StateMetricsConfig
from statebackend.streaming.metrics import METRICS, CheckpointCost
from statebackend.streaming.observing.job_events import EpochCompleted, JobListener, JobListeners
from statebackend.streaming.observing.job_recorder import JobRecorder, LiveMetrics
from statebackend.streaming.observing.prometheus_metrics import PrometheusMetrics


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


SHOWN_HOSTILE = HOSTILE.replace("\n", "\\n")


def samples(text: str) -> dict[tuple[str, ...], float]:
    """By name and label values, without the id of the job."""
    found = {}
    for family in text_string_to_metric_families(text):
        for one in family.samples:
            labels = [value for name, value in one.labels.items() if name != "job_id"]
            found[(one.name, *labels)] = one.value
    return found


def scraped(registry: CollectorRegistry) -> dict[tuple[str, ...], float]:
    return samples(generate_latest(registry).decode())


def test_a_running_job_is_scraped_over_http_with_its_metrics(tmp_path: Path, registry: CollectorRegistry) -> None:
    answers: list[tuple[Any, dict[tuple[str, ...], float]]] = []
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)

    class Scraping(JobListener):
        def started(self, event: Any) -> None:
            self.job = event.job

        def epoch_completed(self, event: EpochCompleted) -> None:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics") as answer:
                answers.append((self.job.metrics(), samples(answer.read().decode())))

    try:
        environment = visits_environment(tmp_path, metrics=StateMetricsConfig())
        environment.add_listener(PrometheusMetrics(registry))
        environment.add_listener(Scraping())
        environment.execute("visits")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    assert len(answers) == 2
    for metrics, reported in answers:
        newest, totals = metrics.newest_checkpoint, metrics.totals
        [operator] = newest.operators
        assert reported["statebackend_job_epochs_total", "visits"] == totals.epochs
        assert reported["statebackend_job_records_in_total", "visits"] == totals.records_in
        assert reported["statebackend_job_bytes_written_total", "visits"] == totals.bytes_written
        assert reported["statebackend_job_duration_seconds_total", "visits"] == totals.duration_s
        assert reported["statebackend_checkpoint_checkpoint_id", "visits"] == newest.checkpoint_id
        assert reported["statebackend_checkpoint_size_bytes", "visits"] == newest.size_bytes
        assert reported["statebackend_operator_size_bytes", "visits", "count"] == operator.size_bytes
        assert reported["statebackend_operator_size_skew_ratio", "visits", "count"] == operator.skew
        measured = totals.state_metrics["count"].states["last visit"]
        assert reported["statebackend_state_size_bytes", "visits", "count", "last visit"] == measured.size_bytes
        assert reported["statebackend_state_writes_total", "visits", "count", "last visit"] == measured.writes
    assert scraped(registry) == {}


@pytest.fixture
def two_jobs(registry: CollectorRegistry) -> Iterator[tuple[PrometheusMetrics, list[JobRecorder]]]:
    listener = PrometheusMetrics(registry)
    recorders = [
        JobRecorder(
            attrs.evolve(RUN, job_name=name, run_id=name),
            LiveMetrics,
            JobListeners((listener,)),
            keeps_subtasks_open=True,
        )
        for name in ("one", HOSTILE)
    ]
    for count, recorder in enumerate(recorders, 1):
        recorder.started()
        for epoch_id in range(count):
            several = [acknowledged(epoch_id, index, uid=HOSTILE) for index in range(2)]
            recorder.epoch_completed(epoch_id, several, CheckpointCost(duration_s=1.0))
    return listener, recorders


def test_two_jobs_of_a_process_are_distinct_and_leave_when_they_end(
    two_jobs: tuple[PrometheusMetrics, list[JobRecorder]], registry: CollectorRegistry
) -> None:
    _, [one, other] = two_jobs
    reported = scraped(registry)
    assert reported["statebackend_job_epochs_total", "one"] == 1
    assert reported["statebackend_job_epochs_total", SHOWN_HOSTILE] == 2
    assert reported["statebackend_operator_records_skew_ratio", SHOWN_HOSTILE, SHOWN_HOSTILE] == 1.0
    one.terminated(None)
    reported = scraped(registry)
    assert ("statebackend_job_epochs_total", "one") not in reported
    assert reported["statebackend_job_epochs_total", SHOWN_HOSTILE] == 2
    other.terminated(ValueError("failed"))
    assert scraped(registry) == {}
    assert list(registry.collect()) == []


def test_a_second_collector_of_the_same_names_is_rejected_without_effect(
    two_jobs: tuple[PrometheusMetrics, list[JobRecorder]],
    registry: CollectorRegistry,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = recorder_by_hand(PrometheusMetrics(registry))
    with caplog.at_level(logging.WARNING):
        recorder.started()
        recorder.terminated(None)
    assert "Duplicated timeseries" in caplog.text
    assert scraped(registry)["statebackend_job_epochs_total", "one"] == 1


def test_names_follow_the_conventions_and_labels_come_from_the_program() -> None:
    assert len({one.prometheus_name for one in METRICS}) == len({one.full_name for one in METRICS}) == len(METRICS)
    for one in METRICS:
        assert re.fullmatch(r"statebackend(_[a-z]+)+", one.prometheus_name)
        assert not one.prometheus_name.endswith("_total")
        assert set(one.scope.labels) <= {"operator", "output", "sink", "state", "node"}
        assert one.description.endswith(".")
        assert [one.unit] == (re.findall("_(ms|s|bytes)$", one.name) or [one.unit])


def test_an_unencodable_name_is_escaped_and_a_long_one_is_shortened(registry: CollectorRegistry) -> None:
    run = attrs.evolve(RUN, job_name="\ud800" + "x" * 500)
    recorder = JobRecorder(run, LiveMetrics, JobListeners((PrometheusMetrics(registry),)), keeps_subtasks_open=True)
    recorder.started()
    [(_, name)] = [labels for labels in scraped(registry) if labels[0] == "statebackend_job_epochs_total"]
    assert name.startswith("\\ud800xxx")
    assert len(name) < 220


def test_control_and_bidirectional_characters_of_names_are_escaped_in_labels(registry: CollectorRegistry) -> None:
    name = "a\x1b[2J\u202eb\r\n\x9b\u2028"
    escaped = r"a\x1b[2J\u202eb\r\n\x9b\u2028"
    run = attrs.evolve(RUN, job_name=name)
    recorder = JobRecorder(run, LiveMetrics, JobListeners((PrometheusMetrics(registry),)), keeps_subtasks_open=True)
    recorder.started()
    recorder.epoch_completed(0, [acknowledged(0, 0, uid=name)], CheckpointCost(duration_s=1.0))
    text = generate_latest(registry).decode()
    assert all(line.isprintable() for line in text.split("\n"))
    reported = samples(text)
    assert reported["statebackend_job_epochs_total", escaped] == 1
    assert ("statebackend_operator_records_skew_ratio", escaped, escaped) in reported


def test_without_the_package_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "prometheus_client", None)
    with pytest.raises(ImportError, match=r"statebackend\[prometheus\]"):
        PrometheusMetrics()
