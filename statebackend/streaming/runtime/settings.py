"""Checks settings and watermark strategies before a job starts.

A setting of a wrong type would otherwise fail later, with an error that does not name it.

The module also warns once about blocked timers. The watermark of an operator is the minimum over its inputs. A source
without timestamps has no watermark, so it blocks the event-time timers of all operators after it, as in Flink. The job
still runs, because these operators may only use processing-time timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from snapshots.errors import format_value
from snapshots.loggers import logger_of
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.operators.keyed_timers import overrides_on_timer
from statebackend.streaming.operators.operator import place_of_input
from statebackend.streaming.runtime.event_time import EventTime
from statebackend.streaming.stream_graph import Node, OperatorNode, upstream_of

__all__ = [
    "TIMESTAMP_TYPES",
    "blocked_timers",
    "check_whole_numbers",
    "is_instance_of",
    "unfit_column",
    "unfit_type",
    "warn_of_blocked_timers",
]


def check_whole_numbers(given: Mapping[str, object]) -> None:
    """Raise `JobDefinitionError` for a setting that is neither a whole number nor None."""
    for name, number in given.items():
        if number is not None and type(number) is not int:
            raise JobDefinitionError(f"{name} is {format_value(number, 80)}; it takes a whole number")


def is_instance_of(given: object, kind: type) -> bool:
    """As `isinstance`, but False for a class: a class has all attributes of a protocol, but none of them works."""
    return not isinstance(given, type) and isinstance(given, kind)


_logger = logger_of(__name__)


def warn_of_blocked_timers(event_time: EventTime | None, job_name: str) -> None:
    """Log a warning for every input that blocks the timers of its operator."""
    for warning in () if event_time is None else blocked_timers(event_time):
        _logger.warning("job %r: %s", job_name, warning)


def blocked_timers(event_time: EventTime) -> list[str]:
    """Return one warning for each input without a watermark of an operator with timers.

    An operator without any input with timestamps is skipped: it can only use processing-time timers. A source without
    watermarks that becomes idle holds back no operator.
    """
    graph = event_time.graph
    names: dict[Node, str] = dict(zip(graph.sources, graph.source_uids, strict=True))
    strategies = {name: node.strategy for name, node in event_time.nodes.items()}
    passing = {name for name, one in strategies.items() if one.has_watermarks or one.idleness_ms is not None}
    warnings = []
    for node in graph.operators:
        if not _has_timers(node):
            continue
        without = [
            sorted(names[one] for one in upstream_of([edge]) & names.keys() if names[one] not in passing)
            for edge in node.inputs
        ]
        is_timed = any(names[one] in event_time.nodes for one in upstream_of(node.inputs) & names.keys())
        for index, held_by in enumerate(without if is_timed else ()):
            if held_by:
                place = place_of_input(node.uid, index, len(without))
                warnings.append(_warning(place, held_by))
    return warnings


def _warning(place: str, held_by: list[str]) -> str:
    sources = f"source{'s' * (len(held_by) > 1)} {', '.join(map(repr, held_by))}"
    return (
        f"{place}: there are no watermarks from {sources}, so no event-time timer or window of the operator fires; "
        f"call assign_timestamps_and_watermarks(...) after {sources} too, with .with_idleness(...) if records "
        f"are rare, or with WatermarkStrategy.no_watermarks().with_idleness('1 ms') if records have no time"
    )


def _has_timers(node: OperatorNode) -> bool:
    function = getattr(node.function, "function", node.function)
    return bool(getattr(node.function, "needs_timestamps", False)) or overrides_on_timer(function)


TIMESTAMP_TYPES: Final = ("timestamp", "bigint", "int")
"""The allowed types of a timestamp column, by Spark's names."""


def unfit_column(
    source_name: str, method: str, given: Any, columns: Iterable[str], why: str = ""
) -> JobDefinitionError:
    """Return the error for an unknown column. ``method`` is the method of the strategy, ``why`` an explanation."""
    return JobDefinitionError(
        f"source {source_name!r}: {method}({format_value(given, 80)}) does not fit its records, which have the columns "
        f"{', '.join(columns)}{f': {why}' if why else ''}"
    )


def unfit_type(source_name: str, type_name: str) -> JobDefinitionError:
    """Return the error for a timestamp column with another type than `TIMESTAMP_TYPES`."""
    return JobDefinitionError(
        f"source {source_name!r}: with_timestamps has the type {type_name}; it must be a timestamp, or a bigint of "
        f"milliseconds since 1970: cast it"
    )
