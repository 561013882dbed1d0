"""Which columns may be keys; a key is equal in every environment and time zone."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from chain_runner import COUNTED, CountPerKey, run_chain

from statebackend import JobDefinitionError
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.key_types import canonical_key, key_serializer_for
from statebackend.streaming.rows.row_reader import key_values
from statebackend.streaming.rows.row_writer import RowMismatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from statebackend.streaming.data_stream import DataStream

UTC = datetime.timezone.utc
TOKYO = datetime.timezone(datetime.timedelta(hours=9))
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("column_type", "advice"),
    [
        ("double", "several binary forms"),
        ("float", "several binary forms"),
        ("decimal(10,2)", "cast it to string, or scaled up to bigint"),
        ("struct<a:int>", r"key by its fields instead, as in key_by\('name.field'"),
        ("timestamp_ntz", "cast it to timestamp, or to string"),
        ("array<int>", "to_json"),
        ("map<string,int>", "to_json of its sorted entries"),
        ("string collate UNICODE_CI", "may differ in bytes: cast it to string"),
        ("interval day", "cast it"),
    ],
)
def test_a_type_that_cannot_be_a_key_is_rejected_with_advice(column_type: str, advice: str) -> None:
    with pytest.raises(JobDefinitionError, match=rf"operator 'op': a column of type .* cannot be a key; .*{advice}"):
        key_serializer_for(["string", column_type], "op")


def counts(
    keys: list[Any], schema: str | None = None, job_dir: Path | None = None, backend: str = "heap"
) -> list[tuple[str, int]]:
    environment = LocalStreamEnvironment(backend=backend, parallelism=2, epoch_size=1, job_dir=job_dir)
    rows: list[tuple[str, int]] = []
    stream = environment.from_elements([{"key": key} for key in keys], schema=schema)
    stream.key_by("key").process(CountPerKey(), uid="count", schema=COUNTED).sink_to(rows)
    environment.execute()
    return rows


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
def test_one_instant_is_one_key_in_any_time_zone_and_epoch(tmp_path: Path, backend: str) -> None:
    keys = [NOON, NOON.astimezone(TOKYO), NOON + datetime.timedelta(microseconds=1)]
    rows = counts(keys, job_dir=tmp_path / "job", backend=backend)
    assert [count for _, count in rows] == [1, 2, 1]
    assert {key for key, _ in rows[:2]} == {"2024-02-29 12:00:00.000005+00:00"}
    again = counts([NOON.astimezone(TOKYO)], job_dir=tmp_path / "job", backend=backend)
    assert [count for _, count in again] == [3]


def test_a_naive_timestamp_is_in_process_time_as_in_pyspark() -> None:
    naive = NOON.astimezone().replace(tzinfo=None)
    assert [count for _, count in counts([NOON, naive])] == [1, 2]


def test_a_date_is_a_key_and_a_text_is_not_a_date() -> None:
    assert counts([NOON.date(), NOON.date()]) == [("2024-02-29", 1), ("2024-02-29", 2)]
    with pytest.raises(RowMismatchError, match=r"column 'key' \(date\) cannot hold '2024-02-29'"):
        counts(["2024-02-29"], schema="key date")


def test_a_declared_type_that_cannot_be_a_key_is_rejected_locally_too() -> None:
    with pytest.raises(JobDefinitionError, match=r"a column of type decimal\(10,2\) cannot be a key"):
        counts([1], schema="other struct<a: int, b: int>, key decimal(10,2), last int")


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo"])
def test_a_key_on_spark_has_the_bytes_of_a_key_in_the_local_runtime(zone: str) -> None:
    (value, null) = key_values(pa.array([NOON, None], pa.timestamp("us", zone)))
    assert (value, value.tzinfo, null) == (NOON, UTC, None)
    in_process = canonical_key("timestamp")
    assert in_process is not None
    serializer = key_serializer_for(["timestamp"], "op")
    assert serializer.to_bytes(value) == serializer.to_bytes(in_process(NOON.astimezone(TOKYO)))


@pytest.mark.spark
def test_on_spark_a_timestamp_is_the_same_key_after_a_change_of_the_session_zone(
    spark: SparkSession, tmp_path: Path
) -> None:
    from statebackend.spark.frame_sinks import MemorySink
    from statebackend.spark.session import configured

    day = {"day": "2024-02-29"}
    batches = [[{"at": "2024-02-29T12:00:00.000005Z", **day}, {"at": "2024-02-29T21:00:00.000005+09:00", **day}]]
    sink = MemorySink()

    def chain(stream: DataStream) -> None:
        stream.key_by("at", "day").process(CountPerKey(), uid="count", schema=COUNTED).sink_to(sink)

    run_chain(spark, tmp_path, "at timestamp, day date", batches, chain)
    with configured(spark, {"spark.sql.session.timeZone": "America/New_York"}):
        run_chain(spark, tmp_path, "at timestamp, day date", batches + batches, chain)
    key = str((NOON, NOON.date()))
    assert sorted(tuple(row) for row in sink.rows) == [(key, count) for count in (1, 2, 3, 4)]
