"""A job described by its operators and registered state, without source, session or records.

An environment builds it from its graph before anything runs. It contains what a compatibility check needs. `lock_of`
creates a schema lockfile from it, and `judged_by` compares it with one, by the check of a savepoint at a start.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from attrs import field, frozen

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility
from snapshots.type_serializer_snapshot import RULES, CompatibilityRules
from statebackend.savepoint.lockfile import LockedOperator, StateLock
from statebackend.savepoint.restored_state import RestoredState, StoredSchemas
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_handles import OperatorStateMeta, StatePart, envelopes_of
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_compatibility import SchemaReport
from statebackend.state.state_meta import KeyedStateMeta, first_meta_of
from statebackend.streaming.errors import JobDefinitionError, JobRestoreError
from statebackend.streaming.runtime.job_start import StartingOperator, judged, reports_of
from statebackend.streaming.runtime.restore_plan import rejection_of_key_groups
from statebackend.streaming.runtime.state_registration import keyed_descriptors
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["DescribedJob", "DescribesJob", "Takeover", "judged_by", "lock_of", "takeover_of"]


@frozen
class DescribedJob:
    """The operators of a job by uid; ``sources`` are those that go on from positions in the state, by uid."""

    operators: Mapping[str, StartingOperator]
    max_parallelism: int
    rules: CompatibilityRules = field(default=RULES, repr=False)
    sources: Sequence[str] = ()


@runtime_checkable
class DescribesJob(Protocol):
    """What can be asked for the state of the job that was built with it: the environments."""

    def described(self) -> DescribedJob:
        """The job as it is built so far. Raises `JobDefinitionError` for one that could not run."""
        ...


@frozen
class Takeover:
    """What a job would take over of stored state, and what it would leave behind.

    ``dropped_operators`` have state and are not in the job. A start accepts them, and states that are not registered,
    only with ``allow_non_restored_state``. ``rejection`` is why no start accepts any of it, for other key groups; the
    states are judged all the same.
    """

    reports: Mapping[str, SchemaReport]
    dropped_operators: tuple[str, ...] = ()
    rejection: str | None = None

    @property
    def is_possible(self) -> bool:
        """Whether nothing that is registered is rejected."""
        return self.rejection is None and all(report.is_compatible for report in self.reports.values())

    @property
    def lossy(self) -> Sequence[tuple[str, str, CompatibilityIssue]]:
        """What is lost inside of states that are taken over, with the operator and the state."""
        return [
            (uid, compatibility.state_name, issue)
            for uid, report in self.reports.items()
            for compatibility in (*report.compatibilities, *report.operator_state_compatibilities)
            for issue in compatibility.issues
            if issue.compatibility is FieldCompatibility.LOSSY
        ]

    @property
    def leaves_state_behind(self) -> bool:
        """Whether there are operators or states that the job has not; see ``allow_non_restored_state`` above."""
        unregistered = (one.unregistered or one.unregistered_operator_state for one in self.reports.values())
        return bool(self.dropped_operators) or any(unregistered)


def lock_of(job: DescribedJob) -> StateLock:
    """The lock of a job: operators and states in the order of their names.

    Raises `JobDefinitionError` for an operator the types of whose keys are not known without a record.
    """
    return StateLock(job.max_parallelism, tuple(_locked(job.operators[uid]) for uid in sorted(job.operators)))


def judged_by(job: DescribedJob, stored: StoredSchemas) -> Takeover:
    """What the job would take over of what a lock says, in the words of a start.

    Raises `StateRestoreError` where it cannot be read here, and as `lock_of`.
    """
    _require_known_keys(job)
    return _takeover(job, stored, reports_of(stored, job.operators, True, job.rules))


def takeover_of(
    job: DescribedJob,
    restored: RestoredState,
    *,
    backend: StateBackend | None = None,
    parallelism: int | None = None,
) -> Takeover:
    """What the job would take over of a savepoint or checkpoint; touches nothing.

    Without a ``backend`` or a ``parallelism`` they are those that the state was written with. Raises as `judged` and
    `lock_of`, but nothing for other key groups and what the job does not register.
    """
    _require_known_keys(job)
    if parallelism is not None and parallelism > restored.max_parallelism:
        raise JobRestoreError(
            f"the state at {restored.where} has {restored.max_parallelism} key groups, which are too few for a "
            f"parallelism of {parallelism}: at most so many subtasks can have some"
        )
    reports = judged(
        restored,
        job.operators,
        backend=backend,
        parallelism=parallelism,
        max_parallelism=restored.max_parallelism,
        allow_non_restored_state=True,
        rules=job.rules,
        takes_channel_state=True,
        sources=job.sources,
    )
    return _takeover(job, restored, reports)


def _takeover(job: DescribedJob, stored: StoredSchemas, reports: Mapping[str, SchemaReport]) -> Takeover:
    known = [*job.operators, *job.sources]
    dropped = tuple(uid for uid in stored.operator_uids if uid not in known)
    return Takeover(reports, dropped, rejection_of_key_groups(stored, job.max_parallelism))


def _locked(operator: StartingOperator) -> LockedOperator:
    key_serializer = _known_keys(operator)
    states = [
        first_meta_of(descriptor, operator.states.namespaces.get(descriptor.name, VOID_NAMESPACE_SERIALIZER))
        for descriptor in _by_name(keyed_descriptors(operator.states, key_serializer))
    ]
    operator_states = [
        OperatorStateMeta(descriptor.name, descriptor.mode, (StatePart(envelopes_of(descriptor.serializers)),))
        for descriptor in _by_name(operator.states.operator)
    ]
    keyed = KeyedStateMeta(key_serializer.snapshot_configuration(), 0, tuple(states))
    return LockedOperator(operator.uid, keyed, tuple(operator_states))


def _require_known_keys(job: DescribedJob) -> None:
    """What is stored would be taken for right where the types of keys are not known."""
    for operator in job.operators.values():
        _known_keys(operator)


def _known_keys(operator: StartingOperator) -> TypeSerializer[Any]:
    if operator.key_serializer is None:
        raise JobDefinitionError(
            f"operator {operator.uid!r}: the types of its keys are not known without a record. Declare the schema of "
            f"its source, as in from_elements([], schema='name string'), and key by names of its columns"
        )
    return operator.key_serializer


def _by_name(descriptors: Iterable[Any]) -> list[Any]:
    return sorted(descriptors, key=lambda one: one.name)
