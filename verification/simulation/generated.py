"""Random graphs and chains of upgrades by their seeds: runs thousands, or shortens and prints one."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from attrs import frozen

from verification.simulation.graphs.plan import GraphPlan
from verification.simulation.graphs.run import run_graph
from verification.simulation.upgrades.plan import UpgradePlan
from verification.simulation.upgrades.run import run_upgrades

__all__ = ["GENERATORS", "Generator", "failures_of", "replay_generated", "report_generated", "shortened_plan"]

_MAX_ATTEMPTS: Final = 200
_PRINTED_FAILURES: Final = 5


class GeneratedPlan(Protocol):
    """A plan as data."""

    def description(self) -> str:
        """The plan as text."""

    def shorter(self) -> Iterator[Any]:
        """Return plans that are a little shorter or simpler."""


@frozen
class Generator:
    """Makes and runs plans by seeds; ``group`` plans share one job."""

    of_seed: Callable[[int], GeneratedPlan]
    run: Callable[[Sequence[Any]], None]
    group: int


def _run_graphs(plans: Sequence[GraphPlan]) -> None:
    for plan in plans:
        run_graph(plan)


GENERATORS: Final[Mapping[str, Generator]] = {
    "graphs": Generator(GraphPlan.of_seed, _run_graphs, 1),
    "upgrades": Generator(UpgradePlan.of_seed, run_upgrades, 20),
}


def failures_of(name: str, seeds: Sequence[int]) -> dict[int, str]:
    """Run the plans of these seeds together. Return the failures by seed, found by halving the group."""
    generator = GENERATORS[name]
    failure = _failure(generator, [generator.of_seed(seed) for seed in seeds])
    if failure is None:
        return {}
    if len(seeds) == 1:
        return {seeds[0]: failure}
    middle = len(seeds) // 2
    parts = failures_of(name, seeds[:middle]) | failures_of(name, seeds[middle:])
    return parts or {seeds[0]: f"seeds {seeds[0]} to {seeds[-1]} fail only together: {failure}"}


def shortened_plan(name: str, seed: int, max_attempts: int = _MAX_ATTEMPTS) -> tuple[GeneratedPlan, str | None]:
    """Return the shortest plan found that fails like that of a seed, and its failure; None if it passes."""
    generator = GENERATORS[name]
    plan: Any = generator.of_seed(seed)
    failure = _failure(generator, [plan])
    attempts = 0
    is_shorter = failure is not None
    while is_shorter and attempts < max_attempts:
        is_shorter = False
        for candidate in plan.shorter():
            attempts += 1
            found = _failure(generator, [candidate])
            if found is not None and _kind_of(found) == _kind_of(failure):
                plan, failure, is_shorter = candidate, found, True
                break
            if attempts >= max_attempts:
                break
    return plan, failure


def report_generated(name: str, count: int, seed: int, processes: int) -> int:
    """Print the number of passed plans, and shortened failing ones. Returns 1 if any failed."""
    started_s = time.monotonic()
    group = GENERATORS[name].group
    groups = [(name, range(first, min(first + group, seed + count))) for first in range(seed, seed + count, group)]
    failures: dict[int, str] = {}
    with contextlib.ExitStack() as stack:
        results: Iterable[dict[int, str]] = map(_run_group, groups)
        if processes > 1:
            pool = stack.enter_context(multiprocessing.get_context("fork").Pool(processes))
            results = pool.imap_unordered(_run_group, groups)
        for done, found in enumerate(results, 1):
            failures |= found
            # A stopped run has already printed its failures.
            failing = f": {', '.join(map(str, sorted(found)))} failed" if found else ""
            print(f"group {done} of {len(groups)}{failing}", file=sys.stderr, flush=True)
    took_s = time.monotonic() - started_s
    print(f"{count} {name} from seed {seed}: {len(failures)} failed; {took_s:.1f} s on {processes} processes")
    for failed in sorted(failures)[:_PRINTED_FAILURES]:
        print(f"\n{name} {failed}: {failures[failed]}")
    if failures:
        print(f"\nfailed seeds: {', '.join(map(str, sorted(failures)[:50]))}")
        print(f"python -m verification.simulation --of {name} --replay {min(failures)} shortens the first")
    return 1 if failures else 0


def replay_generated(name: str, seed: int, *, is_whole: bool) -> int:
    """Print the plan of a seed, shortened if it fails, and its failure. Returns 1 if it fails."""
    generator = GENERATORS[name]
    if is_whole:
        plan = generator.of_seed(seed)
        failure = _failure(generator, [plan])
    else:
        plan, failure = shortened_plan(name, seed)
    print(plan.description())
    print(f"{name} {seed}: {failure or 'equal to the model'}")
    return 0 if failure is None else 1


def _run_group(group: tuple[str, Sequence[int]]) -> dict[int, str]:
    name, seeds = group
    return failures_of(name, seeds)


def _failure(generator: Generator, plans: Sequence[Any]) -> str | None:
    # The plans cause start warnings on purpose, such as timers that an input without watermarks blocks.
    logging.disable(logging.WARNING)
    try:
        generator.run(plans)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        logging.disable(logging.NOTSET)
    return None


def _kind_of(failure: str | None) -> str:
    """Return what failures of one cause have in common: the error and the broken promise."""
    return ":".join((failure or "").split(":")[:2])
