"""One subtask of one operator, the same in every runtime: it opens or restores its state and runs the operator.

A runtime of epochs runs it once per epoch (`Subtask.run`): open, process, snapshot, close, acknowledge. A runtime with
barriers in the stream keeps it open (`Subtask.opened`). The runtime decides where the subtask runs and how records
arrive and leave.

In an epoch, time is fixed, and due timers fire before any record:

1. Event-time timers up to the watermark fire, each with its key set. Their output precedes the watermark.
2. The operator processes the watermark.
3. Processing-time timers that are due fire.

An open subtask receives records, times and barriers in any order. At a barrier `OpenedSubtask.freeze` captures the
state, and the subtask continues. `FrozenSubtask.write` writes the files later, on any thread. Then
`OpenedSubtask.acknowledged` creates the acknowledgement, on the subtask's thread. Several frozen states may exist at a
time and be written in any order.

Counters in an acknowledgement (late records, metrics of state) count since the previous acknowledgement, so their sum
counts each event once.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, evolve, frozen

from migration import LIBRARY_RULES, EvolutionRules
from statebackend.checkpoint.coordinator.acknowledgement import Acknowledgement, ReportValue
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.invariants import path_segment
from statebackend.checkpoint.metadata import ChannelTimestamp
from statebackend.state.backend_parameters import KeyedStateBackendParameters, StateRestoreReport
from statebackend.state.clock import Clock, StoppedClock
from statebackend.state.key_context import KeySetter
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.metrics import KeyedStateMetrics, StateMetricsConfig
from statebackend.state.progress import Progress, ProgressListener, no_progress
from statebackend.state.state_backend import StateBackend, SubtaskIdentity
from statebackend.streaming.errors import EpochError
from statebackend.streaming.metrics import RECORDS_IN, opening_metrics, record_counts, restore_report
from statebackend.streaming.operators.operator import CollectingEmitter, Emission, Emitter, InputBatch
from statebackend.streaming.operators.operator_factories import OperatorFactory
from statebackend.streaming.operators.operator_run import OperatorRun
from statebackend.streaming.operators.record_function import paused_garbage_collection
from statebackend.streaming.operators.subtask_backends import SubtaskBackends, SubtaskSnapshot, SubtaskSnapshotTask
from statebackend.streaming.operators.subtask_context import PlannedState, SubtaskContext
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.row_writer import RowEncoder
from statebackend.streaming.runtime.restore_plan import SubtaskRestore
from statebackend.streaming.time.internal_timer_service import Fire
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = [
    "Emitted",
    "FrozenSubtask",
    "OpenedSubtask",
    "OperatorEpoch",
    "OperatorParts",
    "Subtask",
    "timers_due",
]


def _with_key(set_key: KeySetter, call: Callable[[int, Any, int, Any], None]) -> Fire:
    def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        set_key(key, key_group)
        call(timestamp_ms, key, key_group, namespace)

    return fire


TimersDueMs = tuple[int | None, int | None]
"""The earliest event-time and processing-time timers, in milliseconds."""

Report = Mapping[str, ReportValue]


@define(eq=False)
class FrozenSubtask:
    """The state of a subtask at a barrier, to be written once."""

    checkpoint_id: int
    timers_due: TimersDueMs
    frozen_s: float
    task: SubtaskSnapshotTask
    record_counts: Counter[str]
    """The records up to the barrier, since the subtask was opened."""
    snapshot: SubtaskSnapshot | None = None
    """Set after the files are durable."""
    written_s: float = 0.0

    def write(self) -> None:
        """Write the files, on any thread."""
        began_s = time.monotonic()
        self.snapshot = self.task.run()
        self.written_s = time.monotonic() - began_s

    def cancel(self) -> None:
        """Cancel the write, on any thread, and delete its files. Does nothing after the write has ended."""
        self.task.cancel()


class OpenedSubtask:
    """A subtask between open and close, for one thread. Errors of the operator are not wrapped.

    ``acknowledge`` creates the acknowledgement of a checkpoint from the snapshot, the timers that are due, the restore
    report and the metrics.
    """

    def __init__(
        self,
        operator: OperatorRun,
        context: SubtaskContext,
        emitter: Emitter,
        backends: SubtaskBackends,
        acknowledge: Callable[[int, SubtaskSnapshot, TimersDueMs, Report, Report], Acknowledgement],
        opening_metrics: Mapping[str, ReportValue],
    ) -> None:
        self._operator = operator
        self._context = context
        self._emitter = emitter
        self._backends = backends
        self._acknowledge = acknowledge
        self._opening_metrics = opening_metrics
        self._reported: Counter[str] = Counter()
        self._reported_metrics: KeyedStateMetrics | None = None
        self.holds_watermarks = operator.holds_watermarks
        """Whether the operator emits watermarks itself."""
        self.process_batch = operator.process_batch
        self.let_watermarks_out = operator.let_watermarks_out
        self.await_in_flight = operator.await_in_flight
        self.prepare_snapshot = operator.prepare_snapshot

    @property
    def holds_output(self) -> bool:
        """Whether the operator holds back rows or watermarks now."""
        return self._operator.holds_output

    @property
    def has_timers(self) -> bool:
        """Whether the operator may have timers."""
        return bool(self._context.timer_services)

    @property
    def restore_reports(self) -> Sequence[StateRestoreReport]:
        """The restore of each keyed state registered so far."""
        return tuple(self._context.keyed.restore_reports)

    @property
    def operator_state_restore_reports(self) -> Sequence[StateRestoreReport]:
        """The restore of each operator state registered so far."""
        return tuple(self._backends.operator_state_restore_reports)

    def advance_watermark(self, watermark_ms: int) -> None:
        """Advance event time: fire timers, then pass the watermark to the operator."""
        if watermark_ms == MIN_TIMESTAMP:
            return
        operator, set_key = self._operator, self._context.key_setter()
        for service in self._context.timer_services:
            if operator.fires_together:
                service.advance_watermark_together(watermark_ms, operator.on_event_time_timers)
            else:
                service.advance_watermark(watermark_ms, _with_key(set_key, operator.on_event_time_timer))
        operator.on_watermark(watermark_ms)

    def advance_processing_time(self) -> None:
        """Fire the processing-time timers that are due."""
        set_key = self._context.key_setter()
        for service in self._context.timer_services:
            service.advance_processing_time(_with_key(set_key, self._operator.on_processing_time_timer))
        self._operator.on_processing_time()

    def freeze(self, checkpoint_id: int) -> FrozenSubtask:
        """Run the synchronous part of a snapshot, after `prepare_snapshot`, and start the next epoch.

        Its cost is independent of the size of the state.
        """
        began_s = time.monotonic()
        due = timers_due(self._context, self._operator)
        task = self._backends.prepare_snapshot(checkpoint_id, uuid.uuid4().hex)
        self._context.begin_epoch(checkpoint_id + 1)
        self._operator.begin_epoch(checkpoint_id + 1)
        return FrozenSubtask(checkpoint_id, due, time.monotonic() - began_s, task, self.record_counts())

    def record_counts(self) -> Counter[str]:
        """Return the records so far."""
        return record_counts(self._operator.records_in, self._emitter.records_out, self._operator.late_records)

    def acknowledged(self, frozen: FrozenSubtask) -> Acknowledgement:
        """Return the acknowledgement of a written snapshot."""
        snapshot = frozen.snapshot
        assert snapshot is not None
        # Snapshots may be acknowledged in another order than they were taken.
        counts = frozen.record_counts - self._reported
        self._reported |= frozen.record_counts
        metrics: dict[str, ReportValue] = {
            "process_s": 0.0,
            "snapshot_s": frozen.frozen_s + frozen.written_s,
            RECORDS_IN: 0,
            **counts,
        }
        opening, self._opening_metrics = self._opening_metrics, {}
        return self._acknowledge(
            frozen.checkpoint_id,
            snapshot,
            frozen.timers_due,
            restore_report(self.restore_reports, self.operator_state_restore_reports),
            {**metrics, **opening, **self._metrics_since(frozen)},
        )

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that a checkpoint is complete, so that later snapshots may refer to its files."""
        self._backends.notify_checkpoint_complete(checkpoint_id)

    def _metrics_since(self, frozen: FrozenSubtask) -> Mapping[str, Any]:
        """Return the metrics of keyed state since the last report; empty if they are off."""
        if self._context.keyed.parameters.metrics is None:
            return {}
        now = self._backends.metrics_now(frozen.task.keyed_snapshot)
        reported, self._reported_metrics = self._reported_metrics, now
        return (now if reported is None else now.since(reported)).to_report()


