"""The committed weather and airlines data match their descriptions."""

from __future__ import annotations

import hashlib
from itertools import pairwise

import pyarrow as pa
import pytest

from examples.data.flights_dataset import CHECKSUMS_PATH, content_sha256, read_flights
from examples.data.weather_dataset import (
    CONTENT_SHA256,
    ROW_COUNT,
    SCHEMA,
    SORT_ORDER,
    WEATHER_DIRECTORY,
    read_airlines,
    read_weather,
)


@pytest.fixture(scope="module")
def weather() -> pa.Table:
    return read_weather()


def test_all_hours_are_there_with_all_columns_in_a_total_order(weather: pa.Table) -> None:
    assert weather.num_rows == ROW_COUNT
    assert weather.schema.names == SCHEMA.names
    assert weather.schema.types == SCHEMA.types
    keys = list(zip(*(weather[name].to_pylist() for name in SORT_ORDER), strict=True))
    assert all(before < after for before, after in pairwise(keys))


def test_the_content_has_the_recorded_checksum(weather: pa.Table) -> None:
    assert content_sha256(weather) == CONTENT_SHA256


def test_the_files_have_the_listed_checksums() -> None:
    listed = dict(
        reversed(line.split("  ")) for line in (WEATHER_DIRECTORY / CHECKSUMS_PATH.name).read_text("ascii").splitlines()
    )
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in WEATHER_DIRECTORY.glob("*.parquet")}
    assert found == listed


def test_every_carrier_of_the_flights_has_a_name() -> None:
    assert set(read_flights()["carrier"].unique().to_pylist()) == set(read_airlines())
