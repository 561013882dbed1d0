"""What a running job is made of, and what of it goes out to the workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import field, frozen

from checkpointing.metadata.checkpoint_sections import ReadSource, SavepointIdentity
from checkpointing.storage.completed_checkpoint_store import CompletedCheckpointStore
from checkpointing.storage.file_system import CheckpointFileSystem
from checkpointing.storage.job_directory import JobIdentity
from checkpointing.storage.leadership import Leadership
from migration import LIBRARY_RULES, EvolutionRules
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_verdicts import SchemaReport
from statebackend.metrics import StateMetricsConfig
from streamjobs.observing.job_events import JobListeners
from streamjobs.operators.operator_factories import operator_factory
from streamjobs.runtime.job_sinks import JobSinks
from streamjobs.runtime.local_state_root import LocalStateRoot
from streamjobs.runtime.subtask import OperatorParts
from streamjobs.spark.plans.pipeline import Pipeline
from streamjobs.spark.tasks.partition_task import OperatorTask


@frozen(kw_only=True)
class JobParts:
    """What a running job is made of; ``schema_reports`` are the verdicts on what it restores, by operator uid."""

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
