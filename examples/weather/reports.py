"""The year in the order of its reports: when each flight and each hour of weather arrives, and in which file.

A flight is reported when it leaves, a cancelled one at its scheduled departure. So reports are out of order by the
delays, which are up to a day. In addition, one report in fifty, chosen by a seed, is delayed by up to ten days. The
weather of an hour is reported at its beginning.

The year is cut into periods of equal length. The reports of a period are a file of flights and a file of weather. A
stream reads `FILES_PER_EPOCH` of each in an epoch, so the year has `EPOCHS` epochs.
"""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from examples.data.flights_dataset import read_flights
from examples.data.staging import place_file
from examples.data.weather_dataset import read_weather

EPOCHS: Final = 8
FILES_PER_EPOCH: Final = 4

FLIGHT_SCHEMA: Final = """
    origin string, departure timestamp, carrier string, flight int, tailnum string, dest string, dep_delay int
"""
FLIGHT_ORDER: Final = ["departure", "origin", "carrier", "flight"]
"""What identifies a flight."""

WEATHER_SCHEMA: Final = """
    origin string, time_hour timestamp, temp double, wind_speed double, precip double, visib double
"""

_NEW_YEAR = datetime(2013, 1, 1, 5, tzinfo=timezone.utc)
_FILES = EPOCHS * FILES_PER_EPOCH
_STRETCH = timedelta(days=365) / _FILES
_SEED = 2013
_HELD_UP_SHARE = 0.02
_LONGEST_HOLD_UP_S = 10 * 86_400


def stage_reports(directory: Path, first: int, last: int) -> None:
    """Place the files of the epochs ``first`` up to, not including, ``last`` into a directory.

    Flights are in its directory ``flights``, the weather in ``weather``.
    """
    for name, reports in (("flights", reported_flights()), ("weather", reported_weather())):
        numbers = _file_numbers(reports["reported_at"])
        for number in range(first * FILES_PER_EPOCH, last * FILES_PER_EPOCH):
            rows = reports.filter(pc.equal(numbers, number)).drop_columns(["reported_at"])
            place_file(directory / name / file_name(name, number), number, partial(pyarrow.parquet.write_table, rows))


def file_name(what: str, number: int) -> str:
    """Return the name of a file; names sort in the order of arrival."""
    return f"{what}-{number:02d}.parquet"


def reported_flights() -> pa.Table:
    """Return all flights in the columns of `FLIGHT_SCHEMA`, with the time of their report, in that order."""
    flights = read_flights()
    departure = pc.add(flights["time_hour"], _durations(flights["minute"], 60))
    left = pc.add(departure, _durations(pc.fill_null(flights["dep_delay"], 0), 60))
    seeded = random.Random(_SEED)
    hold_ups_s = [
        seeded.randrange(_LONGEST_HOLD_UP_S) if seeded.random() < _HELD_UP_SHARE else 0 for _ in range(len(flights))
    ]
    reported_at = pc.add(left, _durations(pa.array(hold_ups_s), 1))
    columns = ["origin", "carrier", "flight", "tailnum", "dest", "dep_delay"]
    table = flights.select(columns).append_column("departure", departure).append_column("reported_at", reported_at)
    return table.sort_by([(name, "ascending") for name in ("reported_at", *FLIGHT_ORDER)])


def reported_weather() -> pa.Table:
    """Return the weather in the columns of `WEATHER_SCHEMA`, with the time of its report, in that order."""
    weather = read_weather().select(["origin", "time_hour", "temp", "wind_speed", "precip", "visib"])
    return weather.append_column("reported_at", weather["time_hour"])


def _durations(numbers: pa.Array | pa.ChunkedArray, unit_s: int) -> pa.Array | pa.ChunkedArray:
    return pc.multiply(numbers.cast(pa.int64()), unit_s * 1_000_000).cast(pa.duration("us"))


def _file_numbers(reported_at: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the file of each report; reports after the end of the year are in the last one."""
    since_us = pc.subtract(reported_at, pa.scalar(_NEW_YEAR)).cast(pa.int64())
    numbers = pc.divide(since_us, _STRETCH // timedelta(microseconds=1))
    return pc.max_element_wise(pc.min_element_wise(numbers, _FILES - 1), 0)
