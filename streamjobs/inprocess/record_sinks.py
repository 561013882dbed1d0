"""The sinks of a job in this process: functions that are called with each record, and lists that are added to.

Such a sink has no two phases: it is told of an epoch once, behind the checkpoint, and keeps what it is given or loses
it. What one of them raises keeps the records from none of the others. Sinks with two phases are in `staged_sinks`; what
is neither is refused before the first epoch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from streamjobs.api.sink import RecordSink
from streamjobs.api.stream_graph import JobGraph, SinkNode
from streamjobs.inprocess.network.elements import RecordBatch
from streamjobs.inprocess.network.output_subtask import OutputListener
from streamjobs.inprocess.staged_sinks import StagedSinks
from streamjobs.runtime.job_sinks import no_sink
from streamjobs.time.watermark_elements import WatermarkElement

__all__ = ["SinkRecords", "check_sinks", "give_to_sinks"]

_ADVICE: Final = (
    "pass a list, which is added to, a function, which is called with each record, or a RecordSink "
    "(streamjobs.api.sink), which has two phases"
)


def check_sinks(graph: JobGraph) -> None:
    """Raises `JobDefinitionError` for what is no sink."""
    for node in graph.sinks:
        is_plain = callable(node.sink) or callable(getattr(node.sink, "extend", None))
        # A class can be called, and has the methods of its instances; what it is given would be gone.
        if isinstance(node.sink, type) or (not is_plain and not isinstance(node.sink, RecordSink)):
            raise no_sink(node.sink, _ADVICE)


def give_to_sinks(records: Iterable[tuple[SinkNode, Sequence[Any]]]) -> None:
    """Gives each sink its records, in the order given, and raises behind the last what one of them has raised.

    A function that raises is not called with the rest of its own records.
    """
    with contextlib.ExitStack() as stack:
        # What is put on it last is done first.
        for node, its_records in reversed(list(records)):
            stack.callback(_give, node.sink, its_records)


class SinkRecords:
    """What has come out for each sink, by the checkpoint that it belongs to; an `OutputListener`.

    What is for sinks with two phases is ``staged`` when its barrier comes.
    """

    def __init__(self, graph: JobGraph, listener: OutputListener | None, staged: StagedSinks, attempt_id: str) -> None:
        self._sinks = graph.sinks
        self._staged = staged
        self._attempt_id = attempt_id
        self._listener = listener
        self._records: list[list[Any]] = [[] for _ in graph.sinks]
        self._cut: dict[int, list[list[Any]]] = {}

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        """Keeps the records."""
        self._records[sink_index] += batch.records
        if self._listener is not None:
            self._listener.on_records(sink_index, batch)

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        """Sinks are told nothing of time."""
        if self._listener is not None:
            self._listener.on_time(sink_index, element)

    def cut(self, checkpoint_id: int) -> None:
        """What came out so far belongs to that checkpoint; what comes now, to a later one."""
        for index, records in enumerate(self._records):
            if index in self._staged:
                self._staged.stage(index, records, checkpoint_id, self._attempt_id)
                self._records[index] = []
        pieces = self._cut.setdefault(checkpoint_id, [[] for _ in self._sinks])
        for piece, records in zip(pieces, self._records, strict=True):
            piece += records
        self._records = [[] for _ in self._sinks]

    def taken(self, checkpoint_id: int) -> list[tuple[SinkNode, Sequence[Any]]]:
        """The records of each sink that belong to a checkpoint or to one before it, in order."""
        pieces = [self._cut.pop(known) for known in sorted(self._cut) if known <= checkpoint_id]
        return [
            (sink, [record for piece in pieces for record in piece[index]])
            for index, sink in enumerate(self._sinks)
            if index not in self._staged
        ]


def _give(sink: Any, records: Sequence[Any]) -> None:
    if callable(sink):
        for record in records:
            sink(record)
    else:
        sink.extend(records)
