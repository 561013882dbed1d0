"""A subtask of an operator in this process, as the work of its place in the network: open for the whole run.

At a barrier its state is frozen and it goes on; what was frozen is handed to the run, which has it written and
acknowledges it (`SnapshotWork`). What user functions see of state is what the backends promise: a value that was
changed and not updated is as it was stored, and what is restored is migrated when the subtask is opened.

Where records of an epoch are to be in order they wait here, until time moves or a barrier comes.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, evolve, field

from statebackend.checkpoint.barriers.elements import AbortReason
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.checkpoint.state_handles import SubtaskState
from statebackend.local.channel_state import ChannelStateParts
from statebackend.local.inputs import LocalStream
from statebackend.local.network.channel import RecordBatch, SubtaskOutput
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.local.operator import LocalOperator
from statebackend.local.source import Chain
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.progress import ProgressListener
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.metrics import SubtaskBarriers
from statebackend.streaming.operators.operator import Emission, ObjectBatch
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.row_writer import RowEncoder
from statebackend.streaming.runtime.restore_plan import SubtaskRestore
from statebackend.streaming.runtime.subtask import FrozenSubtask, OpenedSubtask, OperatorParts, Subtask, SubtaskEpoch
from statebackend.streaming.stream_graph import StreamEdge
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark

__all__ = ["CurrentEpoch", "LocalSubtask", "SnapshotWork"]


@define
class CurrentEpoch:
    """The epoch that all subtasks are in, and the processing time in milliseconds."""

    epoch_id: int = -1
    processing_time_ms: int = 0

    def now_ms(self) -> int:
        """The processing time."""
        return self.processing_time_ms


@define(eq=False)
class SnapshotWork:
    """A checkpoint of a subtask that is to be written, on any thread, and then to be acknowledged, on that of the run.

    ``frozen`` is its state, None if it has none; ``write_channels`` writes what its channels add.
    """

    subtask: LocalSubtask
    capture: SubtaskCapture
    frozen: FrozenSubtask | None
    write_channels: Callable[[], ChannelStateParts]
    _channels: ChannelStateParts = field(factory=ChannelStateParts, init=False)

    @property
    def checkpoint_id(self) -> int:
        """The checkpoint that it is of."""
        return self.capture.checkpoint_id

    @property
    def task(self) -> TaskId:
        """Whose it is."""
        return self.subtask.task

    def write(self) -> None:
        """Writes the files; from the return on they are durable. Raises what the storage and the serializers raise."""
        if self.frozen is not None:
            self.frozen.write()
        self._channels = self.write_channels()

    def cancel(self) -> None:
        """Nobody waits for it any more."""
        if self.frozen is not None:
            self.frozen.cancel()

    @property
    def left_behind(self) -> Sequence[SubtaskState]:
        """The state, where what was in flight could not be written behind it."""
        return () if self.frozen is None or self.frozen.snapshot is None else (self.frozen.snapshot.state,)

    def acknowledgement(self, of_nothing: Callable[[TaskId, int], Acknowledgement]) -> Acknowledgement:
        """What is acknowledged when it is written; ``of_nothing`` makes that of a task without state."""
        if self.frozen is None:
            made = of_nothing(self.task, self.checkpoint_id)
        else:
            made = self.subtask.acknowledged(self.frozen)
        made = evolve(made, metrics={**made.metrics, **self._barriers.to_metrics()})
        inputs, outputs = self._channels.input_channels, self._channels.output_channels
        if inputs is None and outputs is None:
            return made
        return evolve(made, state=evolve(made.state, input_channels=inputs, output_channels=outputs))

    @property
    def _barriers(self) -> SubtaskBarriers:
        metrics = self.capture.metrics
        return SubtaskBarriers(
            is_unaligned=self.capture.is_unaligned,
            start_delay_ms=metrics.start_delay_ms,
            alignment_ms=metrics.alignment_ms,
            capture_ms=metrics.capture_ms,
            in_flight_bytes=self._channels.in_flight_bytes,
        )


@define(kw_only=True, eq=False)
class LocalSubtask:
    """See the module. ``restore`` is what it begins from.

    ``snapshots`` is told what the channels add to a checkpoint, with the snapshot that is to be written, None without
    state; ``aborted`` of a checkpoint that barriers give up, and why.
    """

    operator: LocalOperator
    index: int
    restore: SubtaskRestore
    epoch: CurrentEpoch
    output: SubtaskOutput
    local_directory: str
    has_time: bool
    parts: Callable[[LocalOperator], OperatorParts]
    make_function: Callable[[], Any]
    snapshots: Callable[[LocalSubtask, SubtaskCapture, FrozenSubtask | None], None]
    aborted: Callable[[LocalSubtask, int, AbortReason], None]
    progress: ProgressListener
    chain: Chain = field(init=False)
    """What stands behind the operator; it is set by whoever builds the network."""
    watermark_ms: int = MIN_TIMESTAMP
    """What the operator was told last, or begins with when it is opened."""
    restore_reports: Sequence[StateRestoreReport] = field(default=(), init=False)
    """What became of each restored keyed state; complete when it is closed."""
    operator_state_restore_reports: Sequence[StateRestoreReport] = field(default=(), init=False)
    """What became of each restored operator state."""
    _opened: OpenedSubtask | None = field(default=None, init=False)
    _life: contextlib.ExitStack = field(factory=contextlib.ExitStack, init=False)
    _to_order: list[RecordBatch] = field(factory=list, init=False)
    _before_keys: list[RecordBatch] = field(factory=list, init=False)
    _emitted: list[Emission | Watermark] = field(factory=list, init=False)
    records_out: Counter[OutputTag[Any] | None] = field(factory=Counter, init=False)
    """The rows of each output since the operator was opened."""
    _frozen: dict[int, FrozenSubtask] = field(factory=dict, init=False)

    @property
    def holds_watermarks(self) -> bool:
        """Whether the operator sends watermarks itself; one that is not open yet holds none."""
        return self._opened is not None and self._opened.holds_watermarks

    @property
    def task(self) -> TaskId:
        """What the coordinator knows it by."""
        return TaskId(self.operator.uid, self.index)

    def begin_at(self, watermark_ms: int) -> None:
        """Begins with a watermark that the operator was told before, in another run."""
        self.watermark_ms = watermark_ms

    def process(self, batch: RecordBatch) -> None:
        """Takes records, or lets them wait for those that are to come before them, or for the types of the keys."""
        if self.operator.is_ordered:
            self._to_order.append(batch)
        elif self._open_if_possible():
            self._process(batch)
        else:
            self._before_keys.append(batch)

    @property
    def has_records_to_order(self) -> bool:
        """Whether records wait to be sorted, and can be processed."""
        return bool(self._to_order) and self._open_if_possible()

    def advance_watermark(self, timestamp_ms: int) -> None:
        """Fires what is due by then, and tells the operator."""
        self.process_ordered()
        is_open = self._open_if_possible()
        self.watermark_ms = timestamp_ms
        if is_open:
            self._tell(lambda opened: opened.advance_watermark(timestamp_ms))

    def advance_processing_time(self) -> None:
        """Fires what is due by the clock."""
        if self._open_if_possible():
            self._tell(lambda opened: opened.advance_processing_time())

    @property
    def holds_back_records(self) -> bool:
        """Whether records wait for the types of the keys, in no state."""
        return self.operator.key_serializer is None and bool(self._before_keys or self._to_order)

    def check_can_be_snapshotted(self) -> None:
        """Raises `JobDefinitionError` if records would be lost, since nothing has told the types of the keys."""
        if self.holds_back_records:
            raise JobDefinitionError(
                f"operator {self.operator.uid!r}: it was broadcast records before any record told the types of its "
                f"keys, without which it has no state to keep them in; declare the schema of a keyed input"
            )

    def snapshot(self, checkpoint_id: int) -> None:
        """Freezes the state; a subtask that cannot be open has none."""
        if not self._open_if_possible():
            return
        self.process_ordered()
        self._tell(lambda opened: opened.prepare_snapshot())
        self._tell(lambda opened: self._frozen.update({checkpoint_id: opened.freeze(checkpoint_id)}))

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        """Hands over what was frozen, now that nothing on its way is missing."""
        self.snapshots(self, capture, self._frozen.pop(capture.checkpoint_id, None))

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        """Gives up what was frozen."""
        self.cancel_snapshot(checkpoint_id)
        self.aborted(self, checkpoint_id, reason)

    def cancel_snapshot(self, checkpoint_id: int) -> None:
        """Nobody waits for that checkpoint any more."""
        frozen = self._frozen.pop(checkpoint_id, None)
        if frozen is not None:
            frozen.cancel()

    def acknowledged(self, frozen: FrozenSubtask) -> Acknowledgement:
        """What is acknowledged of a snapshot that is written, while the subtask is open."""
        opened = self._opened
        assert opened is not None
        self._note_reports(opened)
        return opened.acknowledged(frozen)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint that it has acknowledged is complete."""
        if self._opened is not None:
            self._opened.notify_checkpoint_complete(checkpoint_id)

    def finish(self) -> None:
        """Closes it behind the last record of the run; raises what the function raises then."""
        if self._opened is not None:
            self._note_reports(self._opened)
            self._opened = None
            self._life.close()

    def close(self) -> None:
        """Gives up what is open."""
        with contextlib.suppress(Exception, GeneratorExit):
            self._close_with(GeneratorExit())

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        """Takes what the operator emits, whose `Emitter` it is; it goes on when the call has returned."""
        if rows:
            self.records_out[tag] += len(rows)
            self._emitted.append(Emission(tag, rows, timestamps))

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Takes a watermark that the operator has held back."""
        self._emitted.append(Watermark(timestamp_ms))

    @property
    def side_outputs(self) -> frozenset[OutputTag[Any]]:
        """The side outputs that somebody reads."""
        return frozenset(tag for tag in self.operator.outputs if tag is not None)

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        """What is done to the rows of an output when they are emitted."""
        return self.operator.encoder(tag)

    def _process(self, batch: RecordBatch) -> None:
        records = ObjectBatch(batch.records, batch.keys, batch.key_groups, batch.timestamps)
        self._tell(lambda opened: opened.process_batch(batch.input_index, records))

    def process_ordered(self) -> None:
        """Processes the records that wait to be sorted."""
        if not self._to_order or not self._open_if_possible():
            return
        waiting, self._to_order = self._to_order, []
        for input_index in self.operator.node.input_order:
            of_input = [one for one in waiting if one.input_index == input_index]
            if not of_input:
                continue
            batch = ObjectBatch(
                [record for one in of_input for record in one.records],
                [key for one in of_input for key in one.keys],
                [key_group for one in of_input for key_group in one.key_groups],
                [time_ms for one in of_input for time_ms in one.timestamps or ()] if self.has_time else None,
            )
            ordered = self.operator.in_order(input_index, batch)
            self._process(
                RecordBatch(input_index, ordered.records, ordered.timestamps, ordered.keys, ordered.key_groups)
            )

    def _tell(self, call: Callable[[OpenedSubtask], None]) -> None:
        """Calls the operator and sends what it emits; what it raises is told as closing it makes of it."""
        opened = self._opened
        assert opened is not None
        try:
            call(opened)
        except BaseException as error:
            with contextlib.suppress(Exception):
                self._send_emitted()
            self._close_with(error)
            raise
        self._send_emitted()

    def _send_emitted(self) -> None:
        emitted, self._emitted = self._emitted, []
        for one in emitted:
            if isinstance(one, Watermark):
                self.output.send_time(one)
            else:
                self._send(one)

    def _send(self, emission: Emission) -> None:
        rows, timestamps = emission.rows, emission.timestamps
        if timestamps is None:
            timestamps = [None] * len(rows)
        stream = LocalStream(self.operator.emitted_rows(emission.tag, rows), timestamps if self.has_time else None)
        self.chain.send(StreamEdge(self.operator.node, emission.tag), stream)

    def _close_with(self, error: BaseException) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self._note_reports(opened)
            self._life.__exit__(type(error), error, error.__traceback__)

    def _note_reports(self, opened: OpenedSubtask) -> None:
        if self.restore.is_restored:
            self.restore_reports = opened.restore_reports
            self.operator_state_restore_reports = opened.operator_state_restore_reports

    def _open_if_possible(self) -> bool:
        """Opens the subtask unless it is; returns whether it is open: without the types of its keys it cannot be."""
        if self._opened is None and self.operator.key_serializer is not None:
            subtask = Subtask(
                self.parts(self.operator),
                SubtaskEpoch(
                    subtask_index=self.index,
                    epoch_id=self.epoch.epoch_id,
                    processing_time_ms=self.epoch.processing_time_ms,
                    attempt_id="0",
                    restore=self.restore,
                    local_directory=self.local_directory,
                    previous_watermark_ms=self.watermark_ms,
                    progress=self.progress,
                ),
            )
            self._life = contextlib.ExitStack()
            opening = subtask.opened(self.make_function, self, self.epoch.now_ms)
            self._opened = self._life.enter_context(opening)
            held, self._before_keys = self._before_keys, []
            for batch in held:
                self._process(batch)
        return self._opened is not None
