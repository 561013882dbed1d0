"""The expected results, computed in plain Spark: a batch query with windows over the whole year.

It does not use epochs, state or savepoints. It shares only the columns with the job: `is_version_2` marks the flights
that version 2 processed, because the new totals count from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from examples.flights.flights_source import KEY, ORDER
from examples.flights.version_1 import LEGS_KEPT

IDENTITY = (KEY, *ORDER)

VERSION_1_COLUMNS = (*IDENTITY, "flights", "minutes_late", "last_airport", "worst_minutes")
VERSION_2_COLUMNS = (
    *IDENTITY,
    *("flights", "minutes_late", "airport", "worst_minutes", "worst_carrier", "cancelled"),
)


def running_totals(flights: DataFrame) -> DataFrame:
    """Return a row per flight, with the totals of its aircraft up to and including it; ``number`` counts from 1."""
    so_far = Window.partitionBy(KEY).orderBy(*ORDER).rowsBetween(Window.unboundedPreceding, Window.currentRow)
    late = F.greatest(F.coalesce("arr_delay", F.lit(0)), F.lit(0))
    arrived = F.col("arr_delay").isNotNull()
    is_version_2 = F.col("is_version_2")
    number = F.row_number().over(Window.partitionBy(KEY).orderBy(*ORDER))
    # The earliest of the longest delays. A null, where there was no delay, is never the greatest.
    rank = F.when(F.col("arr_delay") > 0, F.struct("arr_delay", -F.col("number")))
    worst = F.struct(
        F.col("arr_delay").alias("minutes"), "dest", F.when(is_version_2, F.col("carrier")).alias("carrier")
    )
    airport = F.last(F.when(arrived, F.col("dest")), ignorenulls=True).over(so_far)
    totals = flights.withColumn("number", number).select(
        *IDENTITY,
        *("is_version_2", "number"),
        F.count("*").over(so_far).alias("flights"),
        F.sum(late).over(so_far).alias("minutes_late"),
        airport.alias("airport"),
        airport.alias("last_airport"),
        F.max_by(worst, rank).over(so_far).alias("worst"),
        F.sum(F.when(is_version_2 & F.col("dep_time").isNull(), 1).otherwise(0)).over(so_far).alias("cancelled"),
    )
    return totals.withColumns(
        {"worst_minutes": F.col("worst.minutes").cast("bigint"), "worst_carrier": F.col("worst.carrier")}
    )


def expected_rows(totals: DataFrame) -> tuple[pa.Table, pa.Table]:
    """Return the rows that version 1 and version 2 must emit, from `running_totals`."""
    version_1 = totals.where("NOT is_version_2").select(*VERSION_1_COLUMNS)
    version_2 = totals.where("is_version_2").select(*VERSION_2_COLUMNS)
    return version_1.toArrow(), version_2.toArrow()


def expected_states(flights: DataFrame, totals: DataFrame) -> Mapping[str, Mapping[Any, Any]]:
    """Return the final entries of every state, in the form of `savepoint_contents`."""
    arrived = flights.where("arr_delay IS NOT NULL")
    aircraft = totals.groupBy(KEY).agg(
        F.max_by(F.struct("flights", "cancelled", "minutes_late", "airport", "worst"), "number").alias("state")
    )
    destinations = arrived.groupBy(KEY, "dest").agg(
        F.struct(
            F.count("*").alias("flights"),
            F.sum(F.greatest("arr_delay", F.lit(0))).alias("minutes"),
            F.sum(F.when(F.col("is_version_2") & (F.col("arr_delay") <= 0), 1).otherwise(0)).alias("on_time"),
        ).alias("state")
    )
    backwards = Window.partitionBy(KEY).orderBy(*(F.col(name).desc() for name in ORDER))
    leg = F.struct("origin", "dest", F.col("arr_delay").alias("arrival_delay"))
    last_legs = arrived.withColumn("age", F.row_number().over(backwards)).where(F.col("age") <= LEGS_KEPT)
    oldest_first = F.array_sort(F.collect_list(F.struct(-F.col("age"), leg.alias("leg"))))
    legs = last_legs.groupBy(KEY).agg(oldest_first.alias("state"))
    return {
        "aircraft": {row[KEY]: row.state.asDict(recursive=True) for row in aircraft.collect()},
        "destinations": {(row[KEY], row.dest): row.state.asDict() for row in destinations.collect()},
        "legs": {row[KEY]: [item.leg.asDict() for item in row.state] for row in legs.collect()},
    }
