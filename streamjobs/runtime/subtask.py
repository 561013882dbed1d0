"""One subtask of one operator, the same in every runtime: it opens or restores its state, and runs the operator.

A runtime of epochs lets it run once per epoch (`Subtask.run`): open, process, snapshot, close, acknowledge. One in
which barriers come in band keeps it open over them (`Subtask.opened`, and `opened_subtask` for what follows). How
records come in and go out, and where the subtask runs, is the rim's business.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement, ReportValue
from checkpointing.handles.relative_path import path_segment
from checkpointing.metadata.checkpoint_sections import ChannelTimestamp
from checkpointing.storage.file_system import CheckpointFileSystem
from migration import LIBRARY_RULES, EvolutionRules
from statebackend.api.clock import Clock, StoppedClock
from statebackend.api.key_groups import key_group_range_of_subtask
from statebackend.api.progress import Progress, ProgressListener, no_progress
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, StateRestoreReport
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_backend import StateBackend, SubtaskIdentity
from statebackend.metrics import StateMetricsConfig
from streamjobs.api.output_tag import OutputTag
from streamjobs.errors import EpochError
from streamjobs.operators.operator import CollectingEmitter, Emission, Emitter, InputBatch
from streamjobs.operators.operator_factories import OperatorFactory
from streamjobs.operators.operator_run import OperatorRun
from streamjobs.operators.planned_states import PlannedState
from streamjobs.operators.record_function import paused_garbage_collection
from streamjobs.operators.subtask_backends import SubtaskBackends, SubtaskSnapshot
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.rows.declared_schema import DeclaredSchema
from streamjobs.rows.row_writer import RowEncoder
from streamjobs.runtime.job_metrics import RECORDS_IN, opening_metrics
from streamjobs.runtime.opened_subtask import OpenedSubtask, SnapshotReport, timers_due
from streamjobs.runtime.restore_measures import restore_report
from streamjobs.runtime.restore_plan import SubtaskRestore
from streamjobs.runtime.time_metrics import LATE_RECORDS_DROPPED
from streamjobs.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["Emitted", "OperatorParts", "Subtask", "SubtaskEpoch"]

Emitted = Sequence[Emission]
"""Rows of the output (None) and of side outputs, in the order in which they were emitted."""


@frozen(kw_only=True)
class OperatorParts:
    """What the subtasks of one operator need in all epochs of a run; picklable.

    ``planned`` and ``planned_operator_state`` are what `open()` registered on the driver, by name. ``side_outputs`` are
    those that somebody reads, and ``input_schemas`` what is known of the rows of the inputs. ``rules`` judge and carry
    out what restored state becomes. ``keeps_backends`` says whether the process may keep a subtask's backend open for
    its next epoch.
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
class SubtaskEpoch:
    """What is new for a subtask in an epoch, which begins with the watermark ``watermark_ms``.

    Early records, which the operators before have sent at that watermark, find it at ``previous_watermark_ms``.

    ``attempt_id`` tells attempts at the same epoch apart. Below ``local_directory``, on the local disk, each subtask
    has a place of its own that is kept between epochs. ``progress`` hears how far restores and migrations are.
    """

    subtask_index: int
    epoch_id: int
    processing_time_ms: int
    attempt_id: str
    restore: SubtaskRestore
    local_directory: str
    watermark_ms: int = MIN_TIMESTAMP
    previous_watermark_ms: int = MIN_TIMESTAMP
    progress: ProgressListener = no_progress


