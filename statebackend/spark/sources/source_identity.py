"""The identity of the sources of a job, its trigger, and ``withWatermark`` on the frame of a source.

Spark's log counts what was read of each source by position, and does not name the sources. On a directory that was
moved it would read every file again, or fail; it cannot parse the position of another kind of source. So a checkpoint
names Spark's sources as Spark's plan does, ``FileSource[/data/in]`` or ``rate``, together with the uid of the program's
source: one DataFrame may contain several of Spark's. The schema is not part of the identity, because it may evolve; it
is stored with it.

``withWatermark`` is never ignored: it becomes the watermark strategy of the source, or is rejected. It is in the
analysed plan at any depth and marks its column, and the mark follows the column through selects and renames. If the
column is ambiguous, or not that of all records, the program must assign timestamps itself. A watermark below a stateful
operator of Spark, such as a join or ``dropDuplicates``, is meant for that operator and left alone.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import TimestampType

from snapshots.errors import format_value
from statebackend.checkpoint.metadata import ReadSource
from statebackend.spark.sources.progress import Schema
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.runtime.starting_point import check_restored_progress
from statebackend.streaming.stream_graph import JobGraph
from statebackend.streaming.watermark_strategy import WatermarkStrategy

_TRIGGERS: Final = ("processingTime", "availableNow", "once")


def read_sources(graph: JobGraph, united: DataFrame) -> tuple[ReadSource, ...]:
    """Return Spark's sources of a job in the order of Spark's offsets; ``united`` is the frame that reads all.

    Spark numbers their logs in this order. A DataFrame that is used twice is one source with one log and two positions.
    """
    leaves = _streaming_leaves(united)
    different: list[Any] = []
    for leaf in leaves:
        if not any(leaf.equals(known) for known in different):
            different.append(leaf)
    logs = [_own_log(leaf, next(n for n, known in enumerate(different) if leaf.equals(known))) for leaf in leaves]
    uids = [
        uid for node, uid in zip(graph.sources, graph.source_uids, strict=True) for _ in _streaming_leaves(node.source)
    ]
    return tuple(
        ReadSource(str(leaf.sourceName()), uid, log) for leaf, uid, log in zip(leaves, uids, logs, strict=True)
    )


def read_schemas(united: DataFrame) -> tuple[Schema, ...]:
    """Return the schemas of the sources of `read_sources`, in the same order."""
    return tuple(json.loads(leaf.schema().json()) for leaf in _streaming_leaves(united))


def check_sources_named(
    uids: Collection[str],
    restore_source_progress: bool | Mapping[str, bool],
    allow_dropped_sources: Collection[str],
) -> None:
    """Raise `JobDefinitionError` for invalid uids in the arguments of a start; ``uids`` are the job's sources."""
    if isinstance(allow_dropped_sources, str) or not isinstance(allow_dropped_sources, Collection):
        raise JobDefinitionError(
            f"allow_dropped_sources is {format_value(allow_dropped_sources, 80)}; it takes a list of uids of sources "
            f"that the job no longer has"
        )
    for uid in allow_dropped_sources:
        if uid in uids:
            raise JobDefinitionError(
                f"allow_dropped_sources has {format_value(uid, 80)}, which is a source of the job; remove the uid, or "
                f"the source"
            )
    check_restored_progress(uids, restore_source_progress)


def _streaming_leaves(frame: DataFrame) -> list[Any]:
    found: Any = frame._jdf.queryExecution().analyzed().collectLeaves()
    leaves = [found.apply(index) for index in range(found.size())]
    return [leaf for leaf in leaves if leaf.isStreaming()]


def _own_log(leaf: Any, number: int) -> str:
    """The name of the log of a source: its number, or its name from Spark's source evolution."""
    try:
        name = leaf.sourceIdentifyingName()
    except Py4JError:
        # Earlier versions of Spark have only numbers.
        return str(number)
    return str(name.name()) if name.getClass().getSimpleName() in ("UserProvided", "FlowAssigned") else str(number)


def check_trigger(frame: DataFrame, trigger: Mapping[str, Any] | None) -> None:
    """Raise `JobDefinitionError` for a trigger that Spark rejects, or that has no epochs."""
    examples = 'such as {"processingTime": "1 second"} or {"availableNow": True}'
    if trigger is None:
        return
    if not isinstance(trigger, Mapping):
        raise JobDefinitionError(
            f"trigger is {format_value(trigger, 80)}; it takes the arguments of Spark's trigger as a dict, {examples}"
        )
    unknown = [name for name in trigger if name not in _TRIGGERS]
    if unknown:
        raise JobDefinitionError(
            f"trigger has {', '.join(map(repr, unknown))}, and takes one of {', '.join(_TRIGGERS)}, {examples}"
        )
    try:
        if trigger:
            frame.writeStream.trigger(**trigger)
    except (PySparkException, TypeError, ValueError) as error:
        raise JobDefinitionError(
            f"trigger is {format_value(dict(trigger), 80)}, which Spark rejects: {str(error).splitlines()[0]}. "
            f"It takes one of {', '.join(_TRIGGERS)}, {examples}"
        ) from error


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
    """Return the strategy of ``withWatermark`` on a frame; None without it, or if it is meant for Spark itself.

    Raises `JobDefinitionError` for a watermark that cannot be used.
    """
    found = _nodes(frame._jdf.queryExecution().analyzed(), ())
    nodes = [(node, above) for node, above in found if _USERS.isdisjoint(one.nodeName() for one in above)]
    if not nodes:
        return None
    names = ", ".join(sorted({repr(str(node.eventTime().name())) for node, _ in nodes}))
    if len(nodes) > 1:
        raise _rejected(names, "it is used more than once")
    branches = [above.nodeName() for above in nodes[0][1] if above.children().size() > 1]
    if branches:
        raise _rejected(names, f"it is below a {branches[-1].lower()}, so it does not hold for all records")
    columns = [field for field in frame.schema.fields if _DELAY_OF_COLUMN in field.metadata]
    if len(columns) != 1 or not isinstance(columns[0].dataType, TimestampType):
        raise _rejected(names, "its column is no longer a timestamp column of the source")
    [column] = columns
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(int(column.metadata[_DELAY_OF_COLUMN]))
    return bounded.with_timestamps(column.name)


def _nodes(plan: Any, above: tuple[Any, ...]) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if plan.nodeName() == _NODE:
        yield plan, above
    children = plan.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index), (*above, plan))


def _rejected(names: str, why: str) -> JobDefinitionError:
    return JobDefinitionError(
        f"from_dataframe: the frame has withWatermark({names}, ...), which cannot be used: {why}. Leave it out, and "
        f"call assign_timestamps_and_watermarks(...) after from_dataframe"
    )
