"""Shorter schedules of a job: with one fault, event or run less, or fewer subtasks."""

from __future__ import annotations

from collections.abc import Iterator

from attrs import evolve

from verification.simulation.cluster.plan import BarrierMode
from verification.simulation.jobs.plan import JobPlan, Shape

__all__ = ["shorter_jobs"]


def shorter_jobs(plan: JobPlan) -> Iterator[JobPlan]:
    """Yield plans that lack something, the largest reductions first."""
    for index in range(len(plan.faults)):
        yield evolve(plan, faults=plan.faults[:index] + plan.faults[index + 1 :])
    if plan.shape in (Shape.LONG_CHAIN, Shape.TWO_SINKS):
        yield evolve(plan, shape=Shape.CHAIN)
    if plan.backend != "heap":
        yield evolve(plan, backend="heap")
    if plan.stops:
        yield evolve(plan, stops=plan.stops[:-1])
    if plan.has_staged_sinks:
        yield evolve(plan, has_staged_sinks=False)
    if plan.mode is not BarrierMode.ALIGNED:
        yield evolve(plan, mode=BarrierMode.ALIGNED)
    for source, events in enumerate(plan.events):
        for index in range(len(events) - 1):
            fewer = events[:index] + events[index + 1 :]
            yield evolve(plan, events=(*plan.events[:source], fewer, *plan.events[source + 1 :]))
    for index in range(len(plan.parallelism)):
        if len(plan.parallelism) > 1:
            yield evolve(plan, parallelism=plan.parallelism[:index] + plan.parallelism[index + 1 :])
        if plan.parallelism[index] > 1:
            less = plan.parallelism[index] - 1
            yield evolve(plan, parallelism=(*plan.parallelism[:index], less, *plan.parallelism[index + 1 :]))
    if plan.slow is not None:
        yield evolve(plan, slow=None)
    if plan.max_concurrent > 1:
        yield evolve(plan, max_concurrent=1)
    for index, fault in enumerate(plan.faults):
        for at in sorted({fault.at // 2, fault.at - 1}):
            if 0 <= at < fault.at:
                yield evolve(plan, faults=(*plan.faults[:index], evolve(fault, at=at), *plan.faults[index + 1 :]))
