"""Schedules by their seeds: their kind, the outcome of a run, and shorter ones that fail too."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from attrs import frozen

from verification.simulation.cluster.plan import ClusterPlan
from verification.simulation.cluster.schedule import run_cluster
from verification.simulation.cluster.shorter import shorter_clusters
from verification.simulation.host.faults import Fault
from verification.simulation.host.machine import Machine
from verification.simulation.jobs.plan import JobPlan
from verification.simulation.jobs.schedule import run_job
from verification.simulation.jobs.shorter import shorter_jobs
from verification.simulation.violation import Violation

__all__ = ["Outcome", "Plan", "plan_of_seed", "run_schedule", "shortened"]

_MOST_ATTEMPTS: Final = 150
_ONE_JOB_IN: Final = 3
"""The others are of the cluster, which costs less."""


class Plan(Protocol):
    """A schedule as data."""

    @property
    def seed(self) -> int:
        """The seed of the random generators."""

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults that are injected."""

    def description(self) -> str:
        """The plan in a few lines."""


@frozen(kw_only=True)
class Outcome:
    """The outcome of one run of a schedule; ``failure`` is None if all promises were kept."""

    plan: Plan
    failure: str | None
    interleaving: int
    points: frozenset[tuple[str, str]]
    steps: int
    struck: int
    cpu_s: float
    lines: tuple[str, ...] = ()


def plan_of_seed(seed: int) -> Plan:
    """Return the schedule of a seed."""
    return JobPlan.of_seed(seed) if seed % _ONE_JOB_IN == 0 else ClusterPlan.of_seed(seed)


def run_schedule(plan: Plan, *, keeps_lines: bool = False) -> Outcome:
    """Run a schedule once. An error that no fault explains is a failure."""
    machine = Machine.of_seed(plan.seed, plan.faults, keeps_lines)
    failure = None
    # The product logs failures of the storage, which the schedule causes on purpose.
    logging.disable(logging.WARNING)
    began_s = time.process_time()
    try:
        _RUN[type(plan)](plan, machine)
    except Violation as error:
        failure = str(error)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return Outcome(
        plan=plan,
        failure=failure,
        interleaving=machine.trace.interleaving,
        points=frozenset(machine.disk.points),
        steps=sum(machine.faults.steps.values()),
        struck=len(machine.faults.struck),
        cpu_s=time.process_time() - began_s,
        lines=tuple(machine.trace.lines),
    )


def shortened(plan: Plan) -> Plan:
    """Return the shortest schedule found that fails too, by leaving out one part after the other."""
    attempts = 0
    while True:
        for candidate in _SHORTER[type(plan)](plan):
            attempts += 1
            if attempts > _MOST_ATTEMPTS:
                return plan
            if run_schedule(candidate).failure is not None:
                plan = candidate
                break
        else:
            return plan


_RUN: Final[Mapping[type, Callable[[Any, Machine], None]]] = {ClusterPlan: run_cluster, JobPlan: run_job}
_SHORTER: Final[Mapping[type, Callable[[Any], Iterator[Plan]]]] = {
    ClusterPlan: shorter_clusters,
    JobPlan: shorter_jobs,
}
