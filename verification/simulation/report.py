"""Runs many schedules, reports their coverage, and prints a shortened failing one."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator

from verification.simulation.schedules import Outcome, plan_of_seed, run_schedule, shortened

__all__ = ["coverage", "replay", "report", "run_many"]

_REPORTED_FAILURES = 5
_LAST_LINES = 60


def run_many(schedules: int, seed: int, processes: int) -> Iterator[Outcome]:
    """Yield the outcomes of the schedules ``seed``, ``seed + 1``, ... as they complete."""
    seeds = range(seed, seed + schedules)
    if processes <= 1:
        yield from map(_run, seeds)
        return
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap_unordered(_run, seeds, chunksize=max(1, min(20, schedules // processes)))


def coverage(outcomes: Iterable[Outcome]) -> str:
    """Return a few lines about what the schedules have covered."""
    known = list(outcomes)
    interleavings = len({one.interleaving for one in known})
    points = Counter(point for one in known for point in one.points)
    kinds = Counter(kind for kind, _ in points)
    steps, struck = sum(one.steps for one in known), sum(one.struck for one in known)
    cpu_ms = 1000 * sum(one.cpu_s for one in known) / max(1, len(known))
    description = ", ".join(f"{kind.lower().replace('_', ' ')} {count}" for kind, count in sorted(kinds.items()))
    return (
        f"{len(known)} schedules, {interleavings} interleavings, {steps} steps at which a fault may strike, "
        f"{struck} faults that did\n"
        f"{len(points)} fault points (a fault at a kind of step): {description}\n"
        f"{cpu_ms:.1f} ms of processor time for a schedule"
    )


def report(schedules: int, seed: int, processes: int) -> int:
    """Print coverage and failures. Returns 1 if any failed."""
    began_s = time.monotonic()
    outcomes = list(run_many(schedules, seed, processes))
    took_s = time.monotonic() - began_s
    print(coverage(outcomes))
    print(f"{took_s:.1f} s on {processes} processes, {schedules / took_s:.1f} schedules a second")
    failed = sorted((one for one in outcomes if one.failure is not None), key=lambda one: one.plan.seed)
    for one in failed[:_REPORTED_FAILURES]:
        _tell_failure(one)
    if failed:
        print(
            f"\n{len(failed)} of {schedules} schedules failed: {', '.join(str(one.plan.seed) for one in failed[:50])}"
        )
        print(f"python -m verification.simulation --replay {failed[0].plan.seed} tells the steps of the first")
        return 1
    print("every promise was kept")
    return 0


def replay(seed: int, *, is_whole: bool) -> int:
    """Print the steps of a schedule, shortened if it fails. Returns 1 if it fails."""
    plan = plan_of_seed(seed)
    outcome = run_schedule(plan)
    if outcome.failure is not None and not is_whole:
        plan = shortened(plan)
    outcome = run_schedule(plan, keeps_lines=True)
    print(plan.description())
    print("\n".join(outcome.lines))
    print(f"schedule {seed}: {outcome.failure or 'every promise was kept'}")
    return 0 if outcome.failure is None else 1


def _tell_failure(failed: Outcome) -> None:
    plan = shortened(failed.plan)
    short = run_schedule(plan, keeps_lines=True)
    print(f"\nschedule {failed.plan.seed}: {failed.failure}\nshortened: {short.failure}\n{plan.description()}")
    left_out = len(short.lines) - _LAST_LINES
    if left_out > 0:
        print(f"... {left_out} steps before")
    print("\n".join(short.lines[-_LAST_LINES:]))


def _run(seed: int) -> Outcome:
    return run_schedule(plan_of_seed(seed))
