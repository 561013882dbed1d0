"""The operators of a run: what their subtasks are made of and restore, and the types of keys that records tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from attrs import frozen

from checkpointing.barriers.barrier_elements import AbortReason
from checkpointing.storage.job_directory import JobDirectory
from migration import EvolutionRules
from savepoints.restored_state import RestoredState
from statebackend.api.progress import ProgressListener
from statebackend.keyed.state_backend import StateBackend
from statebackend.keyed.state_verdicts import SchemaReport
from statebackend.metrics import StateMetricsConfig
from streamjobs.inprocess.local_operator import LocalOperator
from streamjobs.inprocess.local_subtask import CurrentEpoch, LocalSubtask
from streamjobs.inprocess.network.channel import SubtaskOutput
from streamjobs.inprocess.network.subtask_capture import SubtaskCapture
from streamjobs.operators.operator_factories import operator_factory
from streamjobs.runtime.job_start import report_of
from streamjobs.runtime.opened_subtask import FrozenSubtask
from streamjobs.runtime.restore_plan import restores_by_subtask
from streamjobs.runtime.subtask import OperatorParts
from streamjobs.runtime.worker_functions import RunIdentity, WorkerFunctions

__all__ = ["RunOperators", "RunOperatorsParts"]


@frozen(kw_only=True)
class RunOperatorsParts:
    """What all operators of a run share."""

    operators: Mapping[str, LocalOperator]
    directory: JobDirectory
    restored: RestoredState | None
    backend: StateBackend
    parallelism: int
    metrics: StateMetricsConfig | None
    rules: EvolutionRules
    allow_non_restored_state: bool
    has_time: bool
    epoch: CurrentEpoch
    local_directory: str
    functions: WorkerFunctions
    progress: ProgressListener


class RunOperators:
    """See the module; ``reports`` are the verdicts of the start."""

    def __init__(self, parts: RunOperatorsParts, reports: Mapping[str, SchemaReport]) -> None:
        self._parts = parts
        self.schema_reports: dict[str, SchemaReport] = dict(reports)
        """The verdicts on restored state, by operator uid."""
        file_system = parts.directory.file_system
        restored = parts.restored
        self._restores = {
            uid: restores_by_subtask(
                None if restored is None else restored.operator(uid),
                file_system if restored is None else restored.file_system,
                parts.parallelism,
                parts.directory.identity.max_parallelism,
                is_same_run=False,
            )
            for uid in parts.operators
        }
        self._prepare_keys()

    def make_subtask(
        self,
        operator: LocalOperator,
        index: int,
        output: SubtaskOutput,
        snapshots: Callable[[LocalSubtask, SubtaskCapture, FrozenSubtask | None], None],
        aborted: Callable[[LocalSubtask, int, AbortReason], None],
    ) -> LocalSubtask:
        """A subtask that sends into an output; of ``snapshots`` and ``aborted`` see `LocalSubtask`."""
        parts = self._parts
        run = RunIdentity(parts.directory.identity.job_id, parts.directory.run_id)
        return LocalSubtask(
            operator=operator,
            index=index,
            restore=self._restores[operator.uid][index],
            epoch=parts.epoch,
            output=output,
            local_directory=parts.local_directory,
            has_time=parts.has_time,
            parts=self._operator_parts,
            make_function=partial(parts.functions.function, run, operator.uid, operator.make_function),
            snapshots=snapshots,
            aborted=aborted,
            progress=parts.progress,
        )

    def learn_keys(self, operator: LocalOperator, input_index: int, records: Sequence[Any]) -> None:
        """Takes the types of the keys from a record, if nothing has told them yet.

        Raises `StateMigrationException` or `JobRestoreError` if what is restored has keys of others.
        """
        if operator.knows_keys:
            return
        operator.learn_keys(lambda index: records if index == input_index else ())
        if not operator.knows_keys:
            return
        parts, restored = self._parts, self._parts.restored
        if restored is not None and operator.key_serializer is not None and restored.keyed_metas_of(operator.uid):
            allowed = parts.allow_non_restored_state
            report = report_of(
                restored, operator.uid, operator.key_serializer, operator.states, allowed, parts.rules.verdicts
            )
            report.raise_if_incompatible(_JUDGED_LATE)
            self.schema_reports[operator.uid] = report

    def _prepare_keys(self) -> None:
        """Where nothing tells the types of the keys but what is restored, they are those."""
        for operator in self._parts.operators.values():
            metas = () if self._parts.restored is None else self._parts.restored.keyed_metas_of(operator.uid)
            if operator.key_serializer is None and metas:
                operator.key_serializer = metas[0].key_snapshot.restore_serializer()

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
            rules=parts.rules,
            # So that a test sees what every restore does.
            keeps_backends=False,
        )


_JUDGED_LATE: Final = (
    "only a record told the types of its keys, when the job had begun: this epoch is given up, what it goes on from is "
    "as it was"
)
"""What is told of a verdict that no start can give."""
