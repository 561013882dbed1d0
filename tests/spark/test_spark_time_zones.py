"""A job runs in every time zone that Spark accepts. If a zone is unsupported, the error at the start names it."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chain_runner import run_chain

from statebackend import JobDefinitionError, KeyedProcessFunction
from statebackend.streaming.data_stream import DataStream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HOUR = datetime.timedelta(hours=1)
ZONES = [
    ("UTC+5", 5 * HOUR),
    ("UTC+05:30", 5.5 * HOUR),
    ("GMT+05:45", 5.75 * HOUR),
    ("GMT-03:00", -3 * HOUR),
    ("PST", -7 * HOUR),
    ("UT", 0 * HOUR),
    ("Z", 0 * HOUR),
    ("-3:30", -3.5 * HOUR),
]


class Clock(KeyedProcessFunction[Any, Any, Any]):
    """Emits the local time in the zone of the session, as text and as a timestamp without a zone."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        assert value["nested"] == (value["at"], [value["at"]])
        clock = value["at"].replace(tzinfo=None)
        yield value["at"].isoformat(), clock, (clock,)


@pytest.fixture
def zone_of_session(spark: SparkSession) -> Iterator[None]:
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    yield
    spark.conf.set("spark.sql.session.timeZone", before)


def run(spark: SparkSession, directory: Path) -> list[Any]:
    from statebackend.spark import MemorySink

    sink = MemorySink()
    moment = "2024-07-01T12:00:00.000005Z"

    def chain(stream: DataStream) -> None:
        schema = "clock string, at timestamp, nested struct<at timestamp>"
        clocks = stream.key_by("at").process(Clock(), uid="clock", schema=schema)
        clocks.transform_dataframe(
            lambda frame: frame.selectExpr("clock", "unix_micros(at) m", "unix_micros(nested.at) n")
        ).sink_to(sink)

    batch = [{"at": moment, "nested": {"at": moment, "all": [moment]}}]
    run_chain(spark, directory, "at timestamp, nested struct<at: timestamp, all: array<timestamp>>", [batch], chain)
    return sink.rows


@pytest.mark.extended_after(2)
@pytest.mark.usefixtures("zone_of_session")
@pytest.mark.parametrize(("zone", "offset"), ZONES)
def test_a_job_runs_in_every_zone_that_spark_accepts(
    spark: SparkSession, tmp_path: Path, zone: str, offset: datetime.timedelta
) -> None:
    spark.conf.set("spark.sql.session.timeZone", zone)
    moment = datetime.datetime(2024, 7, 1, 12, 0, 0, 5, tzinfo=datetime.timezone.utc)
    micros = (moment - datetime.datetime.fromtimestamp(0, datetime.timezone.utc)) // datetime.timedelta(microseconds=1)
    clock = moment.astimezone(datetime.timezone(offset)).isoformat()
    assert [tuple(row) for row in run(spark, tmp_path)] == [(clock, micros, micros)]


@pytest.mark.usefixtures("zone_of_session")
def test_a_zone_unknown_to_python_is_named_with_its_setting_before_anything_runs(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.sql.session.timeZone", "SystemV/PST8")
    with pytest.raises(JobDefinitionError, match=r"spark\.sql\.session\.timeZone is 'SystemV/PST8'.*Set it to"):
        run(spark, tmp_path)
    assert not (tmp_path / "job").exists()
