"""The flights as a stream and as a table, with the same columns and order for every version of the job.

Flights without a tail number are left out: all of them were cancelled, and a key must not be null. `departure` is the
scheduled departure to the minute. `ORDER` is total, so a stream and a batch query agree on the order of the flights of
an aircraft.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from attrs import frozen

from examples.data.flights_dataset import part_name
from typeserializers import IntSerializer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEY = "tailnum"
ORDER = ["departure", "origin", "carrier", "flight"]

FILE_SCHEMA = """
    tailnum string, time_hour timestamp, minute int, origin string, dest string, carrier string, flight int,
    dep_time int, arr_delay int
"""

Int32 = Annotated[int, IntSerializer()]


@frozen
class Flight:
    """The columns that the job sees."""

    tailnum: str
    departure: datetime
    origin: str
    dest: str
    carrier: str
    flight: Int32
    dep_time: Int32 | None
    arr_delay: Int32 | None


def flights_stream(spark: SparkSession, directory: Path) -> DataFrame:
    """Return a streaming frame of the flights in ``directory``: one file a micro-batch, oldest file first."""
    files = spark.readStream.schema(FILE_SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(directory))
    return _prepared(files)


def flights_table(spark: SparkSession, directory: Path, first_part_of_version_2: int) -> DataFrame:
    """Return the same flights as a batch frame; ``is_version_2`` marks the flights that version 2 processes."""
    first_file = part_name(first_part_of_version_2)
    files = spark.read.schema(FILE_SCHEMA).parquet(str(directory))
    return _prepared(files, f"_metadata.file_name >= '{first_file}' AS is_version_2")


def _prepared(files: DataFrame, *more_columns: str) -> DataFrame:
    return files.where("tailnum IS NOT NULL").selectExpr(
        "tailnum",
        "time_hour + make_dt_interval(0, 0, minute) AS departure",
        *("origin", "dest", "carrier", "flight", "dep_time", "arr_delay"),
        *more_columns,
    )