class Subtask:
    """See the module; lives once, in one go by `run`, or step by step in `opened`."""

    def __init__(self, operator: OperatorParts, epoch: SubtaskEpoch) -> None:
        self._operator = operator
        self._epoch = epoch
        self._clock = _Stopwatch()
        self._acknowledgement: Acknowledgement | None = None
        self._channels: dict[tuple[str, str], ChannelTimestamp] = {}
        self.restore_reports: Sequence[StateRestoreReport] = ()
        """What became of each restored keyed state that was registered; complete when the run is."""
        self.operator_state_restore_reports: Sequence[StateRestoreReport] = ()
        """What became of each restored operator state that was registered."""

    @property
    def acknowledgement(self) -> Acknowledgement:
        """What the subtask tells the coordinator, once `run` has come to its end; `EpochError` before."""
        if self._acknowledgement is None:
            raise EpochError(f"subtask {self._epoch.subtask_index} of {self._operator.operator_uid!r} has not ended")
        return self._acknowledgement

    def run(
        self,
        make_function: Callable[[], Any],
        batches: Iterable[tuple[int, InputBatch]],
        encoders: Mapping[OutputTag[Any] | None, RowEncoder] | None = None,
    ) -> Generator[Emitted, None, None]:
        """Processes batches of its inputs; yields what is emitted for each. Close it if it is not exhausted.

        Those that are early come first; behind them time moves on to where the epoch stands. ``encoders`` are those of
        the rows of each output.
        """
        emitter = CollectingEmitter(self._operator.side_outputs, encoders)
        watermark_ms = self._epoch.watermark_ms
        clock = StoppedClock(self._epoch.processing_time_ms)
        with paused_garbage_collection(), self._over_state(make_function, clock) as (operator, context, backends):
            with operator.opened(context, emitter):
                context.check_planned_are_registered()
                subtask = self._opened(operator, context, backends)
                emitter.is_early = has_time = subtask.has_timers or watermark_ms > MIN_TIMESTAMP
                for input_index, batch in batches:
                    if emitter.is_early and not batch.is_early:
                        yield self._advanced(subtask, emitter)
                    elif batch.is_early and has_time and not emitter.is_early:
                        raise EpochError(
                            f"operator {self._operator.operator_uid!r}: records came behind a watermark that they "
                            f"belong before"
                        )
                    subtask.process_batch(input_index, batch)
                    self._note_channels(batch)
                    yield emitter.taken()
                if emitter.is_early:
                    yield self._advanced(subtask, emitter)
                subtask.prepare_snapshot()
                yield emitter.taken()
                due, late, records_in = timers_due(context), operator.late_records_dropped, operator.records_in
            self._clock.lap("process_s")
            snapshot = backends.snapshot(self._epoch.epoch_id, uuid.uuid4().hex)
            self._clock.lap("snapshot_s")
            self.restore_reports = subtask.restore_reports
            self.operator_state_restore_reports = subtask.operator_state_restore_reports
            metrics = backends.metrics_report()
        # What the worker keeps for the next epoch is known when the state is given back.
        report = SnapshotReport(
            timers_due=due,
            late_records_dropped=late,
            restore_reports=self.restore_reports,
            operator_state_restore_reports=self.operator_state_restore_reports,
            metrics={**self._opening_metrics(backends), RECORDS_IN: records_in, **metrics},
        )
        self._acknowledgement = self._acknowledged(self._epoch.epoch_id, snapshot, report)

    @contextlib.contextmanager
    def opened(self, make_function: Callable[[], Any], emitter: Emitter, clock: Clock) -> Iterator[OpenedSubtask]:
        """The subtask over its state, until the end of the block; ``clock`` gives the processing time."""
        with (
            self._over_state(make_function, clock) as (operator, context, backends),
            operator.opened(context, emitter),
        ):
            context.check_planned_are_registered()
            yield self._opened(operator, context, backends)

    @contextlib.contextmanager
    def _over_state(
        self, make_function: Callable[[], Any], clock: Clock
    ) -> Iterator[tuple[OperatorRun, SubtaskContext, SubtaskBackends]]:
        """The operator that is not open yet, its context and the backends.

        Making the function imports the modules of the user's that reading restored state may need, so it is made here.
        """
        function = make_function()
        with self._leased_backend(clock) as backend:
            self._clock.lap("open_s")
            restored = self._epoch.restore.operator
            with contextlib.closing(SubtaskBackends(backend, restored)) as backends:
                uid = self._operator.operator_uid
                yield (
                    OperatorRun(self._operator.operator_factory(function, uid), uid),
                    self._context(backends),
                    backends,
                )

    def _opened(self, operator: OperatorRun, context: SubtaskContext, backends: SubtaskBackends) -> OpenedSubtask:
        return OpenedSubtask(operator, context, backends, self._acknowledged, self._opening_metrics(backends))

    def _opening_metrics(self, backends: SubtaskBackends) -> Mapping[str, ReportValue]:
        return opening_metrics(
            is_local=backends.keyed.is_local,
            has_restore=bool(self._epoch.restore.keyed),
            kept_bytes_of_host=self._operator.backend.kept_bytes_of_host(),
        )

    def _advanced(self, subtask: OpenedSubtask, emitter: CollectingEmitter) -> Emitted:
        subtask.advance_watermark(self._epoch.watermark_ms)
        # The epoch stands at one watermark: what comes out from here on is behind it for everyone.
        subtask.let_watermarks_out()
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
        identity = SubtaskIdentity(operator.job_id, self._epoch.subtask_index, operator.parallelism)
        backend = operator.backend.lease_keyed_state_backend(parameters, identity)
        succeeded = False
        try:
            yield backend
            succeeded = True
        finally:
            operator.backend.return_keyed_state_backend(backend, identity, succeeded=succeeded)

    def _parameters(self, clock: Clock) -> KeyedStateBackendParameters:
        operator, index = self._operator, self._epoch.subtask_index
        uid = path_segment(operator.operator_uid)
        return KeyedStateBackendParameters(
            operator_uid=operator.operator_uid,
            key_serializer=operator.key_serializer,
            max_parallelism=operator.max_parallelism,
            key_group_range=key_group_range_of_subtask(index, operator.parallelism, operator.max_parallelism),
            file_system=operator.file_system,
            file_prefix=f"shared/{uid}/{index:05d}",
            local_directory=os.path.join(self._epoch.local_directory, uid, f"{index:05d}"),
            restore=self._epoch.restore.keyed,
            progress=self._tell,
            clock=clock,
            metrics=operator.metrics,
            rules=operator.rules.verdicts,
            conversions=operator.rules.conversions,
        )

    def _tell(self, progress: Progress) -> None:
        self._epoch.progress(evolve(progress, subtask_index=self._epoch.subtask_index))

    def _context(self, backends: SubtaskBackends) -> SubtaskContext:
        operator, epoch = self._operator, self._epoch
        return SubtaskContext(
            backends,
            operator.operator_uid,
            epoch.subtask_index,
            operator.parallelism,
            epoch.epoch_id,
            is_restored=epoch.restore.is_restored,
            planned=operator.planned,
            planned_operator_state=operator.planned_operator_state,
            input_schemas=operator.input_schemas,
            watermark_ms=epoch.previous_watermark_ms,
        )

    def _acknowledged(self, checkpoint_id: int, snapshot: SubtaskSnapshot, report: SnapshotReport) -> Acknowledgement:
        operator, epoch = self._operator, self._epoch
        return Acknowledgement(
            job_id=operator.job_id,
            run_id=operator.run_id,
            checkpoint_id=checkpoint_id,
            operator_uid=operator.operator_uid,
            subtask_index=epoch.subtask_index,
            attempt_id=epoch.attempt_id,
            digest=snapshot.digest,
            state=snapshot.state,
            channel_timestamps=tuple(self._channels.values()),
            event_time_timer_ms=report.timers_due[0],
            processing_time_timer_ms=report.timers_due[1],
            report=restore_report(report.restore_reports, report.operator_state_restore_reports),
            metrics={
                "entries_written": snapshot.entries_written,
                "bytes_written": snapshot.bytes_written,
                LATE_RECORDS_DROPPED: report.late_records_dropped,
                **self._clock.laps,
                **report.metrics,
            },
        )


class _Stopwatch:
    """The seconds between laps, for the metrics of an epoch."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}
        self._since = time.monotonic()

    def lap(self, name: str) -> None:
        """Ends a lap under that name."""
        now = time.monotonic()
        self.laps[name] = now - self._since
        self._since = now
