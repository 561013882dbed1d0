"""A schedule of the cluster, from its first run to its last: each failure is the begin of another run."""

from __future__ import annotations

from collections import Counter

from checkpointing.errors import CheckpointError, LeadershipLostError, StorageError
from simulation.cluster.history import History, expected_origins
from simulation.cluster.messages import Messages
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.run import ClusterRun, JobFailed
from simulation.host.chance import seeded_names
from simulation.host.disk import Process
from simulation.host.faults import ProcessDied, TaskFailed
from simulation.host.machine import Machine
from simulation.violation import Violation, require_that

__all__ = ["run_cluster"]

_MOST_RUNS = 40


def run_cluster(plan: ClusterPlan, machine: Machine) -> None:
    """Runs it; raises `Violation` for a promise that was not kept."""
    messages, history = Messages(machine), History()
    moves = 0
    machine.disk.on_second_driver = lambda: _second_driver(plan, machine, history)
    with seeded_names(plan.seed, machine.clock):
        for life in range(_MOST_RUNS):
            process = Process(f"driver {life}")
            run = ClusterRun(plan, machine, messages, history, process, f"run-{life}")
            machine.trace.add(f"--- run {life}")
            try:
                run.start()
                moves = run.run(moves)
                break
            except (JobFailed, TaskFailed, ProcessDied, LeadershipLostError) as error:
                machine.trace.add(f"--- over: {error}")
            except StorageError as error:
                # Only a start lets a failure of the storage through, and comes again. All else is no fault's doing.
                machine.trace.add(f"--- over: {error}")
            except CheckpointError as error:
                # Who does not lead any more finds what is there in any state: it only must complete nothing.
                require_that(not run.leads, f"a job goes on from what it has stored: {error}")
                machine.trace.add(f"--- over: {error}")
            messages.forget_tasks()
            if process.lost_power:
                machine.disk.lose_power()
        else:
            raise Violation("the job comes to its end: it fails again and again")
        _check_seen(plan, run)
        # Whatever is left to strike does not: the last start shows what all runs have left.
        machine.faults.end()
        machine.disk.lists_late = False
        last = ClusterRun(plan, machine, messages, history, Process("last"), "run-last")
        last.start()


def _second_driver(plan: ClusterPlan, machine: Machine, history: History) -> None:
    """Another driver takes the lease, and runs the job for a while, as long as the first one stands still."""
    number = len(machine.faults.struck)
    process = Process(f"other driver {number}")
    machine.trace.add(f"--- {process.name} begins")
    other = ClusterRun(plan, machine, Messages(machine), history, process, f"other-run-{number}")
    try:
        other.start()
        other.run(0, most=machine.moves_chance.randrange(40, 400))
    except (JobFailed, TaskFailed, ProcessDied, LeadershipLostError, StorageError) as error:
        machine.trace.add(f"--- over: {error}")
    except CheckpointError as error:
        require_that(not other.leads, f"a job goes on from what it has stored: {error}")
    process.die()
    machine.trace.add(f"--- {process.name} ends, and the one before wakes up")


def _check_seen(plan: ClusterPlan, run: ClusterRun) -> None:
    expected = expected_origins(plan)
    for node, seen in run.seen().items():
        counted = Counter(seen)
        if plan.is_exactly_once:
            require_that(
                counted == expected[node],
                f"exactly once: node {node} has seen {dict(counted - expected[node])} too often, and has not seen "
                f"{dict(expected[node] - counted)}",
            )
        else:
            require_that(not expected[node] - counted, f"at least once: node {node} lacks {expected[node] - counted}")
