"""The in-process environment: a program written for Spark, run over a list of elements.

Elements are dealt into epochs. In each epoch every operator's subtasks open their state, process their records in
order, snapshot and close, exactly as a Spark task does; so what a test sees (serialization of what is stored, state
that survives only if it was updated, migration at a restore) is what the job will see in production. Output reaches the
sink when the epoch's checkpoint is complete.
"""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from attrs import define, field

from checkpointing.coordinator.acknowledgement import Acknowledgement
from checkpointing.coordinator.checkpoint_coordinator import CheckpointCoordinator
from checkpointing.metadata.checkpoint_metadata import CheckpointKind, CheckpointMetadata
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.directory_checkpoint_store import DirectoryCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JobDirectory
from checkpointing.storage.job_origin import write_origin
from savepoints.restored_state import RestoredState
from statebackend.api.clock import Clock, StoppedClock, wall_clock
from statebackend.api.key_groups import check_parallelism, key_group_range_of_subtask, subtask_of_key_group
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters, StateRestoreReport
from statebackend.keyed.backend_registry import state_backend
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_verdicts import SchemaReport
from statebackend.metrics import StateMetricsConfig
from streamjobs.api.data_stream import DataStream
from streamjobs.api.key_types import canonical_key, key_serializer_for
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.stream_graph import (
    JobGraph,
    KeyedProcessNode,
    SinkNode,
    SourceNode,
    StreamEdge,
    StreamGraph,
    TransformNode,
    UnionNode,
)
from streamjobs.errors import JobDefinitionError
from streamjobs.inprocess.job import LocalJob
from streamjobs.inprocess.keys import column_types, declared_types, field_getter
from streamjobs.operators.input_batch import ObjectBatch, check_keys
from streamjobs.operators.operator import CollectingEmitter
from streamjobs.operators.operator_factories import operator_factory
from streamjobs.operators.operator_run import OperatorRun
from streamjobs.operators.subtask_backends import SubtaskBackends
from streamjobs.operators.subtask_context import SubtaskContext
from streamjobs.runtime.job_metrics import OperatorMetrics, metrics_of_epoch
from streamjobs.runtime.key_hash import KeyHashError, key_group_hasher
from streamjobs.runtime.processing_time import not_before
from streamjobs.runtime.restore_plan import (
    SubtaskRestore,
    check_backend,
    check_files,
    check_merges,
    check_operators,
    check_states,
    restores_by_subtask,
)
from streamjobs.runtime.starting_point import StartingPoint, check_no_fall_back, starting_point
from streamjobs.runtime.state_registration import RegisteredStates, registered_states, schema_report
from typeserializers.kernel.type_serializer import TypeSerializer


@define
class _Source:
    elements: list[Any]
    types: Mapping[str, str]


@define
class _Operator:
    """An operator with what is known of it so far; key types are known once it has seen a record."""

    node: KeyedProcessNode
    getters: list[Callable[[Any], Any]]
    states: RegisteredStates
    types: tuple[str, ...] = ()
    key_serializer: TypeSerializer[Any] | None = None
    key_group_of: Callable[[Any], int] | None = None


@define
class _Stream:
    """The records of one edge in one epoch, and what is known of the types of their columns."""

    records: list[Any]
    types: Mapping[str, str]


@define
class _Epoch:
    """One epoch: which elements of each source it has, and what has come of them."""

    elements: slice
    streams: dict[StreamEdge, _Stream] = field(factory=dict)
    acknowledgements: list[Acknowledgement] = field(factory=list)


