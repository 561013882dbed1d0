"""The channel "" is not a missing channel: each has a watermark of its own, also after a restore."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import CountPerKey

from statebackend import WatermarkStrategy
from statebackend.streaming.watermark_strategy import channel_name
from statebackend.testing.jobs import HarnessJob, JobTestHarness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = "channel string, at bigint"
NAMES: list[tuple[Any, str]] = [
    (None, ""),
    ("", '""'),
    ('"', '"""'),
    ('""', '""""'),
    ("p", "p"),
    ('"p"', '"p"'),
    (7, "7"),
    (True, "true"),
]


@pytest.mark.parametrize(("value", "name"), NAMES)
def test_a_channel_has_its_own_name(value: Any, name: str) -> None:
    assert channel_name(value) == name


@pytest.mark.spark
def test_a_channel_has_the_same_name_on_spark(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from statebackend.spark.plans.event_time_column import channel_column

    texts = [(value, name) for value, name in NAMES if value is None or isinstance(value, str)]
    frame = spark.createDataFrame(texts, "value string, name string")
    assert frame.where(channel_column(F.col("value")) != F.col("name")).collect() == []


def build(job: HarnessJob) -> None:
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at").with_channel("channel")
    stream = job.source("source", SCHEMA).assign_timestamps_and_watermarks(strategy)
    counted = stream.map(lambda row: (row.at,), schema="at bigint").key_by("at")
    job.output("counts", counted.process(CountPerKey(), uid="counts", schema="key string, count bigint"))


def time_of(harness: JobTestHarness, now_ms: int) -> int:
    """The watermark that the source sends when processing time advances."""
    harness.advance_processing_time(now_ms)
    [watermark_ms] = set(harness.watermarks().values())
    return watermark_ms


def test_missing_and_empty_channel_names_have_separate_watermarks(tmp_path: Path) -> None:
    with JobTestHarness(build) as harness:
        harness.source("source").send_all([(None, 10), ("", 20)])
        assert time_of(harness, 1000) == 9
        harness.source("source").send((None, 40))
        assert time_of(harness, 2000) == 19
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(build, from_snapshot=snapshot) as harness:
        harness.source("source").send((None, 50))
        assert time_of(harness, 3000) == 19
        harness.source("source").send(("", 60))
        assert time_of(harness, 4000) == 49
