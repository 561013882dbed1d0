"""Rows as Spark has them: the base class of rows, and the Arrow schema that Spark asks for."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas import types as spark_arrow_types
from pyspark.sql.types import StructType

from streamjobs.rows.row_reader import RowReader

__all__ = ["spark_row_reader", "to_arrow_schema"]


def spark_row_reader(schema: pa.Schema, where: str | None = None) -> RowReader:
    """A reader whose rows are instances of `pyspark.sql.Row`; ``where`` begins the messages of its errors."""
    return RowReader(schema, where, Row)


def to_arrow_schema(schema: StructType | str, timezone: str | None = None) -> pa.Schema:
    """The Arrow schema that `mapInArrow` must emit for a Spark schema (a StructType or DDL).

    Timestamps get `timezone`, by default that of the active session. Neither pandas nor, for a StructType and a given
    zone, a session is needed.
    """
    struct: Any = StructType.fromDDL(schema) if isinstance(schema, str) else schema
    if timezone is None:
        session = SparkSession.getActiveSession()
        timezone = session.conf.get("spark.sql.session.timeZone") if session is not None else "UTC"
    convert: Any = spark_arrow_types.to_arrow_schema
    # Before Spark 4.3 the function has no such argument: timestamps are in UTC.
    return convert(struct, timezone=timezone) if "timezone" in (convert.__kwdefaults__ or ()) else convert(struct)
