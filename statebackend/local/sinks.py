"""Sinks with two phases in this process: what came out before a barrier is staged, and committed when it is complete.

What a checkpoint has to commit is all that was staged up to its barrier and not committed yet: what belongs to a
checkpoint that failed is committed with the next one that does not. It stands in the checkpoint (`sink_committables`),
so that whoever dies between the completion and the commit leaves it to the next start.

    committables := count epoch*        count is 4 bytes, big-endian
    epoch        := id length bytes     of 8, 4 and length bytes: the id it was staged with, what `stage_records` gave

    00000001 0000000000000007 00000002 6f6b      epoch 7, of which the sink has said "ok"

The sinks of a job in this process: functions that are called with each record, and lists that are added to.

Such a sink has no two phases: it is told of an epoch once, behind the checkpoint, and keeps what it is given or loses
it. What one of them raises keeps the records from none of the others. Sinks with two phases are in `staged_sinks`; what
is neither is rejected before the first epoch.
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
from statebackend.streaming.sink import RecordSink, RollbackSink, SinkError, sink_identity
from statebackend.streaming.stream_graph import JobGraph, SinkNode
from statebackend.streaming.time.watermark_generators import WatermarkElement

__all__ = ["SinkRecords", "StagedSinks", "check_sinks", "decode_committables", "encode_committables", "give_to_sinks"]


_COUNT: Final = struct.Struct(">I")
_EPOCH: Final = struct.Struct(">QI")


def encode_committables(staged: Mapping[int, bytes]) -> bytes:
    """What was staged, by id, as bytes."""
    parts = [_COUNT.pack(len(staged))]
    for epoch_id, committable in sorted(staged.items()):
        parts += [_EPOCH.pack(epoch_id, len(committable)), committable]
    return b"".join(parts)


def decode_committables(data: bytes) -> dict[int, bytes]:
    """What was staged, by id; raises `SinkError` for bytes that are none."""
    try:
        [count] = _COUNT.unpack_from(data)
        place, staged = _COUNT.size, dict[int, bytes]()
        for _ in range(count):
            epoch_id, length = _EPOCH.unpack_from(data, place)
            place += _EPOCH.size
            if length > len(data) - place:
                raise SinkError(f"the committable of epoch {epoch_id} is cut off")
            staged[epoch_id] = data[place : place + length]
            place += length
    except struct.error as error:
        raise SinkError(f"what a sink has to commit is damaged: {error}") from error
    if place != len(data):
        raise SinkError(f"what a sink has to commit is damaged: it ends at byte {place} of {len(data)}")
    return staged


class _StagedSink:
    """A sink with what it has staged and not committed, in the form that `JobSinks` commits."""

    def __init__(self, sink: RecordSink) -> None:
        self.sink = sink
        self.identity = sink_identity(sink)
        self.staged: dict[int, bytes] = {}

    def stage(self, frame: Any, epoch_id: int, attempt_id: str) -> bytes:
        """Stages records; returns nothing, since what is to be committed is asked for when a checkpoint is stored."""
        self.staged[epoch_id] = self.sink.stage_records(frame, epoch_id, attempt_id)
        return b""

    def committables(self, checkpoint_id: int) -> bytes:
        """What a checkpoint has to commit."""
        return encode_committables({known: one for known, one in self.staged.items() if known <= checkpoint_id})

    def commit(self, epoch_id: int, committable: bytes) -> None:
        """Makes all visible that a checkpoint has to commit."""
        for staged_id, staged in decode_committables(committable).items():
            self.sink.commit(staged_id, staged)
            self.staged.pop(staged_id, None)

    def abort(self, epoch_id: int, attempt_id: str) -> None:
        """Forgets what was staged."""
        if self.staged.pop(epoch_id, None) is not None:
            self.sink.abort(epoch_id, attempt_id)

    def recover(self, last_completed_epoch_id: int | None, job_id: str) -> None:
        """See `RecordSink`."""
        self.sink.recover(last_completed_epoch_id, job_id)


class StagedSinks:
    """Those sinks of a job that have two phases; others are `record_sinks`' business.

    Raises `JobDefinitionError` if two of them say that they write to the same place.
    """

    def __init__(self, graph: JobGraph) -> None:
        self._by_index = {
            index: (node.uid, _StagedSink(node.sink))
            for index, node in enumerate(graph.sinks)
            if isinstance(node.sink, RecordSink)
        }
        self._sinks = JobSinks(dict(self._by_index.values()))

    def __contains__(self, sink_index: object) -> bool:
        return sink_index in self._by_index

    def check_commits(self, metadata: CheckpointMetadata) -> None:
        """Raises `JobRestoreError` if what a checkpoint has to commit is of another sink."""
        self._sinks.check_commits(metadata)

    @property
    def rollback_sinks(self) -> Sequence[RollbackSink]:
        """Those that can hide what they have shown, for a job that goes back."""
        sinks = [staged.sink for _, staged in self._by_index.values()]
        return [sink for sink in sinks if isinstance(sink, RollbackSink)]

    def recover(self, latest: CheckpointMetadata | None, job_id: str) -> None:
        """Commits what a checkpoint has to commit, once more; then removes what later attempts have left."""
        if latest is not None:
            self._sinks.commit_again(latest)
        self._sinks.recover(None if latest is None else latest.checkpoint_id, job_id)

    def stage(self, sink_index: int, records: Sequence[Any], checkpoint_id: int, attempt_id: str) -> None:
        """Stages the records of a sink that came out before a barrier, if there are any."""
        if records:
            self._by_index[sink_index][1].stage(records, checkpoint_id, attempt_id)

    def committables(self, checkpoint_id: int) -> dict[str, bytes]:
        """What a checkpoint has to commit, by uid; sinks that have nothing are left out."""
        made = {uid: sink.committables(checkpoint_id) for uid, sink in self._by_index.values()}
        return {uid: one for uid, one in made.items() if one != _NOTHING}

    def identities(self, committables: Mapping[str, bytes]) -> dict[str, str]:
        """Which sinks those are."""
        return {uid: identity for uid, identity in self._sinks.identities.items() if uid in committables}

    def commit(self, checkpoint_id: int) -> None:
        """Makes visible what a checkpoint that is complete has to commit."""
        self._sinks.commit(checkpoint_id, self.committables(checkpoint_id))


_NOTHING: Final = encode_committables({})


_ADVICE: Final = (
    "pass a list, which is added to, a function, which is called with each record, or a RecordSink "
    "(statebackend.streaming.sink), which has two phases"
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
        self._counts: dict[int, list[int]] = {}

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
        self._counts[checkpoint_id] = list(map(len, self._records))
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
