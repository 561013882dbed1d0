"""The sinks of a job in this process: functions that are called with each record, and lists that are added to.

A sink has no two phases here: it is told of an epoch once, behind the checkpoint, and keeps what it is given or loses
it. So what is none is refused before the first epoch, and what one of them raises keeps the records from none of the
others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from streamjobs.api.stream_graph import JobGraph, SinkNode
from streamjobs.runtime.job_sinks import no_sink

__all__ = ["check_sinks", "give_to_sinks"]

_ADVICE: Final = "pass a list, which is added to, or a function, which is called with each record"


def check_sinks(graph: JobGraph) -> None:
    """Raises `JobDefinitionError` for what is no sink."""
    for node in graph.sinks:
        if not callable(node.sink) and not callable(getattr(node.sink, "extend", None)):
            raise no_sink(node.sink, _ADVICE)


def give_to_sinks(records: Iterable[tuple[SinkNode, Sequence[Any]]]) -> None:
    """Gives each sink its records, in the order given, and raises behind the last what one of them has raised.

    A function that raises is not called with the rest of its own records.
    """
    with contextlib.ExitStack() as stack:
        # What is put on it last is done first.
        for node, its_records in reversed(list(records)):
            stack.callback(_give, node.sink, its_records)


def _give(sink: Any, records: Sequence[Any]) -> None:
    if callable(sink):
        for record in records:
            sink(record)
    else:
        sink.extend(records)
