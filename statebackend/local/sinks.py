"""The sinks of a local job: functions called with each record, lists that records are added to, and sinks.

A function or a list has one phase: it receives the records of an epoch once, after the checkpoint. If one raises, the
others still get their records.

A `Sink` has two phases: records are staged at a barrier, as Arrow batches of the declared schema, and committed when
its checkpoint completes. A checkpoint stores all that was staged up to its barrier and not committed, so the records of
a failed checkpoint are committed with the next one, and a crash before the commit leaves it to the next start.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any, Final, Protocol, runtime_checkable

import pyarrow as pa

from statebackend.local.network.channel import RecordBatch
from statebackend.local.network.subtasks import OutputListener
from statebackend.streaming.metrics import SinkMetrics
from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.row_writer import RowWriter
from statebackend.streaming.runtime.job_sinks import JobSinks, SinkAdapter, StagedEpoch, encode_committables, no_sink
from statebackend.streaming.runtime.settings import is_instance_of
from statebackend.streaming.sink import Sink, SinkEpoch
from statebackend.streaming.stream_graph import JobGraph
from statebackend.streaming.time.watermark_generators import WatermarkElement

_ADVICE: Final = (
    "pass a list, which is added to, a function, which is called with each record, or a Sink "
    "(statebackend.connectors), which has two phases"
)


@runtime_checkable
class RecordSink(Protocol):
    """A sink of Python records, for the local runtime only; `SinkAdapter` describes its other methods."""

    def stage_records(self, records: Sequence[Any], epoch_id: int, attempt_id: str) -> bytes:
        """Write records durably where no reader sees them, and return what `commit` needs."""

    def commit(self, epoch_id: int, committable: bytes) -> None: ...
    def abort(self, epoch_id: int, attempt_id: str) -> None: ...
    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None: ...


class LocalSinks(JobSinks):
    """The sinks of a job and their results; an `OutputListener` that passes all results on to ``listener``.

    `by_uid` has the sinks with two phases. ``writers`` convert the records of a `Sink` to its declared schema, by uid.
    Raises `JobDefinitionError` if two sinks name the same place.
    """

    def __init__(
        self,
        graph: JobGraph,
        writers: Mapping[str, RowWriter] | None = None,
        listener: OutputListener | None = None,
    ) -> None:
        sinks = ((node.uid, _sink_of(node.sink)) for node in graph.sinks)
        super().__init__({uid: sink for uid, sink in sinks if sink is not None})
        self._nodes = graph.sinks
        self._writers = writers or {}
        self._listener = listener
        self._batches: list[list[Sequence[Any]]] = [[] for _ in graph.sinks]
        self._results: dict[int, list[list[Any]]] = {}
        self._counts: dict[int, list[int]] = {}
        self._staged: dict[str, dict[int, tuple[SinkEpoch, bytes]]] = {uid: {} for uid in self.by_uid}

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        self._batches[sink_index].append(batch.records)
        if self._listener is not None:
            self._listener.on_records(sink_index, batch)

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        if self._listener is not None:
            self._listener.on_time(sink_index, element)

    def end_epoch(self, checkpoint_id: int, epoch_of: Callable[[str], SinkEpoch]) -> None:
        """Assign the results since the last call to a checkpoint. Sinks with two phases stage them."""
        ended, self._batches = self._batches, [[] for _ in self._nodes]
        if not any(ended):
            return
        self._counts[checkpoint_id] = [sum(map(len, batches)) for batches in ended]
        for node, batches in zip(self._nodes, ended, strict=True):
            if node.uid in self.by_uid:
                self.stage(batches, epoch_of(node.uid))
        self._results[checkpoint_id] = [
            [] if node.uid in self.by_uid else list(chain.from_iterable(batches))
            for node, batches in zip(self._nodes, ended, strict=True)
        ]

    def complete(self, checkpoint_id: int) -> None:
        """Commit what was staged up to a complete checkpoint, and give functions and lists their results.

        An exception of one sink is raised after the others have theirs. A function that raises is not called with the
        rest of its records.
        """
        with contextlib.ExitStack() as stack:
            for sink, records in reversed(self.take_results(checkpoint_id)):
                stack.callback(_give, sink, records)
            self.commit_staged(checkpoint_id)

    def take_results(self, checkpoint_id: int) -> list[tuple[Any, Sequence[Any]]]:
        """Take the results of functions and lists up to a checkpoint, in order."""
        pieces = [self._results.pop(known) for known in sorted(self._results) if known <= checkpoint_id]
        return [
            (node.sink, [record for piece in pieces for record in piece[index]])
            for index, node in enumerate(self._nodes)
            if node.uid not in self.by_uid
        ]

    def take_metrics(self, checkpoint_id: int) -> Mapping[str, SinkMetrics]:
        """Return what each sink received up to a checkpoint, since the call before."""
        counts = [self._counts.pop(known) for known in sorted(self._counts) if known <= checkpoint_id]
        return {node.uid: SinkMetrics(sum(one[index] for one in counts)) for index, node in enumerate(self._nodes)}

    def stage(self, batches: Sequence[Sequence[Any]], epoch: SinkEpoch) -> None:
        """Stage the records of an epoch, if there are any."""
        uid = epoch.lineage.sink_uid
        sink = self.by_uid[uid]
        if not batches:
            return
        if isinstance(sink, SinkAdapter):
            records = list(chain.from_iterable(batches))
            committable: bytes = sink.adapted.stage_records(records, epoch.epoch_id, epoch.attempt_id)
        else:
            writer = self._writers[uid]
            rows = pa.RecordBatchReader.from_batches(writer.schema, _arrow_batches(writer, batches))
            committable = sink.stage(epoch, 0, rows)
            if not committable:
                return
        self._staged[uid][epoch.epoch_id] = epoch, committable

    def committables(self, checkpoint_id: int) -> dict[str, bytes]:
        """What a checkpoint has to commit, by uid; sinks without staged records are left out."""
        made = {}
        for uid in self._staged:
            due = self._due(uid, checkpoint_id)
            if due:
                made[uid] = encode_committables(StagedEpoch(one.epoch_id, one.run_id, [data]) for one, data in due)
        return made

    def commit_staged(self, checkpoint_id: int) -> None:
        """Commit what was staged up to a complete checkpoint."""
        for uid, sink in self.by_uid.items():
            for epoch, committable in self._due(uid, checkpoint_id):
                sink.commit(epoch, [committable])
                del self._staged[uid][epoch.epoch_id]

    def _due(self, uid: str, checkpoint_id: int) -> list[tuple[SinkEpoch, bytes]]:
        return [staged for epoch_id, staged in sorted(self._staged[uid].items()) if epoch_id <= checkpoint_id]


def _arrow_batches(writer: RowWriter, batches: Sequence[Sequence[Any]]) -> Iterator[pa.RecordBatch]:
    """Batches in columns as they are, and the records of others that follow each other together."""
    for is_in_columns, found in groupby(batches, lambda batch: isinstance(batch, Columnar)):
        for part in found if is_in_columns else [list(chain.from_iterable(found))]:
            yield from writer.batches(part.columns if isinstance(part, Columnar) else part)


def _sink_of(given: Any) -> Sink | None:
    if is_instance_of(given, Sink):
        sink: Sink = given
        return sink
    return SinkAdapter(given) if is_instance_of(given, RecordSink) else None


def check_sinks(graph: JobGraph) -> None:
    """Raises `JobDefinitionError` for an object that is not a sink, and for two sinks of the same place."""
    for node in graph.sinks:
        is_plain = callable(node.sink) or callable(getattr(node.sink, "extend", None))
        # A class is callable and has the methods of its instances, but its records would be lost.
        if isinstance(node.sink, type) or (not is_plain and _sink_of(node.sink) is None):
            raise no_sink(node.sink, _ADVICE)
    LocalSinks(graph)


def _give(sink: Any, records: Sequence[Any]) -> None:
    if callable(sink):
        for record in records:
            sink(record)
    else:
        sink.extend(records)
