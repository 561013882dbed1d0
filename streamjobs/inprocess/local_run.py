"""One execution of a job in this process: its epochs, one after the other, and what each does.

What comes next in an epoch is decided by `streamjobs.runtime.epoch`, what a subtask does is in
`streamjobs.runtime.subtask`. The tasks of an epoch run one after the other here, so the barrier is behind all of them:
the checkpoint is triggered when the records are processed and it is known which operators have state.
"""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.handles.state_handles import SubtaskState
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.job_directory import JobDirectory
from savepoints.restored_state import RestoredState
from statebackend.api.clock import Clock
from statebackend.keyed.backend_parameters import StateRestoreReport
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_verdicts import SchemaReport
from statebackend.metrics import StateMetricsConfig
from streamjobs.api.stream_graph import (
    JobGraph,
    OperatorNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    TimestampsNode,
    TransformNode,
    UnionNode,
)
from streamjobs.inprocess.local_operator import LocalOperator, Recast
from streamjobs.inprocess.local_stream import LocalStream
from streamjobs.inprocess.local_timestamps import timestamped
from streamjobs.inprocess.record_sinks import give_to_sinks
from streamjobs.operators.operator_factories import operator_factory
from streamjobs.runtime.checkpoint_writing import durable_epoch_of, store_checkpoint
from streamjobs.runtime.epoch import Epochs
from streamjobs.runtime.epoch_events import BatchArrived, Epoch
from streamjobs.runtime.epoch_runner import EpochRunner
from streamjobs.runtime.epoch_watermarks import EpochWatermarks
from streamjobs.runtime.event_time import EventTime
from streamjobs.runtime.job_metrics import OperatorMetrics, metrics_of_epoch
from streamjobs.runtime.job_start import report_of
from streamjobs.runtime.processing_time import not_before
from streamjobs.runtime.restore_plan import restores_by_subtask
from streamjobs.runtime.starting_point import StartingPoint
from streamjobs.runtime.subtask import OperatorParts, Subtask, SubtaskEpoch
from streamjobs.runtime.worker_functions import RunIdentity, WorkerFunctions

__all__ = ["LocalJobParts", "LocalRun"]


@frozen(kw_only=True)
class LocalJobParts:
    """What a running job is made of."""

    graph: JobGraph
    sources: Mapping[SourceNode, Sequence[Any]]
    operators: Mapping[str, LocalOperator]
    unions: Mapping[UnionNode, Sequence[Recast]]
    directory: JobDirectory
    store: CompletedCheckpointStore
    backend: StateBackend
    parallelism: int
    clock: Clock
    metrics: StateMetricsConfig | None
    allow_non_restored_state: bool
    event_time: EventTime | None


