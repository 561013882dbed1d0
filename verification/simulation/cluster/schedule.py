"""Runs a schedule of the cluster: each failure starts another run."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from attrs import define, field

from statebackend.checkpoint.errors import CheckpointError, JobDirectoryLockedError, LeadershipLostError, StorageError
from verification.simulation.cluster.coordinator_actions import JobFailed
from verification.simulation.cluster.history import History, expected_origins
from verification.simulation.cluster.lease_history import LeaseHistory
from verification.simulation.cluster.messages import Messages
from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.run import ClusterRun
from verification.simulation.cluster.run_lease import RunLease
from verification.simulation.host.chance import seeded_names
from verification.simulation.host.disk import Process
from verification.simulation.host.faults import FaultKind, ProcessDied, TaskFailed
from verification.simulation.host.machine import Machine
from verification.simulation.violation import Violation, require_that

__all__ = ["run_cluster"]

_MOST_RUNS = 40


def run_cluster(plan: ClusterPlan, machine: Machine) -> None:
    """Run a schedule. Raises `Violation` if a promise is broken."""
    _ClusterSchedule(plan, machine).run()


@define(eq=False)
class _ClusterSchedule:
    """A running schedule, and the drivers that take part in it."""

    plan: ClusterPlan
    machine: Machine
    history: History = field(factory=History)
    _leases: dict[str, RunLease] = field(factory=dict)
    """The lease of each driver, by the name of its process."""

    def run(self) -> None:
        """Run the schedule; see `run_cluster`."""
        machine, messages = self.machine, Messages(self.machine)
        if self.plan.lease_ms is not None:
            self.history.lease = LeaseHistory(machine.clock)
            machine.disk.on_written = self.history.lease.written
        machine.disk.on_other_driver = self._other_driver
        moves = 0
        with seeded_names(self.plan.seed, machine.clock):
            for life in range(_MOST_RUNS):
                process = Process(f"driver {life}")
                run = self._made(process, f"run-{life}", messages)
                machine.trace.add(f"--- run {life}")
                with machine.zookeeper.asked_by(process), self._ending(run):
                    run.start()
                    moves = run.run(moves)
                    run.close()
                    break
                messages.forget_tasks()
                if process.lost_power:
                    machine.disk.lose_power()
            else:
                raise Violation("the job terminates: it fails again and again")
            _check_seen(self.plan, run)
            # The remaining faults are dropped: the last start shows the state that all runs have left.
            machine.faults.end()
            machine.disk.lists_late = False
            machine.zookeeper.silent_until_s = 0.0
            process = Process("last")
            with machine.zookeeper.asked_by(process):
                self._made(process, "run-last", messages).start()

    def _made(self, process: Process, run_id: str, messages: Messages, beside: RunLease | None = None) -> ClusterRun:
        lease = RunLease(self.machine, process, self.plan.lease_ms or 0, self.plan.is_stand_by, beside)
        self._leases[process.name] = lease
        return ClusterRun(self.plan, self.machine, messages, self.history, process, run_id, lease)

    @contextlib.contextmanager
    def _ending(self, run: ClusterRun) -> Iterator[None]:
        """Let a run end by an error that a fault explains, and by no other."""
        renewals = 0 if self.history.lease is None else self.history.lease.writes
        try:
            yield
            return
        except (JobFailed, TaskFailed) as error:
            self.machine.trace.add(f"--- over: {error}")
        except ProcessDied as error:
            self.machine.trace.add(f"--- over: {error}")
            return
        except LeadershipLostError as error:
            require_that(not run.has_lease, f"the holder of the lease leads: {error}")
            self.machine.trace.add(f"--- over: {error}")
        except JobDirectoryLockedError as error:
            lease = self.history.lease
            is_renewed = lease is not None and lease.writes > renewals
            require_that(is_renewed, f"a driver is rejected only while another one is alive: {error}")
            self.machine.trace.add(f"--- over: {error}")
        except StorageError as error:
            # A failure of the storage may end a start, which is then repeated. No fault causes any other error.
            self.machine.trace.add(f"--- over: {error}")
        except CheckpointError as error:
            # A driver that lost the leadership may find files in any state. It must only complete nothing.
            require_that(not run.leads, f"a job continues from its stored checkpoints: {error}")
            self.machine.trace.add(f"--- over: {error}")
        # A driver whose job has failed releases its resources, and may die while it does.
        with contextlib.suppress(ProcessDied):
            run.close()

    def _other_driver(self, kind: FaultKind, struck: Process) -> None:
        """Start another driver, which runs the job for a while if it becomes the leader.

        The first driver is paused until then, or runs beside it.
        """
        machine = self.machine
        number = len(machine.faults.struck)
        process = Process(f"other driver {number}")
        machine.trace.add(f"--- {process.name} begins")
        beside = self._leases.get(struck.name) if kind is FaultKind.RIVAL_DRIVER else None
        other = self._made(process, f"other-run-{number}", Messages(machine), beside)
        before, machine.zookeeper.heard_of = machine.zookeeper.heard_of, struck if beside is not None else None
        with machine.zookeeper.asked_by(process), self._ending(other):
            other.start()
            other.run(0, most=machine.moves_chance.randrange(40, 400))
        machine.zookeeper.heard_of = before
        process.die()
        machine.trace.add(f"--- {process.name} ends, and the one before goes on")


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
