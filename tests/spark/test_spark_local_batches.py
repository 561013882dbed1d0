"""The driver reads Arrow batches of a DataFrame, and their values in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_rows_read_through_arrow_equal_collected_rows(spark: SparkSession) -> None:
    from statebackend.spark.local_batches import local_batches, python_rows

    frame = spark.range(5_000, numPartitions=2).selectExpr(
        "named_struct('sum', id, 'sum', id * 2, 'count', CAST(id AS int)) AS value",
        "IF(id % 3 = 0, NULL, named_struct('text', CAST(id AS string), 'at', timestamp_millis(id - 7))) AS maybe",
        "array(named_struct('x', id, 'x', NULL)) AS items",
        "map(CAST(id AS string), named_struct('day', date_add(DATE'2026-01-01', CAST(id AS int)))) AS days",
        "named_struct('inner', named_struct('bytes', CAST(CAST(id AS string) AS binary), 'flag', id > 3)) AS nested",
        "CAST(id AS decimal(20, 2)) AS money",
        "id / 3 AS ratio",
        "named_struct('nothing', NULL) AS empty",
        "TIMESTAMP_NTZ'2026-01-01 10:00:00' AS local",
        "INTERVAL '1 02:03:04' DAY TO SECOND AS duration",
    )
    batches = list(local_batches(frame))
    rows = [row for batch in batches for row in python_rows(frame.schema, batch.columns)]
    collected = frame.collect()
    assert rows == collected
    assert list(map(repr, rows)) == list(map(repr, collected))
    assert len(batches) == 4
    assert list(local_batches(frame.limit(0).repartition(2))) == []
