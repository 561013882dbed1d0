"""The reports contain every flight of the year once, in order of arrival. Some are late."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet
import pytest

from examples.data.flights_dataset import ROW_COUNT
from examples.weather.reports import EPOCHS, FILES_PER_EPOCH, FLIGHT_ORDER, reported_flights, stage_reports


@pytest.fixture(scope="module")
def flights() -> pa.Table:
    return reported_flights()


def test_every_flight_is_reported_once_and_the_same_way_each_time(flights: pa.Table) -> None:
    assert len(flights) == len(flights.group_by(FLIGHT_ORDER).aggregate([])) == ROW_COUNT
    assert flights.equals(reported_flights())


def test_one_report_in_fifty_is_delayed(flights: pa.Table) -> None:
    delays_us = pc.multiply(pc.fill_null(flights["dep_delay"], 0).cast(pa.int64()), 60_000_000)
    left_us = pc.add(flights["departure"].cast(pa.int64()), delays_us)
    held_up = pc.greater(flights["reported_at"].cast(pa.int64()), left_us)
    assert 0.019 < pc.sum(held_up).as_py() / ROW_COUNT < 0.021


def test_each_file_contains_the_arrivals_of_its_period_in_order(tmp_path: Path, flights: pa.Table) -> None:
    stage_reports(tmp_path, 0, EPOCHS)
    files = sorted((tmp_path / "flights").iterdir())
    assert len(files) == len(list((tmp_path / "weather").iterdir())) == EPOCHS * FILES_PER_EPOCH
    times = [path.stat().st_mtime for path in files]
    assert times == sorted(set(times))
    staged = pa.concat_tables(map(pyarrow.parquet.read_table, files))
    assert staged.equals(flights.drop_columns(["reported_at"]))
