"""Networks of operators that only store records, driven by a script, checkpointed in any mode, and rescaled.

    sources s0 (s1)  ->  a, keyed  ->  b, keyed by half as many keys  ->  the end

A record is (source, position in its feed, key). Subtasks store records by key. A key belongs to a subtask by its key
group. A second source is another input of ``a``, a union with the first, or broadcast. `Run.checkpoints` are the
completed checkpoints of a run: positions of the sources, stored records, records in flight, and output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, evolve, field, frozen

from statebackend.checkpoint.barriers.checkpointing_mode import CheckpointingMode
from statebackend.checkpoint.barriers.elements import AbortReason, CheckpointBarrier
from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.state_handles import OperatorState, SubtaskState
from statebackend.local.channel_restore import restore_channels
from statebackend.local.channel_state import (
    ChannelsOfCheckpoint,
    decode_elements,
    decode_meta,
    encode_part,
    forms_of_operators,
)
from statebackend.local.graph import rows_of
from statebackend.local.network.channel import (
    CancelledCheckpoint,
    Channel,
    InFlight,
    RecordBatch,
    SubtaskOutput,
)
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.network.network import Network, Shuffled
from statebackend.local.network.subtasks import OperatorSubtask, OutputSubtask, SourceSubtask
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.time.operator_watermarks import OperatorWatermarkState
from statebackend.streaming.time.status_watermark_valve import ValveChannel, ValveState
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

KEYS: Final = 8
SCHEMA: Final = parsed_schema("source int, place int, key int", "test")
FORMS: Final = forms_of_operators({"a": [SCHEMA, SCHEMA], "b": [SCHEMA]})
END: Final = TaskId("end", 0)
ROW: Final = type(rows_of([(0, 0, 0)], SCHEMA)[0])
"""The class of the records."""

Piece = tuple[str, int]
"""One item of a feed: ("record", key), ("time", 0), or (a status, 0)."""


def owner(key: int, parallelism: int, keys: int) -> int:
    """The subtask of a key, assigned as for a key group."""
    return key * parallelism // keys


@frozen(kw_only=True)
class Shape:
    """A graph and its settings. ``second`` is the role of the second source for ``a``, or None if there is none."""

    second: str | None = None
    has_idle: bool = False
    capacity: int = 2
    mode: CheckpointingMode = CheckpointingMode.ALIGNED


@frozen(kw_only=True)
class Checkpoint:
    """Everything that a run of any parallelism restores: positions by source, records by operator and key."""

    parallelism: int = 1
    positions: Mapping[int, int] = field(factory=dict)
    sent: Mapping[int, tuple[int, WatermarkStatus]] = field(factory=dict)
    memories: Mapping[str, Mapping[int, Sequence[Any]]] = field(factory=dict)
    broadcast: Sequence[Any] = ()
    captures: Mapping[TaskId, SubtaskCapture] = field(factory=dict)
    came_out: Sequence[Any] = ()


@define
class Source:
    """A source. The next run continues its records."""

    number: int
    output: SubtaskOutput
    send: Callable[[Any, int], None]
    feed: Sequence[Piece]
    position: int
    now_ms: int = 0

    @property
    def watermark_ms(self) -> int:
        return self.output.watermark_ms

    @property
    def is_idle(self) -> bool:
        return self.output.status.is_idle

    def end_of_input(self) -> None:
        self.output.send_time(WatermarkStatus.ACTIVE)
        self.output.send_time(END_OF_TIME)

    def channels(self) -> Sequence[Any]:
        return ()

    def restore(self, watermark_ms: int, status: WatermarkStatus, channels: Sequence[Any]) -> None:
        self.output.restore(watermark_ms, status)

    def read(self) -> None:
        kind, value = self.feed[self.position]
        if kind == "record":
            self.send(tuple.__new__(ROW, (self.number, self.position, value)), self.output.watermark_ms)
        elif kind == "time":
            # A watermark is computed from the position in the feed, so a restored run sends the same one.
            self.output.send_time(Watermark(10 * self.position))
        else:
            self.output.send_time(WatermarkStatus(kind))
        self.position += 1


@define
class Work:
    """Stores records by key and forwards them."""

    uid: str
    index: int
    output: SubtaskOutput
    send: Callable[[Any, int], None]
    run: Run
    watermark_ms: int = MIN_TIMESTAMP
    holds_watermarks: bool = False
    memory: dict[int, list[Any]] = field(factory=dict)
    broadcast: list[Any] = field(factory=list)
    frozen: dict[int, tuple[dict[int, list[Any]], list[Any], int]] = field(factory=dict)

    def process(self, batch: RecordBatch) -> None:
        for row in batch.records:
            if batch.input_index == 1 and self.run.shape.second == "broadcast":
                self.broadcast.append(row)
                continue
            key = row.key if self.uid == "a" else row.key // 2
            keys = KEYS if self.uid == "a" else KEYS // 2
            assert owner(key, self.run.parallelism, keys) == self.index
            # Records of idle inputs may be late, because watermarks do not wait for them. Records that are processed
            # twice may be late too.
            is_waited_for = not self.run.shape.has_idle and self.run.shape.mode.is_exactly_once
            assert not is_waited_for or self.watermark_ms <= batch.sender_watermark_ms, "a record in time is late"
            if self.run.shape.second is None and self.uid == "a" and self.run.shape.mode.is_exactly_once:
                assert self.watermark_ms == self.run.time_of(row), "a record is not behind the watermarks it was"
            self.memory.setdefault(key, []).append(row)
            self.send(row, self.watermark_ms)

    def advance_watermark(self, timestamp_ms: int) -> None:
        assert timestamp_ms > self.watermark_ms, "time goes back"
        self.watermark_ms = timestamp_ms

    def change_status(self, status: WatermarkStatus) -> None:
        self.output.send_time(status)

    def end_input(self) -> None: ...

    def advance_processing_time(self) -> None:
        raise NotImplementedError

    def snapshot(self, checkpoint_id: int) -> None:
        memory = {key: list(rows) for key, rows in self.memory.items()}
        self.frozen[checkpoint_id] = (memory, list(self.broadcast), self.watermark_ms)

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        self.run.note(TaskId(self.uid, self.index), capture.checkpoint_id, capture)

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        self.run.aborted.append((checkpoint_id, reason))


class Run:
    """One run of a network, which may start from a checkpoint."""

    def __init__(
        self, shape: Shape, feeds: Sequence[Sequence[Piece]], parallelism: int, seed: int, begin: Checkpoint
    ) -> None:
        self.shape = shape
        self.parallelism = parallelism
        self.feeds = feeds
        self.now_ms = 0
        self.came_out: list[Any] = list(begin.came_out)
        self.aborted: list[tuple[int, AbortReason]] = []
        self.in_flight_count = 0
        self._captures: dict[int, dict[TaskId, SubtaskCapture]] = {}
        self._positions: dict[int, dict[int, int]] = {}
        self._sent: dict[int, dict[int, tuple[int, WatermarkStatus]]] = {}
        self._outs: dict[int, list[Any]] = {}
        self._scheduler = Shuffled(seed)
        self._fed = [0] * len(feeds)
        self._build(begin)
        self._restore(begin)

    def time_of(self, row: Any) -> int:
        """The last watermark before a record of the only source. An idle source drops watermarks."""
        time_ms, is_idle = MIN_TIMESTAMP, False
        for place, (kind, _) in enumerate(self.feeds[row.source][: row.place]):
            if kind == "time" and not is_idle:
                time_ms = max(time_ms, 10 * place)
            elif kind in ("idle", "active"):
                is_idle = kind == "idle"
        return time_ms

    def feed(self, source: int, count: int = 1) -> None:
        """Add records to a source."""
        of_source = self.sources[source]
        for _ in range(count):
            if of_source.work.position + of_source.unread < len(self.feeds[source]):
                of_source.feed(Source.read)

    def trigger(self, checkpoint_id: int, sources: Sequence[int] | None = None, *, is_savepoint: bool = False) -> None:
        """Let sources send a barrier; all by default."""
        barrier = self.shape.mode.barrier(checkpoint_id, self.now_ms, is_savepoint=is_savepoint)
        for number, source in enumerate(self.sources):
            if sources is None or number in sources:
                source.trigger(barrier)

    def cancel(self, checkpoint_id: int, source: int) -> None:
        """Let a source cancel a checkpoint."""
        self.sources[source].output.send_to_all(CancelledCheckpoint(checkpoint_id))

    def step(self, count: int) -> None:
        """Do this many moves, or move until no move is possible."""
        for _ in range(count):
            move = self._scheduler.choose(self.network.moves())
            if move is None:
                return
            move.make()

    def finish(self, checkpoint_id: int) -> None:
        """Read all remaining records up to the final watermark, and take a checkpoint at the end."""
        for number, source in enumerate(self.sources):
            self.feed(number, len(self.feeds[number]))
            source.feed_end()
        self.step(1 << 20)
        self.trigger(checkpoint_id)
        self.now_ms += 1000
        self.network.run()

    def note(self, subtask: TaskId, checkpoint_id: int, capture: SubtaskCapture) -> None:
        assert subtask not in self._captures.setdefault(checkpoint_id, {})
        self._captures[checkpoint_id][subtask] = capture
        parts = (*capture.inputs.values(), *capture.outputs.values())
        self.in_flight_count += sum(isinstance(one, RecordBatch) for part in parts for one in part)
        if not self.shape.mode.may_be_unaligned:
            assert not parts

    @property
    def checkpoints(self) -> dict[int, Checkpoint]:
        """Completed checkpoints by id."""
        return {
            one: self._checkpoint(one)
            for one in sorted(self._outs)
            if len(self._captures.get(one, {})) == len(self.works)
            and len(self._positions.get(one, {})) == len(self.sources)
        }

    def _checkpoint(self, checkpoint_id: int) -> Checkpoint:
        memories: dict[str, dict[int, Sequence[Any]]] = {"a": {}, "b": {}}
        copies = []
        for work in self.works:
            memory, broadcast, _ = work.frozen[checkpoint_id]
            assert not memories[work.uid].keys() & memory.keys()
            memories[work.uid].update(memory)
            if work.uid == "a":
                copies.append(broadcast)
        if self.shape.mode.is_exactly_once:
            assert all(one == copies[0] or sorted(one) == sorted(copies[0]) for one in copies), "copies differ"
        return Checkpoint(
            parallelism=self.parallelism,
            positions=self._positions[checkpoint_id],
            sent=self._sent[checkpoint_id],
            memories=memories,
            broadcast=copies[0],
            captures=self._captures[checkpoint_id],
            came_out=self._outs[checkpoint_id],
        )

    def _build(self, begin: Checkpoint) -> None:
        shape, parallelism = self.shape, self.parallelism
        outputs: dict[TaskId, SubtaskOutput] = {}
        self.works: list[Work] = []
        self.sources: list[SourceSubtask[Source]] = []
        for number, feed in enumerate(self.feeds):
            name = TaskId(f"s{number}", 0)
            output = outputs[name] = SubtaskOutput()
            is_broadcast = number == 1 and shape.second == "broadcast"
            input_index = number if shape.second in ("input", "broadcast") else 0
            send = partial(self._send, output, "a", input_index, is_broadcast)
            work = Source(number, output, send, feed, begin.positions.get(number, 0))
            self.sources.append(SourceSubtask(name, work, output))
            self._watch_barriers(number, work)
        operators = []
        for uid, senders in (("a", list(outputs)), ("b", [TaskId("a", index) for index in range(parallelism)])):
            for index in range(parallelism):
                own = TaskId(uid, index)
                channels = [self._channel(sender, own, outputs) for sender in senders]
                output = outputs[own] = SubtaskOutput()
                send = partial(self._send, output, "b" if uid == "a" else "end", 0, False)
                work = Work(uid, index, output, send, self)
                inputs = 2 if uid == "a" and shape.second in ("input", "broadcast") else 1
                operators.append(OperatorSubtask(own, channels, inputs, work, output, shape.mode, lambda: self.now_ms))
                self.works.append(work)
        last = [self._channel(TaskId("b", index), END, outputs) for index in range(parallelism)]
        output = OutputSubtask(END, last, 1, self, shape.mode)
        original = output.on_trigger

        def on_trigger(barrier: CheckpointBarrier) -> Any:
            self._outs[barrier.checkpoint_id] = list(self.came_out)
            return original(barrier)

        output.on_trigger = on_trigger  # type: ignore[method-assign]
        self.network = Network(self.sources, operators, output, self._scheduler)
        self._outputs = outputs

    def on_records(self, sink_index: int, batch: RecordBatch) -> None:
        self.came_out += batch.records

    def on_time(self, sink_index: int, element: WatermarkElement) -> None:
        """Sinks ignore watermarks."""

    def _channel(self, sender: TaskId, reader: TaskId, outputs: Mapping[TaskId, SubtaskOutput]) -> Channel:
        number = int(sender.operator_uid[1:]) if sender.operator_uid[0] == "s" else 0
        inputs = (number,) if self.shape.second in ("input", "broadcast") else (0,)
        is_broadcast = number == 1 and self.shape.second == "broadcast"
        channel = Channel(sender, reader, inputs, self.shape.capacity, may_be_overtaken=not is_broadcast)
        outputs[sender].channels.append(channel)
        return channel

    def _send(self, output: SubtaskOutput, to: str, input_index: int, is_broadcast: bool, row: Any, at_ms: int) -> None:
        keys = {"a": KEYS, "b": KEYS // 2}.get(to)
        key = row.key if to == "a" else row.key // 2
        for channel in output.channels:
            if is_broadcast or keys is None or channel.reader.subtask_index == owner(key, self.parallelism, keys):
                channel.put(RecordBatch(input_index, [row], [None], sender_watermark_ms=at_ms))

    def _watch_barriers(self, number: int, source: Source) -> None:
        original = source.output.send_barrier

        def send_barrier(barrier: CheckpointBarrier) -> Any:
            one = barrier.checkpoint_id
            self._positions.setdefault(one, {})[number] = source.position
            status = source.output.status
            time_ms = source.output.watermark_ms
            self._sent.setdefault(one, {})[number] = (
                MIN_TIMESTAMP if time_ms == END_OF_TIME.timestamp_ms else time_ms,
                status,
            )
            return original(barrier)

        source.output.send_barrier = send_barrier  # type: ignore[method-assign]

    def _restore(self, begin: Checkpoint) -> None:
        if not begin.captures:
            return
        for source in self.sources:
            source.work.restore(*begin.sent[source.work.number], ())
        for work in self.works:
            keys = KEYS if work.uid == "a" else KEYS // 2
            work.memory = {
                key: list(rows)
                for key, rows in begin.memories[work.uid].items()
                if owner(key, self.parallelism, keys) == work.index
            }
            work.broadcast = list(begin.broadcast) if work.uid == "a" else []
        for subtask in self.network.operators:
            state, sent_ms, status = _of_node(begin, subtask)
            subtask.work.watermark_ms = state.watermark_ms
            subtask.watermarks.restore(state, status)
            subtask.output.restore(sent_ms, status)
        self.network.output.restore(self._outputs)
        operators = [OperatorState(uid, uid, KEYS, (SubtaskState(),) * begin.parallelism) for uid in ("a", "b")]
        former = ChannelsOfCheckpoint(
            _in_flight(begin.captures), {one: _read_back(capture).time for one, capture in begin.captures.items()}
        )
        restore_channels(self.network, _Shares(self.parallelism), former, operators, has_time=True)  # type: ignore[arg-type]
        if begin.parallelism == self.parallelism and self.shape.mode.may_be_unaligned:
            for subtask in self.network.operators:
                time = former.times[subtask.task]
                assert subtask.work.watermark_ms == time.own.watermark_ms, "time goes back over a restore"
        self.network.resume()
        self.network.run()
        if not self.shape.has_idle and self.shape.mode.is_exactly_once:
            # All records in flight were taken, so each reader has reached the lowest watermark that its senders sent.
            reached_ms = min(time.sent_watermark_ms for own, time in former.times.items() if own.operator_uid == "a")
            readers = [one for one in self.network.operators if one.task.operator_uid == "b"]
            assert all(one.watermarks.watermark_ms >= reached_ms for one in readers), "time stays behind"


@frozen
class _Shares:
    """The subtasks of records in flight: an `InFlightShares` of these networks."""

    parallelism: int
    operators: Mapping[str, None] = field(factory=lambda: {"a": None, "b": None})

    def shares(self, uid: str, batch: RecordBatch) -> Sequence[RecordBatch]:
        return [
            evolve(batch, records=rows, timestamps=[None] * len(rows))
            for rows in (
                [row for row in batch.records if self._owner(uid, row) == index] for index in range(self.parallelism)
            )
        ]

    def share_of(self, subtask: TaskId, batch: RecordBatch) -> RecordBatch:
        assert {self._owner(subtask.operator_uid, row) for row in batch.records} == {subtask.subtask_index}
        return batch

    def _owner(self, uid: str, row: Any) -> int:
        if uid == "a":
            return owner(row.key, self.parallelism, KEYS)
        return owner(row.key // 2, self.parallelism, KEYS // 2)


def _read_back(capture: SubtaskCapture) -> Any:
    """The event time of captured records, encoded and decoded."""
    meta, _ = encode_part(capture.time, {}, lambda end: "a", FORMS)
    return decode_meta(meta)


def _in_flight(
    captures: Mapping[TaskId, SubtaskCapture],
) -> dict[tuple[TaskId, TaskId], list[InFlight]]:
    found: dict[tuple[TaskId, TaskId], list[InFlight]] = {}
    for own, capture in sorted(captures.items()):
        for way, elements in _through_bytes(own, capture.inputs, is_input=True):
            found[way] = [*elements, *found.get(way, ())]
        for way, elements in _through_bytes(own, capture.outputs, is_input=False):
            found.setdefault(way, []).extend(elements)
    return found


def _through_bytes(
    own: TaskId, channels: Mapping[TaskId, Sequence[InFlight]], *, is_input: bool
) -> Iterator[tuple[tuple[TaskId, TaskId], Sequence[InFlight]]]:
    def reader(end: TaskId) -> str:
        return own.operator_uid if is_input else end.operator_uid

    meta, data = encode_part(None, channels, reader, FORMS)
    for end, elements in decode_elements(decode_meta(meta), data, reader, FORMS).items():
        yield (end, own) if is_input else (own, end), elements


def _of_node(
    begin: Checkpoint, subtask: OperatorSubtask
) -> tuple[OperatorWatermarkState[TaskId], int, WatermarkStatus]:
    """Event time in checkpoint metadata: the earliest of all subtasks of a node."""
    times = [
        _read_back(capture).time
        for own, capture in begin.captures.items()
        if own.operator_uid == subtask.task.operator_uid
    ]
    valves = []
    for index, valve in enumerate(subtask.watermarks.snapshot().inputs):
        of_nodes = [one for time in times for one in time.own.inputs[index].channels]
        valves.append(
            ValveState(
                min(time.own.inputs[index].watermark_ms for time in times),
                tuple(
                    ValveChannel(
                        one.channel,
                        min(of.watermark_ms for of in of_nodes if of.channel.operator_uid == one.channel.operator_uid),
                        all(of.is_idle for of in of_nodes if of.channel.operator_uid == one.channel.operator_uid),
                    )
                    for one in valve.channels
                ),
            )
        )
    is_idle = all(time.sent_status.is_idle for time in times)
    return (
        OperatorWatermarkState(min(time.own.watermark_ms for time in times), tuple(valves)),
        min(time.sent_watermark_ms for time in times),
        WatermarkStatus.IDLE if is_idle else WatermarkStatus.ACTIVE,
    )
