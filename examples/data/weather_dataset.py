"""The weather data set: the hourly weather at the three airports of New York City in 2013, and the airlines.

`weather/weather.parquet` has `ROW_COUNT` rows, one for each airport and hour, in order of time, then of airport; these
identify a row. Some hours and the last day of the year are missing, as published. `weather/airlines.parquet` has the
name of the airline for each carrier code of the flights.

`content_sha256` of the weather is `CONTENT_SHA256`. `weather/SHA256SUMS` covers the committed bytes.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

ROW_COUNT = 26_115
CONTENT_SHA256 = "7592ae72dbe25431a5aceab1abec8e8b3e0fb5d239c7c35dfc2f5ee031c6d16a"

WEATHER_DIRECTORY = Path(__file__).resolve().parent / "weather"
WEATHER_PATH = WEATHER_DIRECTORY / "weather.parquet"
AIRLINES_PATH = WEATHER_DIRECTORY / "airlines.parquet"

#: Temperatures are degrees Fahrenheit, `humid` is per cent, wind is degrees and miles per hour, `precip` inches,
#: `pressure` millibars, `visib` miles.  `year` to `hour` are local time, `time_hour` is the instant.
SCHEMA = pa.schema(
    [
        pa.field("origin", pa.string(), nullable=False),
        pa.field("year", pa.int32(), nullable=False),
        pa.field("month", pa.int32(), nullable=False),
        pa.field("day", pa.int32(), nullable=False),
        pa.field("hour", pa.int32(), nullable=False),
        pa.field("temp", pa.float64()),
        pa.field("dewp", pa.float64()),
        pa.field("humid", pa.float64()),
        pa.field("wind_dir", pa.int32()),
        pa.field("wind_speed", pa.float64()),
        pa.field("wind_gust", pa.float64()),
        pa.field("precip", pa.float64()),
        pa.field("pressure", pa.float64()),
        pa.field("visib", pa.float64()),
        pa.field("time_hour", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

AIRLINES_SCHEMA = pa.schema(
    [pa.field("carrier", pa.string(), nullable=False), pa.field("name", pa.string(), nullable=False)]
)

SORT_ORDER = ("time_hour", "origin")


def read_weather() -> pa.Table:
    """Return the weather in order of time."""
    return pyarrow.parquet.read_table(WEATHER_PATH)


def read_airlines() -> dict[str, str]:
    """Return the name of each airline by its carrier code."""
    table = pyarrow.parquet.read_table(AIRLINES_PATH)
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))
