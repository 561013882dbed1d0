"""The complete history of a simulated job, and the invariants that must always hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from attrs import define, field

from statebackend.checkpoint.coordinator.acknowledgement import TaskId
from statebackend.checkpoint.metadata import CheckpointMetadata
from statebackend.checkpoint.state_handles import SubtaskState
from verification.simulation.cluster.channel import Origin
from verification.simulation.cluster.lease_history import LeaseHistory
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.task import TaskState
from verification.simulation.violation import require_that

__all__ = ["History", "check_is_cut", "expected_origins"]


@define
class History:
    """``stored`` are the checkpoints reported as stored, ``acknowledged`` the snapshots that tasks acknowledged."""

    stored: set[int] = field(factory=set)
    savepoints: dict[str, CheckpointMetadata] = field(factory=dict)
    leader: str = ""
    """The run that became the leader last, in plans where another driver may lead meanwhile."""
    lease: LeaseHistory | None = None
    acknowledged: dict[tuple[str, int, TaskId], list[SubtaskState]] = field(factory=dict)

    def on_acknowledged(self, run_id: str, checkpoint_id: int, task: TaskId, state: SubtaskState) -> None:
        """Record that a task has acknowledged its state."""
        self.acknowledged.setdefault((run_id, checkpoint_id, task), []).append(state)

    def check_acknowledged(self, run_id: str, metadata: CheckpointMetadata, tasks: Collection[TaskId]) -> None:
        """Check that every task has acknowledged its state in a checkpoint."""
        states = {
            TaskId(operator.uid, index): state
            for operator in metadata.operators
            for index, state in enumerate(operator.subtasks)
        }
        for task in tasks:
            known = self.acknowledged.get((run_id, metadata.checkpoint_id, task), [])
            require_that(
                states.get(task) in known,
                f"a checkpoint completes only with every acknowledgement: {task} has not acknowledged what checkpoint "
                f"{metadata.checkpoint_id} has of it",
            )


def check_is_cut(
    states: Mapping[TaskId, TaskState], channels: Mapping[int, tuple[TaskId, TaskId]], *, is_exactly_once: bool
) -> None:
    """Check a consistent cut: each record sent before the checkpoint was received before it or is stored in it."""
    for number, (sender, reader) in channels.items():
        sent = states[sender].sent.get(number, 0)
        received = states[reader].received.get(number, 0)
        numbers = [one.number for one in states[reader].on_the_way.get(number, [])]
        description = f"from {sender} to {reader}: {sent} sent, {received} received, on the way {numbers}"
        if is_exactly_once:
            is_cut = received <= sent and numbers == list(range(received, sent))
            require_that(is_cut, f"a checkpoint is a consistent cut; {description}")
        else:
            require_that(received >= sent, f"a checkpoint loses nothing; {description}")


def expected_origins(plan: ClusterPlan) -> Mapping[int, Counter[Origin]]:
    """Return what each node has received at the end, if every record arrives once."""
    expected: dict[int, Counter[Origin]] = {}
    for node in plan.nodes:
        if node in plan.sources:
            expected[node] = Counter(
                (node, index, place) for index in range(plan.parallelism) for place in range(plan.records)
            )
            continue
        expected[node] = Counter()
        for edge in plan.edges:
            if edge.reader == node:
                copies = plan.parallelism if edge.is_broadcast else 1
                for origin, count in expected[edge.sender].items():
                    expected[node][origin] += count * copies
    return expected
