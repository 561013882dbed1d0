"""What the flights data set is: its columns, its parts, and the checksum of its content.

All flights that left New York City (EWR, JFK, LGA) in 2013 lie in `flights/` as `PART_COUNT` Parquet files.
Invariants, which `tests/examples_data` checks:

* The parts hold `ROW_COUNT` rows together, and no two parts differ in size by more than one row.
* Read in the order of their names, the rows are ordered by scheduled departure (`time_hour`, then `minute`);
  flights scheduled for the same minute are ordered by `origin`, `carrier` and `flight`, which together
  identify a flight.  So the order is total, and each rebuild gives the same rows in the same parts.
* `content_sha256` of the whole table is `CONTENT_SHA256`.  It is taken from the values, not from the Parquet
  bytes, so it survives another writer version; the bytes as committed are pinned by `flights/SHA256SUMS`.
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
    """The file name of part `index`; names sort in time order.  `IndexError` outside `range(PART_COUNT)`."""
    if not 0 <= index < PART_COUNT:
        raise IndexError(f"part {index} of the flights data: there are parts 0 to {PART_COUNT - 1}")
    return f"flights-{index:02d}.parquet"


def part_path(index: int) -> Path:
    """The path of part `index` in this repository.  `IndexError` outside `range(PART_COUNT)`."""
    return PARTS_DIRECTORY / part_name(index)


def part_row_ranges() -> Iterator[tuple[int, int]]:
    """First row and row after the last of each part, in order: `ROW_COUNT` split as evenly as it can be."""
    size, longer_parts = divmod(ROW_COUNT, PART_COUNT)
    start = 0
    for index in range(PART_COUNT):
        end = start + size + (1 if index < longer_parts else 0)
        yield start, end
        start = end


def read_flights() -> pa.Table:
    """The whole data set in time order, about 35 MB in memory."""
    return pa.concat_tables(pyarrow.parquet.read_table(part_path(index)) for index in range(PART_COUNT))


def content_sha256(table: pa.Table) -> str:
    """SHA-256 of the rows as comma separated text: no header, nulls empty, time in epoch microseconds."""
    index = table.schema.get_field_index("time_hour")
    table = table.set_column(index, "time_hour", table["time_hour"].cast(pa.int64()))
    text = pa.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    pyarrow.csv.write_csv(table, text, options)
    return hashlib.sha256(text.getvalue()).hexdigest()
