"""``withWatermark`` on the frame of a source: taken over as the watermarks of the source, or refused, never ignored.

It stands in the analysed plan of the frame, at any depth, and marks its column: the mark goes with the column through
selects and renamings. Where it cannot be told which column that has become, or whether it is that of all records, the
program is asked to say it. One below an operator of Spark's own that keeps state, such as a join or ``dropDuplicates``,
is meant for that, and left to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from streamjobs.api.watermark_strategy import WatermarkStrategy
from streamjobs.errors import JobDefinitionError

__all__ = ["watermark_of_frame"]

_NODE: Final = "EventTimeWatermark"
_USERS: Final = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsInPandasWithState",
        "FlatMapGroupsWithState",
        "Join",
        "TransformWithState",
        "TransformWithStateInPySpark",
    }
)
_DELAY_OF_COLUMN: Final = "spark.watermarkDelayMs"


def watermark_of_frame(frame: DataFrame) -> WatermarkStrategy[Any] | None:
    """What ``withWatermark`` says of the records of a frame; None without it, or if it is meant for Spark itself.

    Raises `JobDefinitionError` for one that cannot be taken over.
    """
    found = _nodes(frame._jdf.queryExecution().analyzed(), ())
    nodes = [(node, above) for node, above in found if _USERS.isdisjoint(one.nodeName() for one in above)]
    if not nodes:
        return None
    names = ", ".join(sorted({repr(str(node.eventTime().name())) for node, _ in nodes}))
    if len(nodes) > 1:
        raise _refused(names, "it is used more than once")
    branches = [above.nodeName() for above in nodes[0][1] if above.children().size() > 1]
    if branches:
        raise _refused(names, f"it stands below a {branches[-1].lower()}, and does not hold for all records")
    columns = [field for field in frame.schema.fields if _DELAY_OF_COLUMN in field.metadata]
    if len(columns) != 1 or not isinstance(columns[0].dataType, TimestampType):
        raise _refused(names, "its column is not one of the source's, as a timestamp, any more")
    [column] = columns
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(int(column.metadata[_DELAY_OF_COLUMN]))
    return bounded.with_timestamps(column.name)


def _nodes(plan: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if plan.nodeName() == _NODE:
        yield plan, above
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index), (*above, plan))


def _refused(names: str, why: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"from_dataframe: the frame has withWatermark({names}, ...), which cannot be taken over: {why}. Leave it out, "
        f"and say assign_timestamps_and_watermarks(...) behind from_dataframe"
    )