class LocalRun:
    """Runs epochs, and keeps what goes on from one to the next."""

    def __init__(self, parts: LocalJobParts, point: StartingPoint, reports: Mapping[str, SchemaReport]) -> None:
        self.parts = parts
        self.restored = point.state
        """The state of the epoch before: of this run, or of what it continues from."""
        self.has_stored = False
        """Whether that is an epoch of this run."""
        self.restored_from = point.restored_from
        self.functions = WorkerFunctions()
        """What was set up for this run; to be closed at its end."""
        self.local_directory = tempfile.TemporaryDirectory(prefix="statebackend-subtasks-")
        self.schema_reports: dict[str, SchemaReport] = dict(reports)
        self.restore_reports: list[StateRestoreReport] = []
        self.operator_state_restore_reports: list[StateRestoreReport] = []
        self.epochs = 0
        self.state_metrics: list[OperatorMetrics] = []
        latest = parts.store.latest()
        coordinator = CheckpointCoordinator(
            parts.directory.identity.job_id,
            parts.directory.run_id,
            timeout_ms=None,
            max_parallelism=parts.directory.identity.max_parallelism,
            operator_names={uid: operator.node.name for uid, operator in parts.operators.items()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        restored = self.restored
        last = None if restored is None else durable_epoch_of(restored.metadata, is_own=latest is not None)
        self._table = Epochs(coordinator, last)
        self.watermarks = EpochWatermarks(parts.event_time, None if restored is None else restored.metadata.watermarks)
        """Where event time stands for each operator."""
        self._is_due = False

    def run_epoch(self, elements: slice) -> None:
        """Runs one epoch over these elements of every source, and gives what comes out to the sinks."""
        rim = LocalEpoch(self, elements)
        EpochRunner(self._table, rim, _monotonic_ms).run(BatchArrived(self._table.next_batch_id))
        self.state_metrics.append(metrics_of_epoch(rim.acknowledgements))
        self.epochs += 1
        self._is_due = self.watermarks.are_due(one.timers_due for one in rim.acknowledgements)

    def run_due(self) -> None:
        """Runs an epoch without records if the records before have moved time past a timer."""
        if self._is_due:
            self.run_epoch(slice(0, 0))

    def drain(self) -> None:
        """Runs an epoch at the end of time, in which every timer of event time is due; none without event time."""
        if self.parts.event_time is None:
            return
        self.watermarks.end()
        self.run_epoch(slice(0, 0))


class LocalEpoch:
    """One epoch over some elements of each source; an `EpochRim`."""

    def __init__(self, run: LocalRun, elements: slice) -> None:
        self.acknowledgements: list[Acknowledgement] = []
        self.committing = contextlib.nullcontext()
        self._run = run
        self._parts = run.parts
        self._elements = elements
        self._streams: dict[StreamEdge, LocalStream] = {}
        self._epoch_id = -1
        self._processing_time_ms = 0

    def begin(self, epoch: Epoch) -> Sequence[TaskId]:
        """Processes the records."""
        restored = self._run.restored
        previous_ms = restored.metadata.processing_time_ms if restored is not None else None
        self._processing_time_ms = not_before(self._parts.clock(), previous_ms)
        self._epoch_id = epoch.checkpoint_id
        try:
            for node in self._parts.graph.nodes:
                _STEPS[type(node)](self, node)
        except BaseException:
            # Nobody has been told of them yet.
            self.discard([one.state for one in self.acknowledgements], frozenset())
            raise
        return [one.task for one in self.acknowledgements]

    def run(self, epoch: Epoch) -> Iterable[Acknowledgement]:
        """What the subtasks acknowledged."""
        return self.acknowledgements

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Stores the checkpoint, which the next epoch goes on from."""
        run, parts = self._run, self._parts
        metadata = store_checkpoint(
            parts.store,
            parts.directory.identity,
            epoch,
            completed,
            processing_time_ms=self._processing_time_ms,
            restored_from=run.restored_from,
            sink_committables={},
            sink_identities={},
            watermarks=run.watermarks.end_epoch(completed.channel_timestamps, self._processing_time_ms),
        )
        run.restored, run.has_stored = RestoredState(metadata, parts.directory.file_system), True

    def commit(self, epoch: Epoch) -> None:
        """Gives the records to the sinks."""
        give_to_sinks((node, self._streams[node.inputs[0]].records) for node in self._parts.graph.sinks)

    def commit_again(self, checkpoint_id: int) -> None:
        """Nothing: elements are no source that is replayed."""

    def abort(self, epoch: Epoch) -> None:
        """Nothing: the sink has been told of nothing."""

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Deletes what nobody else needs."""
        self._parts.store.discard(states, in_use)

    def read(self, node: SourceNode) -> None:
        """Takes this epoch's elements of a source."""
        self._streams[StreamEdge(node)] = LocalStream(list(self._parts.sources[node][self._elements]))

    def transform(self, node: TransformNode) -> None:
        """Applies a stateless step."""
        self._streams[StreamEdge(node)] = self._streams[node.inputs[0]].flat_mapped(node.function)

    def assign_timestamps(self, node: TimestampsNode) -> None:
        """Gives records their timestamps, and sets aside those that are too far in the future."""
        assert self._parts.event_time is not None
        source = self._parts.event_time.name_of(node)
        stream = self._streams[node.inputs[0]]
        timed, future = timestamped(stream, node.strategy, source, self._processing_time_ms)
        self._streams[StreamEdge(node)] = timed
        self._streams[StreamEdge(node, node.strategy.future_tag)] = future

    def unite(self, node: UnionNode) -> None:
        """Puts the records of several streams behind each other, in one form."""
        recasts = zip(self._parts.unions[node], node.inputs, strict=True)
        self._streams[StreamEdge(node)] = LocalStream.united(
            [self._streams[edge].recast(recast) for recast, edge in recasts]
        )

    def process(self, node: OperatorNode) -> None:
        """Runs the subtasks of an operator, one after the other."""
        run, parts, operator = self._run, self._parts, self._parts.operators[node.uid]
        streams = [self._streams[edge] for edge in node.inputs]
        has_time = parts.event_time is not None
        early = {tag: LocalStream.empty(has_time=has_time) for tag in operator.outputs}
        others = {tag: LocalStream.empty(has_time=has_time) for tag in operator.outputs}
        for tag in operator.outputs:
            self._streams[StreamEdge(node, tag)] = LocalStream.empty(has_time=has_time)
        self._learn_keys(operator, streams)
        if operator.key_serializer is None:
            # No record yet and nothing restored: there is no state, and no knowing what its keys will be.
            return
        restores = restores_by_subtask(
            run.restored.operator(operator.uid) if run.restored is not None else None,
            run.restored.file_system if run.restored is not None else parts.directory.file_system,
            parts.parallelism,
            parts.directory.identity.max_parallelism,
            is_same_run=run.has_stored,
        )
        identity = RunIdentity(parts.directory.identity.job_id, parts.directory.run_id)
        make_function = partial(run.functions.function, identity, operator.uid, operator.make_function)
        for index, share in enumerate(operator.shares(streams, parts.parallelism)):
            subtask = Subtask(
                self._operator_parts(operator),
                SubtaskEpoch(
                    subtask_index=index,
                    epoch_id=self._epoch_id,
                    processing_time_ms=self._processing_time_ms,
                    attempt_id="0",
                    restore=restores[index],
                    local_directory=run.local_directory.name,
                    watermark_ms=run.watermarks.of(operator.uid),
                    previous_watermark_ms=run.watermarks.before_of(operator.uid),
                ),
            )
            with contextlib.closing(subtask.run(make_function, share)) as emitted:
                for tag, rows, timestamps, is_early in itertools.chain.from_iterable(emitted):
                    part = early if is_early else others
                    part[tag].append(operator.emitted_rows(tag, rows), timestamps)
            self.acknowledgements.append(subtask.acknowledgement)
            if restores[index].is_restored:
                run.restore_reports += subtask.restore_reports
                run.operator_state_restore_reports += subtask.operator_state_restore_reports
        for tag in operator.outputs:
            in_front = early[tag]
            in_front.early = len(in_front.records)
            united = LocalStream.united([in_front, others[tag]]) if in_front.early else others[tag]
            self._streams[StreamEdge(node, tag)] = united

    def end(self, node: SinkNode) -> None:
        """Sinks are given their records when the checkpoint is complete."""

    def _operator_parts(self, operator: LocalOperator) -> OperatorParts:
        parts = self._parts
        assert operator.key_serializer is not None
        return OperatorParts(
            job_id=parts.directory.identity.job_id,
            run_id=parts.directory.run_id,
            operator_uid=operator.uid,
            operator_factory=operator_factory(operator.node.function),
            side_outputs=tuple(tag for tag in operator.outputs if tag is not None),
            key_serializer=operator.key_serializer,
            parallelism=parts.parallelism,
            max_parallelism=parts.directory.identity.max_parallelism,
            backend=parts.backend,
            planned=operator.states.planned,
            planned_operator_state=operator.states.planned_operator_state,
            input_schemas=operator.states.input_schemas,
            file_system=parts.directory.file_system,
            metrics=parts.metrics,
            # So that a test sees what every restore does.
            keeps_backends=False,
        )

    def _learn_keys(self, operator: LocalOperator, streams: Sequence[LocalStream]) -> None:
        if operator.knows_keys:
            return
        restored = self._run.restored
        metas = restored.keyed_metas_of(operator.uid) if restored is not None else ()
        operator.learn_keys(lambda index: streams[index].records)
        if not operator.knows_keys:
            if metas:
                operator.key_serializer = metas[0].key_snapshot.restore_serializer()
            return
        if restored is not None and metas and operator.key_serializer is not None:
            allowed = self._parts.allow_non_restored_state
            report = report_of(restored, operator.uid, operator.key_serializer, operator.states, allowed)
            report.raise_if_incompatible(_JUDGED_LATE)
            self._run.schema_reports[operator.uid] = report


_JUDGED_LATE: Final = (
    "only a record told the types of its keys, when the job had begun: this epoch is given up, what it goes on from is "
    "as it was"
)
"""What is told of a verdict that no start can give."""

_STEPS: Final[Mapping[type, Callable[[LocalEpoch, Any], None]]] = {
    SourceNode: LocalEpoch.read,
    TransformNode: LocalEpoch.transform,
    UnionNode: LocalEpoch.unite,
    TimestampsNode: LocalEpoch.assign_timestamps,
    OperatorNode: LocalEpoch.process,
    SinkNode: LocalEpoch.end,
}


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
