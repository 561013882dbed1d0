"""The expected results, computed in plain Spark SQL: batch queries over the files of the whole year.

They do not use state, timers or savepoints. They only need to know when a record is late: an epoch reads a fixed number
of files, and starts with the watermark of the epochs before it (`EPOCHS`). From this follows:

* An hour is emitted when the watermark reaches its last moment, and again for every flight that is reported later.
* It is emitted with its weather, or without when both watermarks have passed everything that may still come.
* A flight is too late when the watermark is a day after its hour. Then no hour contains it.
* An aircraft is silent when the watermark is seven days after a departure, and no other was reported by then.

An epoch's timers fire at its end, also in the last epoch before a stop. So the epoch that makes a row due, `due_in`,
decides which version emits it.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from examples.data.weather_dataset import AIRLINES_PATH
from examples.weather.job import LATENESS, OUT_OF_ORDER
from examples.weather.reports import FILES_PER_EPOCH, FLIGHT_SCHEMA, WEATHER_SCHEMA

MOMENT = "INTERVAL '1 millisecond'"

EPOCHS = f"""
    -- The watermarks that each epoch begins with; the last ones are those of the end. The first epoch has none.
    SELECT epoch + 1 AS epoch, watermark, least(watermark, weather_watermark) AS both_watermark
    FROM (
        SELECT epoch, max(max(departure)) OVER (ORDER BY epoch) - INTERVAL '{OUT_OF_ORDER}' - {MOMENT} AS watermark
        FROM reported GROUP BY epoch
    ) JOIN (
        SELECT epoch, max(max(time_hour)) OVER (ORDER BY epoch) - {MOMENT} AS weather_watermark
        FROM observed GROUP BY epoch
    ) USING (epoch)
"""

MARKED = f"""
    SELECT *, coalesce(watermark >= last_moment, false) AS is_update,
           coalesce(watermark >= last_moment + INTERVAL '{LATENESS}', false) AS is_late
    FROM (
        SELECT *, date_trunc('HOUR', departure) AS hour,
               date_trunc('HOUR', departure) + INTERVAL '1 hour' - {MOMENT} AS last_moment
        FROM reported LEFT JOIN epochs USING (epoch)
    )
"""

DELAYS = f"""
    WITH so_far AS (
        SELECT epoch, origin AS airport, hour, last_moment,
               is_update, lead(is_update, 1, true) OVER in_order AS is_next_an_update,
               count(*) OVER in_order AS flights,
               count_if(dep_delay IS NULL) OVER in_order AS cancelled,
               sum(greatest(dep_delay, 0)) OVER in_order AS minutes_late,
               max(if(is_version_2, greatest(dep_delay, 0), 0)) OVER in_order AS longest_delay
        FROM marked WHERE NOT is_late
        WINDOW in_order AS (PARTITION BY origin, hour ORDER BY epoch, departure, carrier, flight)
    ), first_told AS (
        SELECT last_moment, min(epochs.epoch) - 1 AS first_due_in
        FROM (SELECT DISTINCT last_moment FROM marked) JOIN epochs ON watermark >= last_moment
        GROUP BY last_moment
    ), emitted AS (
        SELECT *, if(is_update, epoch, first_due_in) AS hour_due_in
        FROM so_far JOIN first_told USING (last_moment)
        WHERE is_update OR is_next_an_update
    ), weather_abandoned AS (
        SELECT last_moment, min(epochs.epoch) - 1 AS abandoned_in
        FROM first_told JOIN epochs ON both_watermark >= last_moment + {MOMENT} + INTERVAL '{LATENESS}'
        GROUP BY last_moment
    )
    SELECT airport, hour, flights, cancelled, minutes_late, longest_delay, temp, wind_speed, precip, visib,
           if(observed.epoch IS NULL, abandoned_in, greatest(hour_due_in, observed.epoch)) AS due_in
    FROM emitted
    LEFT JOIN observed ON airport = observed.origin AND hour = time_hour
    LEFT JOIN weather_abandoned USING (last_moment)
    WHERE observed.epoch IS NOT NULL OR abandoned_in IS NOT NULL
"""

LATE = """
    SELECT origin, departure, carrier, flight, tailnum, dest, dep_delay, name AS airline
    FROM marked LEFT JOIN airlines USING (carrier)
    WHERE is_late
"""

SILENT = """
    WITH departures AS (
        SELECT tailnum, departure, max_by(dest, struct(epoch, origin, carrier, flight)) AS airport,
               min(coalesce(watermark, TIMESTAMP '1970-01-01')) AS reported_at
        FROM marked
        WHERE tailnum IS NOT NULL AND dep_delay IS NOT NULL
              AND coalesce(watermark < departure + INTERVAL '7 days', true)
        GROUP BY tailnum, departure
    )
    SELECT tailnum, departure AS last_departure, airport
    FROM (
        SELECT *, min(reported_at) OVER (
                   PARTITION BY tailnum ORDER BY departure
                   RANGE BETWEEN INTERVAL '0 00:00:01' DAY TO SECOND FOLLOWING
                             AND INTERVAL '7 00:00:00' DAY TO SECOND FOLLOWING
               ) AS next_reported_at
        FROM departures
    )
    WHERE departure + INTERVAL '7 days' <= (SELECT max(watermark) FROM epochs)
          AND coalesce(next_reported_at >= departure + INTERVAL '7 days', true)
"""


def make_views(spark: SparkSession, incoming: Path, first_epoch_of_version_2: int) -> None:
    """Create views of the files, and of what follows from their order."""
    _files(spark, incoming / "weather", WEATHER_SCHEMA).createOrReplaceTempView("observed")
    _files(spark, incoming / "flights", FLIGHT_SCHEMA).selectExpr(
        "*", f"epoch >= {first_epoch_of_version_2} AS is_version_2"
    ).createOrReplaceTempView("reported")
    spark.read.parquet(str(AIRLINES_PATH)).createOrReplaceTempView("airlines")
    for name, query in (("epochs", EPOCHS), ("marked", MARKED)):
        spark.sql(query).persist().createOrReplaceTempView(name)


def expected_delays(spark: SparkSession, first_epoch_of_version_2: int) -> tuple[pa.Table, pa.Table]:
    """Return the rows of delays that version 1 and version 2 must emit."""
    delays = spark.sql(DELAYS).persist()
    is_version_2 = f"due_in >= {first_epoch_of_version_2}"
    version_1 = delays.where(f"NOT {is_version_2}").drop("due_in", "longest_delay")
    version_2 = delays.where(is_version_2).drop("due_in")
    return version_1.toArrow(), version_2.toArrow()


def expected_late(spark: SparkSession) -> pa.Table:
    """Return the flights that were reported too late, with the names of their airlines."""
    return spark.sql(LATE).toArrow()


def expected_silent(spark: SparkSession) -> pa.Table:
    """Return the aircraft that have not flown for seven days."""
    return spark.sql(SILENT).toArrow()


def _files(spark: SparkSession, directory: Path, schema: str) -> DataFrame:
    file_number = r"CAST(regexp_extract(_metadata.file_name, '([0-9]+)', 1) AS INT)"
    return (
        spark.read.schema(schema)
        .parquet(str(directory))
        .selectExpr("*", f"{file_number} DIV {FILES_PER_EPOCH} AS epoch")
    )
