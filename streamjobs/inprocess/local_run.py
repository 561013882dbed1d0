"""One execution of a job in this process: its network, and its epochs, one after the other.

What comes next in an epoch is decided by `streamjobs.runtime.epoch`, what a subtask does is in
`streamjobs.runtime.subtask`, who moves when in `streamjobs.inprocess.network`. An epoch is: what its sources are given
to read, then what they say of time, then a barrier. The checkpoint is triggered when the records are processed, and it
is known which operators have state.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import frozen

from checkpointing.coordinator.acknowledgement import Acknowledgement, TaskId
from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from checkpointing.coordinator.pending_checkpoint import CompletedCheckpoint
from checkpointing.handles.state_handles import SubtaskState
from checkpointing.metadata.checkpoint_sections import WatermarkState
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.job_directory import JobDirectory
from migration import EvolutionRules
from statebackend.api.clock import Clock
from statebackend.keyed.backend_parameters import StateRestoreReport
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_verdicts import SchemaReport
from statebackend.metrics import StateMetricsConfig
from streamjobs.api.stream_graph import JobGraph, SinkNode, UnionNode
from streamjobs.errors import StreamJobError
from streamjobs.inprocess.channel_state.channel_restore import InFlightShares, restore_checkpoint
from streamjobs.inprocess.job_network import NetworkParts, build_network
from streamjobs.inprocess.local_epoch import LocalEpoch
from streamjobs.inprocess.local_operator import LocalOperator, Recast
from streamjobs.inprocess.local_source import LocalSource
from streamjobs.inprocess.local_subtask import CurrentEpoch, LocalSubtask
from streamjobs.inprocess.network.channel import DEFAULT_CAPACITY, SubtaskOutput
from streamjobs.inprocess.network.output_subtask import OutputListener
from streamjobs.inprocess.network.scheduler import Scheduler
from streamjobs.inprocess.network_watermarks import node_watermarks, operator_watermarks, restore_network
from streamjobs.inprocess.record_sinks import SinkRecords
from streamjobs.operators.operator_factories import operator_factory
from streamjobs.operators.record_function import paused_garbage_collection
from streamjobs.runtime.checkpoint_writing import durable_epoch_of, store_checkpoint
from streamjobs.runtime.epoch import Epochs
from streamjobs.runtime.epoch_events import BatchArrived, Epoch
from streamjobs.runtime.epoch_runner import EpochRunner
from streamjobs.runtime.event_time import EventTime
from streamjobs.runtime.job_metrics import OperatorMetrics, metrics_of_epoch
from streamjobs.runtime.job_start import report_of
from streamjobs.runtime.processing_time import not_before
from streamjobs.runtime.restore_plan import SubtaskRestore, restores_by_subtask
from streamjobs.runtime.starting_point import StartingPoint
from streamjobs.runtime.subtask import OperatorParts, Subtask
from streamjobs.runtime.time_metrics import TimeMetrics, late_records_of, time_metrics
from streamjobs.runtime.worker_functions import RunIdentity, WorkerFunctions
from streamjobs.time.job_watermarks import watermark_state
from streamjobs.time.timestamps import MIN_TIMESTAMP

__all__ = ["LocalJobParts", "LocalRun"]


@frozen(kw_only=True)
class LocalJobParts:
    """What a running job is made of. ``listener`` is told what comes out, in order, beside the sinks."""

    graph: JobGraph
    operators: Mapping[str, LocalOperator]
    unions: Mapping[UnionNode, Sequence[Recast]]
    directory: JobDirectory
    store: CompletedCheckpointStore
    backend: StateBackend
    parallelism: int
    clock: Clock
    metrics: StateMetricsConfig | None
    rules: EvolutionRules
    allow_non_restored_state: bool
    event_time: EventTime | None
    scheduler: Scheduler
    capacity: int = DEFAULT_CAPACITY
    listener: OutputListener | None = None


class LocalRun:
    """The network of a run, and what goes on from one epoch to the next.

    What it is given to process between `begin_epoch` and `end_epoch` belongs to one checkpoint. Whatever raises ends
    the run: all subtasks are closed, and the checkpoint before is the last one.
    """

    def __init__(self, parts: LocalJobParts, point: StartingPoint, reports: Mapping[str, SchemaReport]) -> None:
        self.parts = parts
        self.restored_from = point.restored_from
        self.functions = WorkerFunctions()
        """What was set up for this run; to be closed at its end."""
        self.schema_reports: dict[str, SchemaReport] = dict(reports)
        self.restore_reports: list[StateRestoreReport] = []
        self.operator_state_restore_reports: list[StateRestoreReport] = []
        self.epochs = 0
        self.state_metrics: list[OperatorMetrics] = []
        self.acknowledgements: list[Acknowledgement] = []
        """Of the epoch that ends, or did last."""
        self._late_records: Counter[str] = Counter()
        self.current = CurrentEpoch()
        """The epoch that is under way."""
        self._output = SinkRecords(parts.graph, parts.listener)
        self._local_directory = tempfile.TemporaryDirectory(prefix="statebackend-subtasks-")
        self._restored = point.state
        self._previous_time_ms = None if point.state is None else point.state.metadata.processing_time_ms
        self._table = self._epochs()
        self._prepare_keys()
        self.job_network = build_network(self._network_parts())
        self.network = self.job_network.network
        """The subtasks and channels."""
        self._is_resumed = self._has_failed = False

    def run_epoch(self, feeds: Iterable[Callable[[], None]]) -> None:
        """Runs one epoch: what each of the feeds gives the sources to read is processed before the next one does."""
        self.begin_epoch()
        for feed in feeds:
            feed()
            self.process()
        self.end_epoch()

    def drain(self) -> None:
        """Runs an epoch at the end of time, in which every timer of event time is due; none without event time."""
        if self.parts.event_time is not None:
            self.run_epoch([self._feed_end])

    def begin_epoch(self) -> None:
        """Opens what has state, and fires what is due by the clock, which then stands still."""
        self.current.epoch_id = self._table.next_checkpoint_id
        self.current.processing_time_ms = not_before(self.parts.clock(), self._previous_time_ms)
        self.acknowledgements = []
        with self._running():
            if not self._is_resumed:
                self._resume()
            self.network.advance_processing_time()

    def process(self) -> None:
        """Processes what the sources have been given to read."""
        with self._running():
            self.network.run()

    def advance_processing_time(self, time_ms: int) -> None:
        """Moves the clock within the epoch, unless that is no progress: what is due fires, then sources look at it."""
        self.current.processing_time_ms = not_before(time_ms, self.current.processing_time_ms)
        with self._running():
            self.network.advance_processing_time()
            self.emit_periodically()
            self.network.run()

    def emit_periodically(self) -> None:
        """Lets sources send what is due by their strategies, behind what they have to read."""
        for source in self.job_network.sources.values():
            if not source.has_ended and not source.is_paused:
                source.feed(LocalSource.emit_periodically)

    def end_epoch(self) -> None:
        """Sends a barrier through, stores the checkpoint, and gives the sinks what has come out."""
        with self._running():
            EpochRunner(self._table, LocalEpoch(self), _monotonic_ms).run(BatchArrived(self._table.next_batch_id))
        self.state_metrics.append(metrics_of_epoch(self.acknowledgements))
        self.epochs += 1

    def tasks(self) -> list[TaskId]:
        """Who takes part in a checkpoint: without the types of its keys an operator has no state.

        Raises `JobDefinitionError` if such an operator has been given records.
        """
        for one in self.job_network.subtasks:
            one.check_can_be_snapshotted()
        known = (one for one in self.job_network.subtasks if one.operator.key_serializer is not None)
        return [TaskId(one.operator.uid, one.index) for one in known]

    def store(self, epoch: Epoch, completed: CompletedCheckpoint) -> None:
        """Stores the checkpoint of the epoch, which the next one goes on from."""
        store_checkpoint(
            self.parts.store,
            self.parts.directory.identity,
            epoch,
            completed,
            processing_time_ms=self.current.processing_time_ms,
            restored_from=self.restored_from,
            sink_committables={},
            sink_identities={},
            watermarks=self._watermark_state(),
        )
        self._previous_time_ms = self.current.processing_time_ms

    def discard(self, states: Sequence[SubtaskState], in_use: frozenset[str]) -> None:
        """Deletes the files of these states that nobody else needs."""
        self.parts.store.discard(states, in_use)

    def taken(self) -> Sequence[tuple[SinkNode, Sequence[Any]]]:
        """What has come out for each sink since the last checkpoint."""
        return self._output.taken()

    def watermarks(self) -> Mapping[str, int]:
        """How far event time is, by name of source and operator uid, in milliseconds; without a watermark, left out."""
        if self.parts.event_time is None:
            return {}
        sources = zip(self.parts.graph.source_uids, self.job_network.sources.values(), strict=True)
        known = {**{name: one.work.watermark_ms for name, one in sources}, **operator_watermarks(self.network)}
        return {name: time_ms for name, time_ms in known.items() if time_ms > MIN_TIMESTAMP}

    def time_metrics(self) -> Mapping[str, TimeMetrics]:
        """How far event time is for sources and operators, and what was late."""
        event_time = self.parts.event_time
        names = () if event_time is None else event_time.names
        return time_metrics(names, self.watermarks(), self._previous_time_ms, self._late_records)

    def close(self) -> None:
        """Closes what is open, as given up, and what was set up."""
        for subtask in self.job_network.subtasks:
            subtask.close()
        self.functions.close()
        self._local_directory.cleanup()

    def _feed_end(self) -> None:
        for source in self.network.sources:
            source.feed_end()

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        if self._has_failed:
            raise StreamJobError("the run has failed and is over; begin another one from its last checkpoint")
        try:
            with paused_garbage_collection():
                yield
        except BaseException:
            self._has_failed = True
            for subtask in self.job_network.subtasks:
                subtask.close()
            raise

    def _resume(self) -> None:
        watermarks = None if self._restored is None else self._restored.metadata.watermarks
        if self.parts.event_time is not None and watermarks is not None:
            state = self.parts.event_time.of_checkpoint(watermarks)
            restore_network(self.network, self.parts.event_time.watermark_nodes(), state)
        if self._restored is not None:
            shares = InFlightShares(self.parts.operators, self.parts.parallelism, self._learn_keys)
            has_time = self.parts.event_time is not None and watermarks is not None
            restore_checkpoint(self.network, shares, self._restored, has_time=has_time)
        self.network.resume()
        self._is_resumed = True

    def _epochs(self) -> Epochs:
        identity, latest = self.parts.directory.identity, self.parts.store.latest()
        coordinator = CheckpointCoordinator(
            identity.job_id,
            self.parts.directory.run_id,
            timeout_ms=None,
            max_parallelism=identity.max_parallelism,
            operator_names={uid: operator.node.name for uid, operator in self.parts.operators.items()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        restored = self._restored
        last = None if restored is None else durable_epoch_of(restored.metadata, is_own=latest is not None)
        return Epochs(coordinator, last)

    def _watermark_state(self) -> WatermarkState | None:
        event_time = self.parts.event_time
        if event_time is None:
            return None
        sources = self.job_network.sources.values()
        channels = tuple(channel for source in sources for channel in source.work.channels())
        return watermark_state(event_time.nodes or event_time.source_names, channels, node_watermarks(self.network))

    def _network_parts(self) -> NetworkParts:
        parts, restored = self.parts, self._restored
        identity = parts.directory.identity
        restores = {
            uid: restores_by_subtask(
                None if restored is None else restored.operator(uid),
                parts.directory.file_system if restored is None else restored.file_system,
                parts.parallelism,
                identity.max_parallelism,
                is_same_run=False,
            )
            for uid in parts.operators
        }
        run = RunIdentity(identity.job_id, parts.directory.run_id)

        def make_subtask(operator: LocalOperator, index: int, output: SubtaskOutput) -> LocalSubtask:
            return LocalSubtask(
                operator=operator,
                index=index,
                restore=restores[operator.uid][index],
                epoch=self.current,
                output=output,
                local_directory=self._local_directory.name,
                file_system=parts.directory.file_system,
                has_time=parts.event_time is not None,
                parts=self._operator_parts,
                make_function=partial(self.functions.function, run, operator.uid, operator.make_function),
                acknowledge=self._acknowledged,
            )

        return NetworkParts(
            graph=parts.graph,
            operators=parts.operators,
            unions=parts.unions,
            event_time=parts.event_time,
            parallelism=parts.parallelism,
            now_ms=self.current.now_ms,
            make_subtask=make_subtask,
            learn_keys=self._learn_keys,
            listener=self._output,
            scheduler=parts.scheduler,
            capacity=parts.capacity,
        )

    def _acknowledged(self, subtask: Subtask, acknowledgement: Acknowledgement, restored: SubtaskRestore) -> None:
        self.acknowledgements.append(acknowledgement)
        self._late_records += late_records_of([acknowledgement])
        if restored.is_restored:
            self.restore_reports += subtask.restore_reports
            self.operator_state_restore_reports += subtask.operator_state_restore_reports

    def _operator_parts(self, operator: LocalOperator) -> OperatorParts:
        parts = self.parts
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
            rules=parts.rules,
            # So that a test sees what every restore does.
            keeps_backends=False,
        )

    def _prepare_keys(self) -> None:
        """Where nothing tells the types of the keys but what is restored, they are those."""
        for operator in self.parts.operators.values():
            metas = () if self._restored is None else self._restored.keyed_metas_of(operator.uid)
            if operator.key_serializer is None and metas:
                operator.key_serializer = metas[0].key_snapshot.restore_serializer()

    def _learn_keys(self, operator: LocalOperator, input_index: int, records: Sequence[Any]) -> None:
        if operator.knows_keys:
            return
        operator.learn_keys(lambda index: records if index == input_index else ())
        if not operator.knows_keys:
            return
        restored = self._restored
        if restored is not None and operator.key_serializer is not None and restored.keyed_metas_of(operator.uid):
            allowed = self.parts.allow_non_restored_state
            report = report_of(
                restored, operator.uid, operator.key_serializer, operator.states, allowed, self.parts.rules.verdicts
            )
            report.raise_if_incompatible(_JUDGED_LATE)
            self.schema_reports[operator.uid] = report


_JUDGED_LATE: Final = (
    "only a record told the types of its keys, when the job had begun: this epoch is given up, what it goes on from is "
    "as it was"
)
"""What is told of a verdict that no start can give."""


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000
