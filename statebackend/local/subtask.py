"""The operators of a run and their subtasks, which stay open for the whole run.

At a barrier a subtask freezes its state and continues. The run writes what was frozen and acknowledges it. User
functions see of state what they will see in production: a value that was changed without an update is as it was stored,
and restored state is migrated when the subtask opens.

If the records of an epoch have an order, they are buffered until event time advances or a barrier arrives. A subtask
opens when the types of its keys are known, and buffers records until then.
"""

from __future__ import annotations

import contextlib
import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from attrs import define, field

from statebackend.checkpoint.barriers.elements import AbortReason
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, TaskId
from statebackend.local.graph import LocalOperator, LocalStream
from statebackend.local.job_parts import LocalJobParts
from statebackend.local.network.channel import RecordBatch, SubtaskOutput
from statebackend.local.network.channel_barriers import SubtaskCapture
from statebackend.state.backend_parameters import StateRestoreReport
from statebackend.state.private_directory import temporary_directory
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.compatibility_check import CompatibilityChecker, DescribedJob
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.operators.operator import ColumnBatch, Emission, InputBatch, ObjectBatch
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.columnar import Columnar
from statebackend.streaming.rows.row_writer import RowEncoder
from statebackend.streaming.runtime.restore_plan import SubtaskRestore, restores_by_subtask
from statebackend.streaming.runtime.subtask import FrozenSubtask, OpenedSubtask, OperatorEpoch, OperatorParts, Subtask
from statebackend.streaming.runtime.worker_functions import RunIdentity, WorkerFunctions
from statebackend.streaming.stream_graph import StreamEdge
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkStatus

_CHECKED_LATE = (
    "a record gave the types of its keys only after the start of the job: this epoch is abandoned, and the state that "
    "the job continues from is unchanged"
)


class RunOperators:
    """The operators of a run; ``reports`` are the compatibility results of the start."""

    def __init__(self, parts: LocalJobParts, reports: Mapping[str, SchemaReport]) -> None:
        self.epoch = parts.epoch
        self.progress = parts.recorder.progress
        self.has_time = parts.program.event_time is not None
        self.schema_reports: dict[str, SchemaReport] = dict(reports)
        """The compatibility results of restored state, by operator uid."""
        self._local_space = contextlib.ExitStack()
        self.local_directory = self._local_space.enter_context(temporary_directory())
        self._parts = parts
        self._functions = WorkerFunctions()
        self._run = RunIdentity(parts.directory.identity.job_id, parts.directory.run_id)
        self._restores: dict[str, Sequence[SubtaskRestore]] = {}
        restored = parts.point.state
        for uid, operator in parts.program.prepared.operators.items():
            self._restores[uid] = restores_by_subtask(restored, uid, parts.program.parallelism)
            metas = () if restored is None else restored.keyed_metas_of(uid)
            if operator.key_serializer is None and metas:
                # Until a record gives the types of the keys, they are those of the restored state.
                operator.key_serializer = metas[0].key_snapshot.restore_serializer()

    def close(self) -> None:
        """Close what functions have set up for the run, and remove its local files."""
        self._functions.close()
        self._local_space.close()

    def restore_of(self, operator: LocalOperator, index: int) -> SubtaskRestore:
        return self._restores[operator.uid][index]

    def restores(self, operator_state: str) -> bool:
        """Whether any subtask restores operator state of this name."""
        shares = [one.operator for restores in self._restores.values() for one in restores]
        return any(state.name == operator_state for share in shares if share is not None for state in share.states)

    def make_function(self, operator: LocalOperator) -> Any:
        """A copy of the function of an operator, for one subtask."""
        return self._functions.function(self._run, operator.uid, partial(copy.deepcopy, operator.function))

    def learn_keys(self, operator: LocalOperator, input_index: int, records: Sequence[Any]) -> None:
        """Set the types of the keys of an operator from a record, if they are not known.

        Raises `StateMigrationException` or `JobRestoreError` if restored state has keys of other types.
        """
        if operator.knows_keys:
            return
        operator.learn_keys(lambda index: records if index == input_index else ())
        if not operator.knows_keys:
            return
        program, restored = self._parts.program, self._parts.point.state
        if restored is None:
            return
        job = DescribedJob(program.prepared.operators, restored.max_parallelism, program.rules.compatibilities)
        report = CompatibilityChecker(job, restored).report(operator.uid, program.options.allow_non_restored_state)
        if report is not None:
            report.raise_if_incompatible(_CHECKED_LATE)
            self.schema_reports[operator.uid] = report

    def operator_parts(self, operator: LocalOperator) -> OperatorParts:
        directory, program = self._parts.directory, self._parts.program
        assert operator.key_serializer is not None
        return OperatorParts(
            job_id=directory.identity.job_id,
            run_id=directory.run_id,
            operator_uid=operator.uid,
            operator_factory=operator_factory(operator.function),
            side_outputs=tuple(tag for tag in operator.outputs if tag is not None),
            key_serializer=operator.key_serializer,
            parallelism=program.parallelism,
            max_parallelism=directory.identity.max_parallelism,
            backend=program.backend,
            planned=operator.states.planned,
            planned_operator_state=operator.states.planned_operator_state,
            input_schemas=operator.states.input_schemas,
            file_system=directory.file_system,
            metrics=program.metrics,
            rules=program.rules,
            # Tests see what every restore does.
            keeps_backends=False,
        )


