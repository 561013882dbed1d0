"""Timers of event time that cannot fire: those of an operator that waits for a source without timestamps.

The watermark of an operator is the smallest of what it reads. A source without timestamps has none, and holds all
operators behind it until it ends, which a stream never does. That is what Flink does too, and it may be meant: the
operators may register timers of processing time alone. So the job runs, and a start warns once.
"""

from __future__ import annotations

from snapshots.loggers import logger_of
from streamjobs.api.stream_graph import Node, OperatorNode, upstream_of
from streamjobs.operators.input_batch import place_of_input
from streamjobs.operators.keyed_timers import overrides_on_timer
from streamjobs.runtime.event_time import EventTime

__all__ = ["held_timers", "warn_of_held_timers"]

_logger = logger_of(__name__)


def warn_of_held_timers(event_time: EventTime | None, job_name: str) -> None:
    """Logs a warning for every input that holds the timers of its operator."""
    for told in () if event_time is None else held_timers(event_time):
        _logger.warning("job %r: %s", job_name, told)


def held_timers(event_time: EventTime) -> list[str]:
    """What there is to tell, one line for each such input of an operator that has timers of event time.

    An operator none of whose records have timestamps has timers of processing time alone, and is left out.
    """
    graph = event_time.graph
    names: dict[Node, str] = dict(zip(graph.sources, graph.source_uids, strict=True))
    told = []
    for node in graph.operators:
        if not _has_timers(node):
            continue
        without = [
            sorted(names[one] for one in upstream_of([edge]) & names.keys() if names[one] not in event_time.nodes)
            for edge in node.inputs
        ]
        is_timed = any(names[one] in event_time.nodes for one in upstream_of(node.inputs) & names.keys())
        for index, held_by in enumerate(without if is_timed else ()):
            if held_by:
                place = place_of_input(node.uid, index, len(without))
                told.append(_told(place, held_by))
    return told


def _told(place: str, held_by: list[str]) -> str:
    sources = f"source{'s' * (len(held_by) > 1)} {', '.join(map(repr, held_by))}"
    return (
        f"{place}: the records of {sources} come without timestamps, so this input has no watermark, and no timer or "
        f"window of event time of the operator fires as long as it is read; chain "
        f"assign_timestamps_and_watermarks(...) behind {sources} too, with .with_idleness(...) if records seldom come"
    )


def _has_timers(node: OperatorNode) -> bool:
    function = getattr(node.function, "function", node.function)
    return bool(getattr(node.function, "needs_timestamps", False)) or overrides_on_timer(function)
