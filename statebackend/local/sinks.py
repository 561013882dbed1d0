"""The sinks of a local job: functions called with each record, lists that records are added to, and `RecordSink`s.

A function or a list has one phase: it receives the records of an epoch once, after the checkpoint. If one raises, the
others still get their records.

A `RecordSink` has two phases: records are staged at a barrier and committed when its checkpoint completes. A checkpoint
stores all that was staged up to its barrier and not committed (`sink_committables`), so the records of a failed
checkpoint are committed with the next one, and a crash before the commit leaves it to the next start.

    committables := count epoch*        count is 4 bytes, big-endian
    epoch        := id length bytes     of 8, 4 and length bytes: the id for `stage_records`, and what it returned

    00000001 0000000000000007 00000002 6f6b      epoch 7, for which the sink returned "ok"
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.local.network.channel import RecordBatch
from statebackend.local.network.subtasks import OutputListener
from statebackend.streaming.metrics import SinkMetrics
from statebackend.streaming.runtime.job_sinks import JobSinks, no_sink
from statebackend.streaming.sink import RecordSink, RollbackSink, SinkError
from statebackend.streaming.stream_graph import JobGraph, SinkNode
from statebackend.streaming.time.watermark_generators import WatermarkElement

_COUNT: Final = struct.Struct(">I")
_EPOCH: Final = struct.Struct(">QI")
_ADVICE: Final = (
    "pass a list, which is added to, a function, which is called with each record, or a RecordSink "
    "(statebackend.streaming.sink), which has two phases"
)


def encode_committables(staged: Mapping[int, bytes]) -> bytes:
    """Encode committables by epoch."""
    parts = [_COUNT.pack(len(staged))]
    for epoch_id, committable in sorted(staged.items()):
        parts += [_EPOCH.pack(epoch_id, len(committable)), committable]
    return b"".join(parts)


def decode_committables(data: bytes) -> dict[int, bytes]:
    """Decode committables by epoch; raises `SinkError` for other bytes."""
    try:
        [count] = _COUNT.unpack_from(data)
        place, staged = _COUNT.size, dict[int, bytes]()
        for _ in range(count):
            epoch_id, length = _EPOCH.unpack_from(data, place)
            place += _EPOCH.size
            if length > len(data) - place:
                raise SinkError(f"the committables of a sink are damaged: epoch {epoch_id} is cut off")
            staged[epoch_id] = data[place : place + length]
            place += length
    except struct.error as error:
        raise SinkError(f"the committables of a sink are damaged: {error}") from error
    if place != len(data):
        raise SinkError(f"the committables of a sink are damaged: they end at byte {place} of {len(data)}")
    return staged


class StagedSinks(JobSinks):
    """The `RecordSink`s of a job by uid; raises `JobDefinitionError` if two of them name the same place."""

    def __init__(self, graph: JobGraph) -> None:
        super().__init__({node.uid: node.sink for node in graph.sinks if isinstance(node.sink, RecordSink)})
        self._staged: dict[str, dict[int, bytes]] = {uid: {} for uid in self.by_uid}

    @property
    def rollback_sinks(self) -> Sequence[RollbackSink]:
        """The sinks that can hide committed records when the job rolls back."""
        return [sink for sink in self.by_uid.values() if isinstance(sink, RollbackSink)]

    def restore(self, latest: CheckpointMetadata | None, job_id: str) -> None:
        """Repeat the commit of a checkpoint, then remove what later attempts staged."""
        if latest is not None:
            self.commit_again(latest)
        self.recover(None if latest is None else latest.checkpoint_id, job_id)

    def stage_records(self, uid: str, records: Sequence[Any], checkpoint_id: int, attempt_id: str) -> None:
        if records:
            self._staged[uid][checkpoint_id] = self.by_uid[uid].stage_records(records, checkpoint_id, attempt_id)

    def committables(self, checkpoint_id: int) -> dict[str, bytes]:
        """What a checkpoint has to commit, by uid; sinks without staged records are left out."""
        made = {}
        for uid, staged in self._staged.items():
            due = {epoch_id: one for epoch_id, one in staged.items() if epoch_id <= checkpoint_id}
            if due:
                made[uid] = encode_committables(due)
        return made

    def commit_committable(self, uid: str, epoch_id: int, committable: bytes) -> None:
        for staged_id, staged in decode_committables(committable).items():
            self.by_uid[uid].commit(staged_id, staged)
            self._staged[uid].pop(staged_id, None)


def check_sinks(graph: JobGraph) -> None:
    """Raises `JobDefinitionError` for an object that is not a sink, and for two sinks of the same place."""
    for node in graph.sinks:
        is_plain = callable(node.sink) or callable(getattr(node.sink, "extend", None))
        # A class is callable and has the methods of its instances, but its records would be lost.
        if isinstance(node.sink, type) or (not is_plain and not isinstance(node.sink, RecordSink)):
            raise no_sink(node.sink, _ADVICE)
    StagedSinks(graph)


def give_to_sinks(records: Iterable[tuple[SinkNode, Sequence[Any]]]) -> None:
    """Give each sink its records, in this order. An exception of one is raised after the others have theirs.

    A function that raises is not called with the rest of its records.
    """
    with contextlib.ExitStack() as stack:
        for node, its_records in reversed(list(records)):
            stack.callback(_give, node.sink, its_records)


class SinkRecords:
    """The results for each sink, by the checkpoint that they belong to; an `OutputListener` that calls another one."""

    def __init__(self, graph: JobGraph, listener: OutputListener | None, staged: StagedSinks, attempt_id: str) -> None:
        self._sinks = graph.sinks
        self._staged = staged
        self._attempt_id = attempt_id
        self._listener = listener
        self._records: list[list[Any]] = [[] for _ in graph.sinks]
        self._cut: dict[int, list[list[Any]]] = {}
        self._counts: dict[int, list[int]] = {}

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        self._records[sink_index] += batch.records
        if self._listener is not None:
            self._listener.on_records(sink_index, batch)

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        if self._listener is not None:
            self._listener.on_time(sink_index, element)

    def cut(self, checkpoint_id: int) -> None:
        """Assign the results since the last cut to a checkpoint; a `RecordSink` stages them."""
        self._counts[checkpoint_id] = list(map(len, self._records))
        for node, records in zip(self._sinks, self._records, strict=True):
            if node.uid in self._staged.by_uid:
                self._staged.stage_records(node.uid, records, checkpoint_id, self._attempt_id)
        pieces = self._cut.setdefault(checkpoint_id, [[] for _ in self._sinks])
        for node, piece, records in zip(self._sinks, pieces, self._records, strict=True):
            if node.uid not in self._staged.by_uid:
                piece += records
        self._records = [[] for _ in self._sinks]

    def taken(self, checkpoint_id: int) -> list[tuple[SinkNode, Sequence[Any]]]:
        """Take the results of functions and lists up to a checkpoint, in order."""
        pieces = [self._cut.pop(known) for known in sorted(self._cut) if known <= checkpoint_id]
        return [
            (sink, [record for piece in pieces for record in piece[index]])
            for index, sink in enumerate(self._sinks)
            if sink.uid not in self._staged.by_uid
        ]

    def sink_metrics(self, checkpoint_id: int) -> Mapping[str, SinkMetrics]:
        """Return what each sink received up to a checkpoint, since the call before."""
        counts = [self._counts.pop(known) for known in sorted(self._counts) if known <= checkpoint_id]
        return {sink.uid: SinkMetrics(sum(one[index] for one in counts)) for index, sink in enumerate(self._sinks)}


def _give(sink: Any, records: Sequence[Any]) -> None:
    if callable(sink):
        for record in records:
            sink(record)
    else:
        sink.extend(records)