class LocalStreamEnvironment:
    """Builds one job and runs it in this process.

    Without ``job_dir`` its checkpoints live in a temporary directory for as long as the environment or one of its jobs
    does. With
    ``epoch_size`` an epoch, and so a checkpoint, ends after that many elements; without, all elements are one epoch.
    ``metrics`` turns metrics of keyed state on (see `LocalJob.metrics`). ``clock`` gives the time, in milliseconds,
    that an epoch has for state with a time-to-live; it is asked once per epoch.
    """

    def __init__(
        self,
        *,
        job_dir: str | os.PathLike[str] | None = None,
        backend: str | StateBackend = "heap",
        parallelism: int = 1,
        max_parallelism: int = 128,
        epoch_size: int | None = None,
        metrics: StateMetricsConfig | None = None,
        clock: Clock = wall_clock,
    ) -> None:
        try:
            check_parallelism(parallelism, max_parallelism)
        except ValueError as error:
            raise JobDefinitionError(str(error)) from error
        if epoch_size is not None and epoch_size < 1:
            raise JobDefinitionError(f"epoch_size is {epoch_size}; an epoch needs at least one element")
        self.backend = state_backend(backend)
        self.parallelism = parallelism
        self.max_parallelism = max_parallelism
        self.metrics = metrics
        self.clock = clock
        self._epoch_size = epoch_size
        self._temporary = tempfile.TemporaryDirectory(prefix="statebackend-local-")
        self._job_dir = os.fspath(job_dir) if job_dir is not None else os.path.join(self._temporary.name, "job")
        self._graph = StreamGraph()

    def from_elements(self, elements: Iterable[Any], schema: str | None = None) -> DataStream:
        """A stream of records: objects with attributes, or mappings.

        ``schema``, as DDL, tells the types of key columns where Python's do not say enough: without it an ``int`` is a
        ``bigint``, as Spark reads it from Python.
        """
        source = _Source(list(elements), {} if schema is None else declared_types(schema))
        return DataStream(self._graph, self._graph.add(SourceNode(source)))

    def execute(
        self,
        name: str = "job",
        *,
        from_savepoint: str | os.PathLike[str] | None = None,
        allow_non_restored_state: bool = False,
        fall_back_to: int | Literal["previous"] | None = None,
    ) -> LocalJob:
        """Runs the job over all elements and returns when they are processed.

        Restores from ``from_savepoint``, or from the newest checkpoint of ``job_dir``. Raises what `execute` of the
        Spark environment raises. ``fall_back_to`` goes back to an older checkpoint, as it does there; the elements of
        the epochs that are given up have to be given again.
        """
        graph = self._graph.job()
        operators = {
            node.uid: _Operator(
                node,
                [field_getter(key, node.uid, "key_by") for key in node.keys],
                registered_states(copy.deepcopy(node.function), node.uid, self.parallelism),
            )
            for node in graph.operators
        }
        file_system = CheckpointFileSystem.from_uri(self._job_dir)
        JobDirectory.check(self._job_dir, name, self.max_parallelism)
        check_no_fall_back(file_system)
        # Elements are no source with a position: a savepoint's source progress is of no use here.
        newest = (
            DirectoryCheckpointStore.peek(file_system)
            if fall_back_to is None
            else DirectoryCheckpointStore.fall_back_target(file_system, fall_back_to)
        )
        point = starting_point(file_system, newest, from_savepoint, False)
        if fall_back_to is not None and point.state is not None:
            # Nothing is given up for a job that then cannot go on. The types of keys are judged with the first record.
            self._check_job(point.state, operators, allow_non_restored_state)
            for operator in operators.values():
                for meta in point.state.keyed_metas_of(operator.node.uid)[:1]:
                    _judged(operator, meta.key_snapshot.restore_serializer(), point.state, allow_non_restored_state)
        with JobDirectory.open(self._job_dir, name, self.max_parallelism, origin=point.origin) as directory:
            store = DirectoryCheckpointStore(directory.file_system, leadership=directory.leadership)
            target = newest.checkpoint_id if newest is not None and fall_back_to is not None else None
            newest = store.recover(fall_back_to=target)
            point = starting_point(directory.file_system, newest, from_savepoint, False)
            if point.is_new_origin and point.origin is not None:
                write_origin(directory.file_system, point.origin)
            restored = point.state
            if restored is not None:
                self._check_job(restored, operators, allow_non_restored_state)
            run = _Run(self, directory, store, operators, graph, point, allow_non_restored_state)
            most = max(len(node.source.elements) for node in graph.sources)
            size = self._epoch_size or max(1, most)
            for start in range(0, most, size):
                run.epoch(slice(start, start + size))
            return LocalJob(
                store,
                directory.file_system,
                run.schema_reports,
                run.restore_reports,
                run.operator_state_restore_reports,
                run.epochs,
                run.state_metrics,
                {uid: operator.states.keyed for uid, operator in operators.items()},
                self.clock,
                self._temporary,
            )

    def _check_job(
        self, restored: RestoredState, operators: Mapping[str, _Operator], allow_non_restored_state: bool
    ) -> None:
        check_operators(restored, list(operators), self.max_parallelism, allow_non_restored_state)
        check_backend(restored, self.backend)
        check_merges(restored, operators, self.parallelism)
        check_files(restored, operators)

    def close(self) -> None:
        """Removes the temporary directory."""
        self._temporary.cleanup()


