"""What the steps behind an operator do with its partitions: whether each of them is computed exactly once.

A subtask changes state, so its task must run once per epoch, as the task of its own partition. Steps that work row by
row, or that shuffle what comes out, keep to that. Others do not: a global sort samples its input in a job of its own, a
limit leaves partitions out, ``coalesce`` and ``union`` run them in other tasks, a join with itself reads them twice,
and a function may run an action. For all of these the rows of the operator are computed and kept before the step sees
them.

Steps are known by their plan over an empty input, made before the job starts. What is not on the list is taken to read
its input as it pleases: that costs time, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from streamjobs.spark.plans.map_in_arrow import map_in_arrow

__all__ = ["empty_input", "jobs_started", "reads_partitions_once"]

_ROW_BY_ROW_OR_SHUFFLED: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "Distinct",
        "Filter",
        "Generate",
        "MapInArrow",
        "MapInPandas",
        "Project",
        "PythonMapInArrow",
        "RepartitionByExpression",
        "SubqueryAlias",
    }
)
_MAPS_IN_ARROW: Final = ("MapInArrow", "PythonMapInArrow")


def empty_input(spark: SparkSession, schema: StructType) -> DataFrame:
    """A frame without rows whose one partition is computed by a task, as that of an operator is."""

    def no_rows(batches: Iterator[Any]) -> Iterator[Any]:
        return iter(())

    return map_in_arrow(spark.range(0, 1, 1, 1), no_rows, schema)


def jobs_started(spark: SparkSession) -> int:
    """How many jobs Spark has started so far, those of other queries of the application counted too."""
    return int(spark.sparkContext._jsc.sc().dagScheduler().numTotalJobs())


def reads_partitions_once(frame: DataFrame) -> bool:
    """Whether ``frame``, made by steps over an `empty_input`, computes each of its partitions once, in its own task."""
    return _reads_its_input_once(frame._jdf.queryExecution().analyzed())


def _reads_its_input_once(plan: Any) -> bool:
    while not _is_empty_input(plan):
        if not _is_row_by_row_or_shuffled(plan) or plan.subqueries().size() or plan.children().size() != 1:
            return False
        plan = plan.children().head()
    return True


def _is_empty_input(plan: Any) -> bool:
    return plan.nodeName() in _MAPS_IN_ARROW and plan.children().head().nodeName() == "Range"


def _is_row_by_row_or_shuffled(plan: Any) -> bool:
    name = plan.nodeName()
    if name == "Repartition":
        return bool(plan.shuffle())
    if name == "Sort":
        return not getattr(plan, "global")()
    return name in _ROW_BY_ROW_OR_SHUFFLED