def timers_due(context: SubtaskContext, operator: OperatorRun) -> TimersDueMs:
    """Return the earliest pending event-time and processing-time timers, in milliseconds.

    What is in flight counts as a processing-time timer: an epoch without records is due after its timeout.
    """
    services = context.timer_services
    event = [due for one in services if (due := one.next_event_time_timer()) is not None]
    processing = [due for one in services if (due := one.next_processing_time_timer()) is not None]
    if operator.in_flight_timeout_ms is not None:
        processing.append(context.keyed.parameters.clock() + operator.in_flight_timeout_ms)
    return min(event, default=None), min(processing, default=None)


Emitted = Sequence[Emission]
"""Rows of the output (None) and of side outputs, in the order of emission."""


@frozen(kw_only=True)
class OperatorParts:
    """The settings of one operator that its subtasks need in all epochs of a run; picklable.

    ``planned`` and ``planned_operator_state`` are the states that `open()` registered on the driver, by name.
    ``side_outputs`` are the side outputs with a reader, ``input_schemas`` the known schemas of the inputs. ``rules``
    resolve the compatibility of restored state and migrate it. With ``keeps_backends`` the process may keep a subtask's
    backend open for the next epoch.
    """

    job_id: str
    run_id: str
    operator_uid: str
    operator_factory: OperatorFactory
    side_outputs: tuple[OutputTag[Any], ...]
    key_serializer: TypeSerializer[Any]
    parallelism: int
    max_parallelism: int
    backend: StateBackend
    planned: Mapping[str, PlannedState]
    planned_operator_state: Mapping[str, PlannedState]
    file_system: CheckpointFileSystem
    input_schemas: tuple[DeclaredSchema | None, ...] = (None,)
    metrics: StateMetricsConfig | None = None
    rules: EvolutionRules = LIBRARY_RULES
    keeps_backends: bool = True


