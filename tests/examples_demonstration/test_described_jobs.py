"""State of the demonstration jobs on Spark has byte for byte the lockfile that is computed without Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from examples.flights import described as described_flights
from examples.flights.job import flights_job
from examples.weather import described as described_weather
from examples.weather.spark_job import weather_job
from statebackend.savepoint.lockfile import lock_to_bytes
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribesJob, Outcome


def lock_bytes(job: DescribesJob) -> bytes:
    return lock_to_bytes(job.described().lock())


@pytest.mark.spark
@pytest.mark.parametrize(
    ("version", "described"),
    [
        (1, described_flights.version_1),
        (2, described_flights.version_2),
        (3, described_flights.version_3),
    ],
)
def test_the_flights_on_spark_have_the_lock_of_their_description(
    spark: SparkSession, tmp_path: Path, version: int, described: Callable[[], Any]
) -> None:
    (tmp_path / "input").mkdir()
    job = flights_job(
        spark,
        version,
        input_dir=tmp_path / "input",
        job_dir=tmp_path / "job",
        rows_dir=tmp_path / "rows",
        backend="rocksdb",
        parallelism=2,
    )
    assert lock_bytes(job) == lock_bytes(described())


@pytest.mark.extended_after(1)
@pytest.mark.spark
@pytest.mark.parametrize(("version", "described"), [(1, described_weather.version_1), (2, described_weather.version_2)])
def test_the_weather_on_spark_has_the_lock_of_its_description(
    spark: SparkSession, tmp_path: Path, version: int, described: Callable[[], Any]
) -> None:
    for name in ("flights", "weather"):
        (tmp_path / name).mkdir()
    job = weather_job(
        spark,
        version,
        incoming=tmp_path,
        job_dir=tmp_path / "job",
        rows=tmp_path / "rows",
        airlines_url="http://nobody.invalid",
        backend="rocksdb",
    )
    assert lock_bytes(job) == lock_bytes(described())


@pytest.mark.parametrize(
    ("older", "newer", "outcome"),
    [
        (described_flights.version_1, described_flights.version_2, Outcome.LOSES),
        (described_flights.version_2, described_flights.version_3, Outcome.REJECTED),
        (described_weather.version_1, described_weather.version_2, Outcome.RESTORES),
    ],
)
def test_the_locks_report_the_same_changes_as_the_demonstration(
    older: Callable[[], Any], newer: Callable[[], Any], outcome: Outcome
) -> None:
    assert CompatibilityChecker(newer().described(), older().described().lock()).compare().outcome is outcome
