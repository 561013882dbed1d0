"""The report of a job that runs, has ended, has failed or has done nothing, with any names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from observed_job import HOSTILE, TrackingEvent, acknowledged, migrated_job, recorder_by_hand, visits_environment
from page_reader import PageReader

from statebackend import StateMetricsConfig
from statebackend.savepoint.sizes import format_bytes, format_duration, format_short_bytes
from statebackend.streaming.errors import UserFunctionError
from statebackend.streaming.metrics import CheckpointCost
from statebackend.streaming.observing.job_page import EpochHistory, job_fragment, job_page

SHOWN_HOSTILE = HOSTILE.replace("\n", "\\n")


def test_the_report_shows_the_metrics(tmp_path: Path) -> None:
    job = migrated_job(tmp_path / "job", metrics=StateMetricsConfig())
    job.savepoint(tmp_path / "savepoint")
    job.report(tmp_path / "report.html")
    read = PageReader((tmp_path / "report.html").read_text("utf-8"))
    metrics = job.metrics()
    newest = metrics.newest_checkpoint
    assert newest is not None
    [operator] = newest.operators
    for shown in (
        "visits",
        "ended",
        format_short_bytes(newest.size_bytes),
        format_bytes(newest.size_bytes),
        format_bytes(operator.size_bytes),
        format_bytes(operator.bytes_by_state["last visit"]),
        *map(format_bytes, operator.bytes_by_subtask),
        *(format_duration(one.duration_s) for one in metrics.epochs),
        *(format_bytes(one.bytes_written) for one in metrics.epochs),
        f"{metrics.entries_migrated} entries migrated",
        "compatible after migration",
        format_bytes(metrics.savepoints[0].size_bytes),
        f"State in checkpoint {newest.checkpoint_id}",
    ):
        assert shown in read.texts, shown
    assert any("field-added" in one for one in read.texts)


def test_a_job_without_epochs_and_one_that_failed_at_once_have_a_report(tmp_path: Path) -> None:
    read = PageReader(job_page(recorder_by_hand().metrics()))
    assert "No epoch is complete yet." in read.texts
    heard = TrackingEvent()
    environment = visits_environment(tmp_path, fails_at=0)
    environment.add_listener(heard)
    with pytest.raises(UserFunctionError):
        environment.execute(HOSTILE)
    failed = heard.events[0].job
    metrics = failed.metrics()
    assert (metrics.epochs, metrics.newest_checkpoint) == ((), None)
    failed.report(tmp_path / "report.html")
    read = PageReader((tmp_path / "report.html").read_text())
    assert read.texts.count(SHOWN_HOSTILE) == 1
    assert "failed" in read.texts
    assert metrics.failure in read.texts


def hostile_recorder(epochs: int) -> Any:
    recorder = recorder_by_hand()
    for epoch_id in range(epochs):
        several = [acknowledged(epoch_id, index, uid=HOSTILE, records=epoch_id) for index in range(3)]
        seconds = (math.nan, math.inf, -1.0, 0.1)[epoch_id % 4]
        recorder.epoch_completed(epoch_id, several, CheckpointCost(duration_s=seconds, checkpoint_s=seconds))
    recorder.checkpoint_failed(7, HOSTILE)
    return recorder


def test_hostile_names_and_numbers_are_shown_without_effect() -> None:
    recorder = hostile_recorder(6)
    recorder.terminated(ValueError(HOSTILE))
    page = job_page(recorder.metrics())
    read = PageReader(page)
    assert any(SHOWN_HOSTILE in one for one in read.texts)
    assert "nan" not in page
    assert ">inf" not in page
    PageReader(job_fragment(recorder.metrics()))


def test_the_report_of_thousands_of_epochs_has_bounded_size() -> None:
    small, large = (len(job_page(hostile_recorder(epochs).metrics())) for epochs in (1000, 2500))
    assert small < 300_000
    assert abs(large - small) < 5_000


def test_a_notebook_shows_a_running_job(tmp_path: Path) -> None:
    job = migrated_job(tmp_path)
    read = PageReader(job._repr_html_())
    assert "visits (ended)" in read.texts
    assert read.elements["svg"] == 3


def test_epochs_are_displayed_in_a_notebook_and_are_a_sequence() -> None:
    epochs = EpochHistory(hostile_recorder(5).epochs)
    assert len(epochs) == 5
    read = PageReader(epochs._repr_html_())
    assert "5 epochs, the last is 4" in read.texts
    assert read.elements["svg"] == 2
    assert "0 epochs, no epoch is complete yet" in PageReader(EpochHistory()._repr_html_()).texts