@define(kw_only=True, eq=False)
class LocalSubtask:
    """A subtask of an operator: an `OperatorWork` of the network, and the `Emitter` of its operator.

    ``on_snapshot`` gets what its channels add to a checkpoint, and the frozen state (None without state);
    ``on_aborted`` gets a checkpoint that barriers abort.
    """

    operator: LocalOperator
    index: int
    output: SubtaskOutput
    operators: RunOperators
    on_snapshot: Callable[[LocalSubtask, SubtaskCapture, FrozenSubtask | None], None]
    on_aborted: Callable[[TaskId, int, AbortReason], None]
    send: Callable[[StreamEdge, LocalStream], None] = field(init=False)
    """Sends records of an output to its readers; set when the network is built."""
    watermark_ms: int = MIN_TIMESTAMP
    """The last watermark that the operator processed, or that it starts with."""
    restore_reports: Sequence[StateRestoreReport] = field(default=(), init=False)
    """What became of each restored keyed state; complete when the subtask is closed."""
    operator_state_restore_reports: Sequence[StateRestoreReport] = field(default=(), init=False)
    """What became of each restored operator state."""
    _opened: OpenedSubtask | None = field(default=None, init=False)
    _life: contextlib.ExitStack = field(factory=contextlib.ExitStack, init=False)
    _to_order: list[RecordBatch] = field(factory=list, init=False)
    _before_keys: list[RecordBatch] = field(factory=list, init=False)
    _emitted: list[Emission | Watermark] = field(factory=list, init=False)
    _becomes_idle: bool = field(default=False, init=False)
    """Whether an idle status waits for what is held back."""
    records_out: Counter[OutputTag[Any] | None] = field(factory=Counter, init=False)
    """The rows of each output since the operator was opened."""
    _frozen: dict[int, FrozenSubtask] = field(factory=dict, init=False)

    @property
    def holds_watermarks(self) -> bool:
        """Whether the operator sends watermarks itself."""
        return self._opened is not None and self._opened.holds_watermarks

    @property
    def task(self) -> TaskId:
        return TaskId(self.operator.uid, self.index)

    def process(self, batch: RecordBatch) -> None:
        """Process records, or buffer them until they can be sorted or the types of the keys are known."""
        if self.operator.is_ordered:
            self._to_order.append(batch)
        elif self._open_if_possible():
            self._process(batch)
        else:
            self._before_keys.append(batch)

    @property
    def has_records_to_order(self) -> bool:
        """Whether buffered records can be sorted and processed."""
        return bool(self._to_order) and self._open_if_possible()

    def process_ordered(self) -> None:
        """Sort and process the buffered records."""
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
                [time_ms for one in of_input for time_ms in one.timestamps or ()] if self.operators.has_time else None,
            )
            ordered = self.operator.in_order(input_index, batch)
            self._process(
                RecordBatch(input_index, ordered.records, ordered.timestamps, ordered.keys, ordered.key_groups)
            )

    def advance_watermark(self, timestamp_ms: int) -> None:
        """Fire timers up to this time, then process the watermark."""
        self.process_ordered()
        is_open = self._open_if_possible()
        self.watermark_ms = timestamp_ms
        if is_open:
            self._call(lambda opened: opened.advance_watermark(timestamp_ms))

    def change_status(self, status: WatermarkStatus) -> None:
        """Send a status. An idle one waits until nothing is held back, at the latest for the next barrier."""
        self._becomes_idle = status.is_idle
        if status.is_idle:
            self._send_idle()
        else:
            self.output.send_time(status)

    @property
    def holds_output(self) -> bool:
        """Whether the operator holds results back, such as those of asynchronous requests."""
        return self._opened is not None and self._opened.holds_output

    def end_input(self) -> None:
        """Emit everything that is held back."""
        self.process_ordered()
        if self.holds_output:
            self._call(lambda opened: opened.await_in_flight())

    def advance_processing_time(self) -> None:
        """Fire the processing-time timers that are due."""
        if self._open_if_possible():
            self._call(lambda opened: opened.advance_processing_time())

    @property
    def holds_back_records(self) -> bool:
        """Whether records wait for the types of the keys, in no state."""
        return self.operator.key_serializer is None and bool(self._before_keys or self._to_order)

    def check_can_be_snapshotted(self) -> None:
        """Raises `JobDefinitionError` if records would be lost because the types of the keys are not known."""
        if self.holds_back_records:
            raise JobDefinitionError(
                f"operator {self.operator.uid!r}: it received broadcast records before any record gave the types of "
                f"its keys, so it has no state to keep them in; declare the schema of a keyed input"
            )

    def snapshot(self, checkpoint_id: int) -> None:
        """Freeze the state. A subtask that cannot open has none."""
        if not self._open_if_possible():
            return
        self.process_ordered()
        if self._becomes_idle:
            # A snapshot contains no idle status that waits.
            self._call(lambda opened: opened.await_in_flight())
        self._call(lambda opened: opened.prepare_snapshot())
        self._call(lambda opened: self._frozen.update({checkpoint_id: opened.freeze(checkpoint_id)}))

    def complete_snapshot(self, capture: SubtaskCapture) -> None:
        """Pass on what was frozen: all in-flight elements are captured."""
        self.on_snapshot(self, capture, self._frozen.pop(capture.checkpoint_id, None))

    def abort_checkpoint(self, checkpoint_id: int, reason: AbortReason) -> None:
        """Discard what was frozen: barriers abort the checkpoint."""
        self.cancel_snapshot(checkpoint_id)
        self.on_aborted(self.task, checkpoint_id, reason)

    def cancel_snapshot(self, checkpoint_id: int) -> None:
        """Discard what was frozen."""
        frozen = self._frozen.pop(checkpoint_id, None)
        if frozen is not None:
            frozen.cancel()

    def acknowledged(self, frozen: FrozenSubtask) -> Acknowledgement:
        """The acknowledgement of a written snapshot; only while the subtask is open."""
        opened = self._opened
        assert opened is not None
        self._note_reports(opened)
        return opened.acknowledged(frozen)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """A checkpoint that the subtask acknowledged is complete."""
        if self._opened is not None:
            self._opened.notify_checkpoint_complete(checkpoint_id)

    def finish(self) -> None:
        """Close after the last record of the run; raises what the function raises in `close`."""
        if self._opened is not None:
            self._note_reports(self._opened)
            self._opened = None
            self._life.close()

    def close(self) -> None:
        """Close without finishing."""
        with contextlib.suppress(Exception, GeneratorExit):
            self._close_with(GeneratorExit())

    def emit(
        self, tag: OutputTag[Any] | None, rows: Sequence[Any], timestamps: Sequence[int | None] | None = None
    ) -> None:
        """Buffer rows that the operator emits, until its call returns."""
        if rows:
            self.records_out[tag] += len(rows)
            self._emitted.append(Emission(tag, rows, timestamps))

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Buffer a watermark that the operator has held back."""
        self._emitted.append(Watermark(timestamp_ms))

    @property
    def side_outputs(self) -> frozenset[OutputTag[Any]]:
        """The side outputs that have a reader."""
        return frozenset(tag for tag in self.operator.outputs if tag is not None)

    def encoder(self, tag: OutputTag[Any] | None) -> RowEncoder:
        return self.operator.encoder(tag)

    def _process(self, batch: RecordBatch) -> None:
        given, others = batch.records, (batch.keys, batch.key_groups, batch.timestamps)
        records: InputBatch = (
            ColumnBatch(given, *others) if isinstance(given, Columnar) else ObjectBatch(given, *others)
        )
        self._call(lambda opened: opened.process_batch(batch.input_index, records))

    def _call(self, call: Callable[[OpenedSubtask], None]) -> None:
        """Call the operator and send what it emits; an exception closes the operator and is raised."""
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
        has_time = self.operators.has_time
        for one in emitted:
            if isinstance(one, Watermark):
                self.output.send_time(one)
                continue
            rows = self.operator.emitted_rows(one.tag, one.rows)
            times = one.timestamps if one.timestamps is not None else [None] * len(one.rows)
            self.send(StreamEdge(self.operator.node, one.tag), LocalStream(rows, times if has_time else None))
        self._send_idle()

    def _send_idle(self) -> None:
        holds = self._to_order or self._before_keys or self.holds_output
        if self._becomes_idle and not holds:
            self._becomes_idle = False
            self.output.send_time(WatermarkStatus.IDLE)

    def _close_with(self, error: BaseException) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            self._note_reports(opened)
            self._life.__exit__(type(error), error, error.__traceback__)

    def _note_reports(self, opened: OpenedSubtask) -> None:
        if self.operators.restore_of(self.operator, self.index).is_restored:
            self.restore_reports = opened.restore_reports
            self.operator_state_restore_reports = opened.operator_state_restore_reports

    def _open_if_possible(self) -> bool:
        """Open the subtask if the types of its keys are known; returns whether it is open."""
        if self._opened is None and self.operator.key_serializer is not None:
            run, operator = self.operators, self.operator
            subtask = Subtask(
                run.operator_parts(operator),
                OperatorEpoch(
                    epoch_id=run.epoch.epoch_id,
                    processing_time_ms=run.epoch.clock.now_ms,
                    previous_watermark_ms=self.watermark_ms,
                ),
                subtask_index=self.index,
                attempt_id="0",
                restore=run.restore_of(operator, self.index),
                local_directory=run.local_directory,
                progress=run.progress,
            )
            self._life = contextlib.ExitStack()
            opening = subtask.opened(partial(run.make_function, operator), self, run.epoch.clock)
            self._opened = self._life.enter_context(opening)
            held, self._before_keys = self._before_keys, []
            for batch in held:
                self._process(batch)
        return self._opened is not None
