"""Several sources in one streaming query, as a union of tagged structs that is split again in each batch.

    __statebackend_source   __statebackend_row_0            __statebackend_row_1
    0                       the row of the first source     null
    1                       null                            that of the second

One query has one offset log and one sequence of batches, and so one sequence of epochs. A single source is unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from statebackend.spark.columns import column_named
from statebackend.streaming.errors import JobDefinitionError

__all__ = ["split_sources", "united_sources"]

_SOURCE_COLUMN: Final = "__statebackend_source"
_ROW_COLUMN_PREFIX: Final = "__statebackend_row_"


def united_sources(frames: Sequence[DataFrame]) -> DataFrame:
    """One frame of all; raises `JobDefinitionError` for a column whose name is reserved, or doubled."""
    if len(frames) == 1:
        return frames[0]
    return reduce(DataFrame.union, [_tagged(frame, index, frames) for index, frame in enumerate(frames)])


def split_sources(batch: DataFrame, count: int) -> Sequence[DataFrame]:
    """The frames of so many sources out of a batch of their union."""
    if count == 1:
        return [batch]
    return [
        batch.where(F.col(_SOURCE_COLUMN) == index).select(F.col(f"{_ROW_COLUMN_PREFIX}{index}.*"))
        for index in range(count)
    ]


def _tagged(frame: DataFrame, index: int, frames: Sequence[DataFrame]) -> DataFrame:
    if len(set(frame.columns)) != len(frame.columns):
        raise JobDefinitionError(
            f"source {index + 1} of the job has two columns of the same name ({', '.join(frame.columns)}); rename one"
        )
    rows = []
    for other, its_frame in enumerate(frames):
        own = F.struct(*map(column_named, frame.columns)) if other == index else None
        row = F.lit(None).cast(its_frame.schema) if own is None else own
        rows.append(row.alias(f"{_ROW_COLUMN_PREFIX}{other}"))
    return frame.select(F.lit(index).alias(_SOURCE_COLUMN), *rows)
