"""The flights data set: its columns, its parts, and the checksum of its content.

All flights that left New York City (EWR, JFK, LGA) in 2013 are in `flights/`, in `PART_COUNT` Parquet files.
Invariants, which `tests/examples_data` checks:

* The parts have `ROW_COUNT` rows together, and their sizes differ by at most one row.
* In the order of the file names, rows are ordered by scheduled departure (`time_hour`, then `minute`), and flights of
  the same minute by `origin`, `carrier` and `flight`. These columns identify a flight, so the order is total, and
  each rebuild gives the same rows in the same parts.
* `content_sha256` of the whole table is `CONTENT_SHA256`. It covers the values, not the Parquet bytes, so another
  writer version does not change it. `flights/SHA256SUMS` covers the committed bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

ROW_COUNT = 336_776
PART_COUNT = 32
CONTENT_SHA256 = "788004bb1aa88abf25642350ca4d9674dff230756e30162f37d0d8938e296439"

PARTS_DIRECTORY = Path(__file__).resolve().parent / "flights"
CHECKSUMS_PATH = PARTS_DIRECTORY / "SHA256SUMS"

#: Local times are `hhmm` integers as published (517 is 05:17), delays and `air_time` are minutes, `distance`
#: is miles.  A cancelled flight has no `dep_time`, and an unknown aircraft no `tailnum`.
SCHEMA = pa.schema(
    [
        pa.field("year", pa.int32(), nullable=False),
        pa.field("month", pa.int32(), nullable=False),
        pa.field("day", pa.int32(), nullable=False),
        pa.field("dep_time", pa.int32()),
        pa.field("sched_dep_time", pa.int32(), nullable=False),
        pa.field("dep_delay", pa.int32()),
        pa.field("arr_time", pa.int32()),
        pa.field("sched_arr_time", pa.int32(), nullable=False),
        pa.field("arr_delay", pa.int32()),
        pa.field("carrier", pa.string(), nullable=False),
        pa.field("flight", pa.int32(), nullable=False),
        pa.field("tailnum", pa.string()),
        pa.field("origin", pa.string(), nullable=False),
        pa.field("dest", pa.string(), nullable=False),
        pa.field("air_time", pa.int32()),
        pa.field("distance", pa.int32(), nullable=False),
        pa.field("hour", pa.int32(), nullable=False),
        pa.field("minute", pa.int32(), nullable=False),
        pa.field("time_hour", pa.timestamp("us", tz="UTC"), nullable=False),
    ]
)

#: How the data sets are written: small, and readable by every version of every reader.
PARQUET_OPTIONS: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 19,
    "use_dictionary": True,
    "data_page_version": "1.0",
    "store_schema": False,
}

SORT_ORDER = ("time_hour", "minute", "origin", "carrier", "flight")


def part_name(index: int) -> str:
    """Return the file name of part `index`; names sort by time. Raises `IndexError` outside `range(PART_COUNT)`."""
    if not 0 <= index < PART_COUNT:
        raise IndexError(f"part {index} of the flights data: there are parts 0 to {PART_COUNT - 1}")
    return f"flights-{index:02d}.parquet"


def part_path(index: int) -> Path:
    """Return the path of part `index` in this repository. Raises `IndexError` outside `range(PART_COUNT)`."""
    return PARTS_DIRECTORY / part_name(index)


def part_row_ranges() -> Iterator[tuple[int, int]]:
    """Return the first row of each part and the row after its last: `ROW_COUNT` split as evenly as possible."""
    size, longer_parts = divmod(ROW_COUNT, PART_COUNT)
    start = 0
    for index in range(PART_COUNT):
        end = start + size + (1 if index < longer_parts else 0)
        yield start, end
        start = end


def read_flights() -> pa.Table:
    """Return the whole data set in time order, about 35 MB in memory."""
    return pa.concat_tables(pyarrow.parquet.read_table(part_path(index)) for index in range(PART_COUNT))


def content_sha256(table: pa.Table) -> str:
    """Return the SHA-256 of the rows as comma-separated text: no header, nulls empty, times in epoch microseconds."""
    index = table.schema.get_field_index("time_hour")
    table = table.set_column(index, "time_hour", table["time_hour"].cast(pa.int64()))
    text = pa.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    pyarrow.csv.write_csv(table, text, options)
    return hashlib.sha256(text.getvalue()).hexdigest()
