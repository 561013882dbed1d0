"""Columns by their names, whatever characters a name has.

Spark reads a name as a path: ``a.b`` is the field ``b`` of the column ``a``. A column that is itself called ``a.b`` is
meant only by a quoted name, and a backtick inside quotes is doubled. A name that a program gives us means the column of
exactly that name if there is one, and otherwise what Spark makes of it: a field of a struct, or a column whose name is
written in other letter case.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

__all__ = ["AddedColumns", "KeptColumns", "column_meant_by", "column_named", "sequence_of"]


def column_named(name: str) -> Column:
    """The column of exactly this name."""
    quoted = name.replace("`", "``")
    return F.col(f"`{quoted}`")


def column_meant_by(name: str, columns: Collection[str]) -> Column:
    """The column that a program means by ``name``, over an input of these columns."""
    return column_named(name) if name in columns else F.col(name)


def sequence_of(context: Any, columns: Iterable[Any]) -> Any:
    """The JVM's sequence of these columns."""
    return context._jvm.PythonUtils.toSeq([column._jc for column in columns])


class KeptColumns:
    """Columns that the frames of all epochs are asked for.

    PySpark tells the JVM of each column anew for every frame, and looks up by name there how to; here the JVM is told
    once, and a frame takes one call.
    """

    def __init__(self, columns: Iterable[Column]) -> None:
        self._columns = sequence_of(SparkContext.getOrCreate(), columns)

    def of(self, frame: DataFrame) -> DataFrame:
        """The frame's rows with these columns alone."""
        return DataFrame(frame._jdf.select(self._columns), frame.sparkSession)

    def sorted_within_partitions(self, frame: DataFrame) -> DataFrame:
        """The frame with the rows of each partition in the order of these columns."""
        return DataFrame(frame._jdf.sortWithinPartitions(self._columns), frame.sparkSession)


class AddedColumns:
    """Columns, by their names, that are added to a frame of every epoch; no frame may have one of that name."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = KeptColumns([F.col("*"), *(column.alias(name) for name, column in columns.items())])

    def over(self, frame: DataFrame) -> DataFrame:
        """The frame with the columns behind its own."""
        return self._columns.of(frame)
