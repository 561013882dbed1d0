"""What a stateful processor begins with: the rows of a grouped DataFrame, collected when the job is prepared.

They go to the workers with the function, so they are meant to be small beside the state; what is larger is read as a
stream of its own before. Whether they are used is decided by the tasks, since only state knows whether it has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve
from pyspark.sql import GroupedData
from pyspark.sql import functions as F  # noqa: N812

from streamjobs.api.stateful_processor import StatefulProcessorFunction
from streamjobs.errors import JobDefinitionError
from streamjobs.spark.named_columns import column_named
from streamjobs.spark.tasks.arrow_input import KEY_GROUP_COLUMN, InputColumns
from streamjobs.spark.tasks.initial_rows import InitialRows

__all__ = ["with_initial_rows"]

_ROWS: Final = "__statebackend_rows"


def with_initial_rows(function: Any, key_types: Sequence[str], max_parallelism: int, uid: str) -> Any:
    """The function, with rows in the place of a grouped DataFrame if it has one.

    Raises `JobDefinitionError` for what cannot be the initial state of keys of these types.
    """
    if not isinstance(function, StatefulProcessorFunction) or function.initial_state is None:
        return function
    where = f"operator {uid!r}: initial_state"
    grouped = function.initial_state
    if not isinstance(grouped, GroupedData):
        raise JobDefinitionError(f"{where} is a batch DataFrame that is grouped: frame.groupBy('key')")
    # A group gives its frame to nobody, but aggregates.
    lists = grouped.agg(F.collect_list(F.struct("*")).alias(_ROWS))
    if lists.isStreaming:
        raise JobDefinitionError(f"{where} is read once, and so cannot be a streaming DataFrame")
    keys, frame = lists.columns[:-1], lists.select(F.inline(_ROWS))
    if not set(keys) <= set(frame.columns):
        raise JobDefinitionError(f"{where} is grouped by an expression; add it as a column, and group by that")
    types = [frame.select(column_named(key)).schema[0].dataType.simpleString() for key in keys]
    if types != list(key_types):
        raise JobDefinitionError(
            f"{where} is grouped by columns of the types {', '.join(types)}, and the stream by {', '.join(key_types)}: "
            f"cast them alike"
        )
    group = F.pmod(F.xxhash64(*map(column_named, keys)), F.lit(max_parallelism)).cast("int")
    table = frame.withColumn(KEY_GROUP_COLUMN, group).toArrow()
    rows = InitialRows(table, InputColumns(tuple(frame.columns), tuple(keys)), max_parallelism, uid)
    return evolve(function, initial_state=rows)