class _Run:
    """One execution: epochs, one after the other."""

    def __init__(
        self,
        environment: LocalStreamEnvironment,
        directory: JobDirectory,
        store: CompletedCheckpointStore,
        operators: Mapping[str, _Operator],
        graph: JobGraph,
        point: StartingPoint,
        allow_non_restored_state: bool,
    ) -> None:
        self._environment = environment
        self._directory = directory
        self._store = store
        self._operators = operators
        self._graph = graph
        self._restored = restored = point.state
        self._restored_from = point.restored_from
        self._allow_non_restored_state = allow_non_restored_state
        latest = store.latest()
        first = restored.metadata.checkpoint_id + 1 if restored is not None else 0
        self._epoch_id = first
        self._epoch_clock = StoppedClock(0)
        self._coordinator = CheckpointCoordinator(
            directory.identity.job_id,
            directory.run_id,
            timeout_ms=None,
            max_parallelism=environment.max_parallelism,
            operator_names={uid: operator.node.name for uid, operator in operators.items()},
            last_checkpoint_id=latest.checkpoint_id if latest is not None else None,
        )
        self._local_directory = tempfile.TemporaryDirectory(prefix="statebackend-subtasks-")
        self.schema_reports: dict[str, SchemaReport] = {}
        self.restore_reports: list[StateRestoreReport] = []
        self.operator_state_restore_reports: list[StateRestoreReport] = []
        self.epochs = 0
        self.state_metrics: list[OperatorMetrics] = []

    def epoch(self, elements: slice) -> None:
        """Runs one epoch over these elements of every source and gives what comes out to the sinks."""
        previous_ms = self._restored.metadata.processing_time_ms if self._restored is not None else None
        self._epoch_clock = StoppedClock(not_before(self._environment.clock(), previous_ms))
        epoch = _Epoch(elements)
        for node in self._graph.nodes:
            _STEPS[type(node)](self, epoch, node)
        if epoch.acknowledgements:
            self._complete(epoch.acknowledgements)
        self.state_metrics.append(metrics_of_epoch(epoch.acknowledgements))
        for sink in self._graph.sinks:
            _emit(sink.sink, epoch.streams[sink.inputs[0]].records)
        self.epochs += 1

    def read(self, epoch: _Epoch, node: SourceNode) -> None:
        epoch.streams[StreamEdge(node)] = _Stream(node.source.elements[epoch.elements], node.source.types)

    def transform(self, epoch: _Epoch, node: TransformNode) -> None:
        stream = epoch.streams[node.inputs[0]]
        records = [result for record in stream.records for result in node.function(record)]
        epoch.streams[StreamEdge(node)] = _Stream(records, stream.types)

    def unite(self, epoch: _Epoch, node: UnionNode) -> None:
        streams = [epoch.streams[edge] for edge in node.inputs]
        records = [record for stream in streams for record in stream.records]
        epoch.streams[StreamEdge(node)] = _Stream(records, streams[0].types)

    def process(self, epoch: _Epoch, node: KeyedProcessNode) -> None:
        stream = epoch.streams[node.inputs[0]]
        emitter = CollectingEmitter(self._graph.side_outputs(node))
        self._run_operator(self._operators[node.uid], stream.records, stream.types, emitter, epoch.acknowledgements)
        outputs: dict[OutputTag[Any] | None, list[Any]] = {tag: [] for tag in (None, *emitter.side_outputs)}
        for tag, rows in emitter.taken():
            outputs[tag] += rows
        for tag, records in outputs.items():
            schema = node.schema if tag is None else tag.schema
            types = declared_types(schema) if isinstance(schema, str) else {}
            epoch.streams[StreamEdge(node, tag)] = _Stream(records, types)

    def end(self, epoch: _Epoch, node: SinkNode) -> None:
        """Sinks are given their records when the checkpoint is complete."""

    def _complete(self, acknowledgements: list[Acknowledgement]) -> None:
        """Stores the checkpoint; without any record so far there is no state, and nothing to store."""
        # The tasks of an epoch run one after the other here, so the barrier is behind all of them.
        self._coordinator.trigger(
            self._epoch_id, [one.task for one in acknowledgements], 0, processing_time_ms=self._epoch_clock()
        )
        for one in acknowledgements:
            self._coordinator.acknowledge(one)
        completed = self._coordinator.complete(self._epoch_id)
        parent = self._store.latest()
        metadata = CheckpointMetadata(
            checkpoint_id=self._epoch_id,
            kind=CheckpointKind.CHECKPOINT,
            job_id=self._directory.identity.job_id,
            job_name=self._directory.identity.job_name,
            timestamp_ms=time.time_ns() // 1_000_000,
            max_parallelism=self._environment.max_parallelism,
            operators=completed.operators,
            parent_checkpoint_id=parent.checkpoint_id if parent is not None else None,
            parent_digest=self._store.digest(parent.checkpoint_id) if parent is not None else None,
            processing_time_ms=completed.processing_time_ms,
            timers_due=completed.timers_due,
            restored_from=self._restored_from,
        )
        self._store.add(metadata)
        self._restored = RestoredState(metadata, self._directory.file_system)
        self._epoch_id += 1

    def _run_operator(
        self,
        operator: _Operator,
        records: list[Any],
        types: Mapping[str, str],
        emitter: CollectingEmitter,
        acknowledgements: list[Acknowledgement],
    ) -> None:
        self._learn_key(operator, records, types)
        if operator.key_serializer is None:
            # No record yet and nothing restored: there is no state, and no knowing what its keys will be.
            return
        columns = [[get(record) for record in records] for get in operator.getters]
        for index, canonical in enumerate(map(canonical_key, operator.types)):
            if canonical is not None:
                columns[index] = list(map(canonical, columns[index]))
        is_composite = len(columns) > 1
        keys = list(zip(*columns, strict=True)) if is_composite else columns[0]
        check_keys(operator.node.uid, keys, is_composite)
        try:
            key_groups = [operator.key_group_of(key) for key in keys] if operator.key_group_of is not None else []
        except KeyHashError as error:
            raise KeyHashError(
                f"operator {operator.node.uid!r}: {error}. The first record decides on the types of a key; give all "
                f"records keys of the same types before key_by"
            ) from error
        parallelism, max_parallelism = self._environment.parallelism, self._environment.max_parallelism
        shares: list[list[int]] = [[] for _ in range(parallelism)]
        for index, key_group in enumerate(key_groups):
            shares[subtask_of_key_group(key_group, parallelism, max_parallelism)].append(index)
        restore = restores_by_subtask(
            self._restored.operator(operator.node.uid) if self._restored is not None else None,
            self._restored.file_system if self._restored is not None else self._directory.file_system,
            parallelism,
            max_parallelism,
            is_same_run=self.epochs > 0,
        )
        for subtask_index, share in enumerate(shares):
            if operator.node.order_by:
                order = [field_getter(name, operator.node.uid, "order_by") for name in operator.node.order_by]
                share.sort(key=lambda index: tuple(get(records[index]) for get in order))
            batch = ObjectBatch(
                [records[index] for index in share],
                [keys[index] for index in share],
                [key_groups[index] for index in share],
            )
            self._run_subtask(operator, subtask_index, batch, restore[subtask_index], emitter, acknowledgements)

    def _learn_key(self, operator: _Operator, records: list[Any], types: Mapping[str, str]) -> None:
        if operator.key_group_of is not None:
            return
        uid = operator.node.uid
        metas = self._restored.keyed_metas_of(uid) if self._restored is not None else ()
        if not records:
            if metas:
                operator.key_serializer = metas[0].key_snapshot.restore_serializer()
            return
        operator.types = column_types(operator.getters, types, operator.node.keys, records[0], uid)
        operator.key_serializer = key_serializer_for(operator.types, uid)
        operator.key_group_of = key_group_hasher(operator.types, self._environment.max_parallelism)
        if self._restored is not None and metas and uid not in self.schema_reports:
            self.schema_reports[uid] = _judged(
                operator, operator.key_serializer, self._restored, self._allow_non_restored_state
            )

    def _run_subtask(
        self,
        operator: _Operator,
        subtask_index: int,
        batch: ObjectBatch,
        restore: SubtaskRestore,
        emitter: CollectingEmitter,
        acknowledgements: list[Acknowledgement],
    ) -> None:
        environment, uid = self._environment, operator.node.uid
        number = str(list(self._operators).index(uid))
        assert operator.key_serializer is not None
        parameters = KeyedStateBackendParameters(
            operator_uid=uid,
            key_serializer=operator.key_serializer,
            max_parallelism=environment.max_parallelism,
            key_group_range=key_group_range_of_subtask(
                subtask_index, environment.parallelism, environment.max_parallelism
            ),
            file_system=self._directory.file_system,
            file_prefix=f"shared/{number}/{subtask_index:05d}",
            local_directory=os.path.join(self._local_directory.name, number, str(subtask_index)),
            restore=restore.keyed,
            metrics=environment.metrics,
            clock=self._epoch_clock,
        )
        with (
            environment.backend.create_keyed_state_backend(parameters) as backend,
            contextlib.closing(SubtaskBackends(backend, restore.operator)) as state,
        ):
            context = SubtaskContext(
                state,
                uid,
                subtask_index,
                environment.parallelism,
                self._epoch_id,
                is_restored=restore.is_restored,
                planned=operator.states.keyed_names,
                planned_operator_state=operator.states.operator_names,
            )
            function = copy.deepcopy(operator.node.function)
            running = OperatorRun(operator_factory(operator.node)(function, uid), uid)
            with running.opened(context, emitter):
                running.process_batch(0, batch)
                running.prepare_snapshot()
            snapshot = state.snapshot(self._epoch_id, uuid.uuid4().hex)
            metrics = state.metrics_report()
            if restore.is_restored:
                self.restore_reports += backend.restore_reports
                self.operator_state_restore_reports += state.operator_state_restore_reports
        acknowledgements.append(
            Acknowledgement(
                job_id=self._directory.identity.job_id,
                run_id=self._directory.run_id,
                checkpoint_id=self._epoch_id,
                operator_uid=uid,
                subtask_index=subtask_index,
                attempt_id="0",
                digest=snapshot.digest,
                state=snapshot.state,
                metrics=metrics,
            )
        )


_STEPS: Final[Mapping[type, Callable[[_Run, _Epoch, Any], None]]] = {
    SourceNode: _Run.read,
    TransformNode: _Run.transform,
    UnionNode: _Run.unite,
    KeyedProcessNode: _Run.process,
    SinkNode: _Run.end,
}


def _judged(
    operator: _Operator, key_serializer: TypeSerializer[Any], restored: RestoredState, allow_non_restored_state: bool
) -> SchemaReport:
    uid = operator.node.uid
    operator_state = restored.operator_state_metas_of(uid)
    report = schema_report(uid, key_serializer, operator.states, restored.keyed_metas_of(uid), operator_state)
    report.raise_if_incompatible()
    check_states(report, allow_non_restored_state)
    return report


def _emit(sink: Any, records: list[Any]) -> None:
    if callable(sink):
        for record in records:
            sink(record)
    else:
        sink.extend(records)