@frozen(kw_only=True)
class OperatorEpoch:
    """An epoch of one operator, the same for all its subtasks. It starts with the watermark ``watermark_ms``.

    Early records, which upstream operators sent at that watermark, are processed at ``previous_watermark_ms``.
    A no-data epoch has no records of sources (``has_records`` is False). While the inputs are idle (``is_idle``), the
    operators after this one do not wait for its watermark. So it first waits for requests in flight.
    """

    epoch_id: int
    processing_time_ms: int
    has_records: bool = True
    watermark_ms: int = MIN_TIMESTAMP
    previous_watermark_ms: int = MIN_TIMESTAMP
    is_idle: bool = False


class Subtask:
    """One subtask: either `run` processes an epoch, or `opened` keeps it open. Used once."""

    def __init__(
        self,
        operator: OperatorParts,
        epoch: OperatorEpoch,
        *,
        subtask_index: int,
        attempt_id: str,
        restore: SubtaskRestore,
        local_directory: str,
        progress: ProgressListener = no_progress,
    ) -> None:
        """Create the subtask. Nothing is opened yet.

        Args:
            operator: The settings of the operator.
            epoch: The epoch to run, or the first epoch.
            subtask_index: The index of the subtask, from 0.
            attempt_id: Unique among the attempts at an epoch.
            restore: The state to restore.
            local_directory: A directory on the local disk that stays after the epoch.
            progress: Receives the progress of restores and migrations.
        """
        self._operator = operator
        self._epoch = epoch
        self._index = subtask_index
        self._attempt_id = attempt_id
        self._restore = restore
        self._local_directory = local_directory
        self._progress = progress
        self._clock = _Stopwatch()
        self._acknowledgement: Acknowledgement | None = None
        self._channels: dict[tuple[str, str], ChannelTimestamp] = {}
        self.restore_reports: Sequence[StateRestoreReport] = ()
        """The restore of each registered keyed state; complete after the run."""
        self.operator_state_restore_reports: Sequence[StateRestoreReport] = ()
        """The restore of each registered operator state."""

    @property
    def acknowledgement(self) -> Acknowledgement:
        """The acknowledgement for the coordinator. Raises `EpochError` before `run` has ended."""
        if self._acknowledgement is None:
            raise EpochError(f"subtask {self._index} of {self._operator.operator_uid!r} has not ended")
        return self._acknowledgement

    def run(
        self,
        make_function: Callable[[], Any],
        batches: Iterable[tuple[int, InputBatch]],
        encoders: Mapping[OutputTag[Any] | None, RowEncoder] | None = None,
    ) -> Generator[Emitted, None, None]:
        """Process batches of the inputs and yield the output of each. Close the generator if it is not exhausted.

        Early batches come first. Then time advances to the watermark of the epoch. ``encoders`` encode the rows of each
        output.
        """
        emitter = CollectingEmitter(self._operator.side_outputs, encoders)
        watermark_ms = self._epoch.watermark_ms
        clock = StoppedClock(self._epoch.processing_time_ms)
        with paused_garbage_collection(), self._over_state(make_function, clock) as (operator, context, backends):
            with operator.opened(context, emitter):
                context.check_planned_are_registered()
                subtask = self._opened(operator, context, emitter, backends)
                has_time = subtask.has_timers or watermark_ms > MIN_TIMESTAMP or self._epoch.is_idle
                emitter.is_early = has_time
                for input_index, batch in batches:
                    if emitter.is_early and not batch.is_early:
                        yield self._advanced(subtask, emitter)
                    elif batch.is_early and has_time and not emitter.is_early:
                        raise EpochError(
                            f"operator {self._operator.operator_uid!r}: early records came after other records"
                        )
                    subtask.process_batch(input_index, batch)
                    self._note_channels(batch)
                    yield emitter.taken()
                if emitter.is_early:
                    yield self._advanced(subtask, emitter)
                if not self._epoch.has_records:
                    operator.await_in_flight()
                subtask.prepare_snapshot()
                yield emitter.taken()
                due, counts = timers_due(context, operator), subtask.record_counts()
            self._clock.lap("process_s")
            snapshot = backends.snapshot(self._epoch.epoch_id, uuid.uuid4().hex)
            self._clock.lap("snapshot_s")
            self.restore_reports = subtask.restore_reports
            self.operator_state_restore_reports = subtask.operator_state_restore_reports
            metrics = backends.metrics_report()
        # The worker knows what it keeps for the next epoch only after the state is returned.
        self._acknowledgement = self._acknowledged(
            self._epoch.epoch_id,
            snapshot,
            due,
            restore_report(self.restore_reports, self.operator_state_restore_reports),
            {**self._opening_metrics(backends), **counts, **metrics},
        )

    @contextlib.contextmanager
    def opened(self, make_function: Callable[[], Any], emitter: Emitter, clock: Clock) -> Iterator[OpenedSubtask]:
        """Open the subtask until the end of the block. ``clock`` returns the processing time."""
        with (
            self._over_state(make_function, clock) as (operator, context, backends),
            operator.opened(context, emitter),
        ):
            context.check_planned_are_registered()
            yield self._opened(operator, context, emitter, backends)

    @contextlib.contextmanager
    def _over_state(
        self, make_function: Callable[[], Any], clock: Clock
    ) -> Iterator[tuple[OperatorRun, SubtaskContext, SubtaskBackends]]:
        """Create the operator, not open yet, its context and the backends.

        Creating the function first imports the user's modules, which restored state may need.
        """
        function = make_function()
        with self._leased_backend(clock) as backend:
            self._clock.lap("open_s")
            restored = self._restore.operator
            with contextlib.closing(SubtaskBackends(backend, restored)) as backends:
                uid = self._operator.operator_uid
                yield (
                    OperatorRun(self._operator.operator_factory(function, uid), uid),
                    self._context(backends),
                    backends,
                )

    def _opened(
        self, operator: OperatorRun, context: SubtaskContext, emitter: Emitter, backends: SubtaskBackends
    ) -> OpenedSubtask:
        return OpenedSubtask(operator, context, emitter, backends, self._acknowledged, self._opening_metrics(backends))

    def _opening_metrics(self, backends: SubtaskBackends) -> Mapping[str, ReportValue]:
        return opening_metrics(
            is_local=backends.keyed.is_local,
            has_restore=bool(self._restore.keyed),
            worker_cache_bytes=self._operator.backend.worker_cache_bytes(),
        )

    def _advanced(self, subtask: OpenedSubtask, emitter: CollectingEmitter) -> Emitted:
        subtask.advance_watermark(self._epoch.watermark_ms)
        # An epoch has one watermark. All later output follows it.
        subtask.let_watermarks_out()
        if self._epoch.is_idle:
            subtask.await_in_flight()
        emitter.is_early = False
        subtask.advance_processing_time()
        return emitter.taken()

    def _note_channels(self, batch: InputBatch) -> None:
        for one in batch.channel_timestamps:
            known = self._channels.setdefault((one.source, one.channel), one)
            if one.timestamp_ms > known.timestamp_ms:
                self._channels[one.source, one.channel] = one

    @contextlib.contextmanager
    def _leased_backend(self, clock: Clock) -> Iterator[KeyedStateBackend]:
        operator, parameters = self._operator, self._parameters(clock)
        if not operator.keeps_backends:
            with operator.backend.create_keyed_state_backend(parameters) as backend:
                yield backend
            return
        identity = SubtaskIdentity(operator.job_id, self._index, operator.parallelism)
        backend = operator.backend.lease_keyed_state_backend(parameters, identity)
        succeeded = False
        try:
            yield backend
            succeeded = True
        finally:
            operator.backend.return_keyed_state_backend(backend, identity, succeeded=succeeded)

    def _parameters(self, clock: Clock) -> KeyedStateBackendParameters:
        operator, index = self._operator, self._index
        uid = path_segment(operator.operator_uid)
        return KeyedStateBackendParameters(
            operator_uid=operator.operator_uid,
            key_serializer=operator.key_serializer,
            max_parallelism=operator.max_parallelism,
            key_group_range=key_group_range_of_subtask(index, operator.parallelism, operator.max_parallelism),
            file_system=operator.file_system,
            file_prefix=f"shared/{uid}/{index:05d}",
            local_directory=os.path.join(self._local_directory, uid, f"{index:05d}"),
            restore=self._restore.keyed,
            progress=self._report_progress,
            clock=clock,
            metrics=operator.metrics,
            rules=operator.rules.compatibilities,
            conversions=operator.rules.conversions,
        )

    def _report_progress(self, progress: Progress) -> None:
        self._progress(evolve(progress, subtask_index=self._index))

    def _context(self, backends: SubtaskBackends) -> SubtaskContext:
        operator, epoch = self._operator, self._epoch
        return SubtaskContext(
            backends,
            operator.operator_uid,
            self._index,
            operator.parallelism,
            epoch.epoch_id,
            is_restored=self._restore.is_restored,
            planned=operator.planned,
            planned_operator_state=operator.planned_operator_state,
            input_schemas=operator.input_schemas,
            watermark_ms=epoch.previous_watermark_ms,
        )

    def _acknowledged(
        self, checkpoint_id: int, snapshot: SubtaskSnapshot, due: TimersDueMs, report: Report, metrics: Report
    ) -> Acknowledgement:
        operator = self._operator
        return Acknowledgement(
            job_id=operator.job_id,
            run_id=operator.run_id,
            checkpoint_id=checkpoint_id,
            operator_uid=operator.operator_uid,
            subtask_index=self._index,
            attempt_id=self._attempt_id,
            digest=snapshot.digest,
            state=snapshot.state,
            channel_timestamps=tuple(self._channels.values()),
            event_time_timer_ms=due[0],
            processing_time_timer_ms=due[1],
            report=report,
            metrics={
                "entries_written": snapshot.entries_written,
                "bytes_written": snapshot.bytes_written,
                **self._clock.laps,
                **metrics,
            },
        )


class _Stopwatch:
    """The seconds between laps, for the metrics of an epoch."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        """End a lap under that name."""
        now = time.monotonic()
        self.laps[name] = now - self._since
        self._since = now
