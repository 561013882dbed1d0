"""The parts of a running job, and those that are sent to the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from migration import LIBRARY_RULES, EvolutionRules
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.ha.leadership import Leadership
from statebackend.checkpoint.metadata import ReadSource, SavepointIdentity
from statebackend.checkpoint.store.completed_checkpoint_store import CompletedCheckpointStore
from statebackend.checkpoint.store.job_directory import JobIdentity
from statebackend.spark.plans.pipeline import Pipeline
from statebackend.spark.tasks.epoch_task import OperatorTask
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.streaming.observing.job_events import JobListeners
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.runtime.job_sinks import JobSinks
from statebackend.streaming.runtime.local_state_root import LocalStateRoot
from statebackend.streaming.runtime.subtask import OperatorParts


@frozen(kw_only=True)
class JobParts:
    """What a running job is made of; ``schema_reports`` are the compatibility results on what it restores, by operator
    uid.
    """

    identity: JobIdentity
    run_id: str
    pipeline: Pipeline
    sinks: JobSinks
    backend: StateBackend
    parallelism: int
    file_system: CheckpointFileSystem
    driver_files: CheckpointFileSystem
    leadership: Leadership
    store: CompletedCheckpointStore
    spark_checkpoint_directory: str
    local_root: LocalStateRoot
    sources: tuple[ReadSource, ...]
    restored_from: SavepointIdentity | None = None
    metrics: StateMetricsConfig | None = None
    rules: EvolutionRules = LIBRARY_RULES
    epoch_timeout_s: float | None = None
    schema_reports: Mapping[str, SchemaReport] = field(factory=dict)
    listeners: JobListeners = field(factory=JobListeners)

    @property
    def attempt_id(self) -> str:
        """What the sink tells the attempts of this run at an epoch by."""
        return f"{self.identity.job_id}.{self.run_id}"


def operator_tasks(parts: JobParts) -> Sequence[OperatorTask]:
    """What goes out to the workers for each operator of the job."""
    return [
        OperatorTask(
            parts=OperatorParts(
                job_id=parts.identity.job_id,
                run_id=parts.run_id,
                operator_uid=operator.uid,
                operator_factory=operator_factory(operator.node.function),
                side_outputs=tuple(operator.layout.side_outputs),
                key_serializer=operator.key_serializer,
                parallelism=parts.parallelism,
                max_parallelism=parts.identity.max_parallelism,
                backend=parts.backend,
                planned=operator.states.planned,
                planned_operator_state=operator.states.planned_operator_state,
                input_schemas=operator.states.input_schemas,
                file_system=parts.file_system,
                metrics=parts.metrics,
                rules=parts.rules,
            ),
            function_pickle=operator.function_pickle,
            inputs=operator.inputs,
            outputs=operator.layout.to_arrow(),
            local_root=parts.local_root,
        )
        for operator in parts.pipeline.operators.values()
    ]
