"""Injects strikes into flights jobs, and compares the output of each job with plain Spark."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from attrs import define, field

from examples.data.flights_dataset import PART_COUNT
from examples.demonstration.comparison import DifferenceError
from tests.java_options import use_short_lived_java
from verification.chaos.report import recovery_table
from verification.chaos.rounds import Recovery, Round
from verification.chaos.run_directory import run_directory
from verification.chaos.strikes import Strike, Target, World, strikes
from verification.chaos.worlds import WorldMissingError, opened_world

BACKENDS = ("rocksdb", "heap")


def main() -> int:
    """Run the command; return 1 and keep the files if output was lost, duplicated or wrong, or files were left over."""
    kinds = {one.name.lower().replace("_", "-"): one for one in Target}
    parser = argparse.ArgumentParser(prog="python -m verification.chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="number of strikes (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the strikes (default: 1)")
    parser.add_argument(
        "--kinds", nargs="+", choices=kinds, default=list(kinds), help="kinds of strikes (default: all)"
    )
    parser.add_argument(
        "--parts", type=int, default=PART_COUNT, help=f"parts of the year for each job (default: {PART_COUNT})"
    )
    parser.add_argument(
        "--sinks", action="store_true", help="kill a job that writes to Delta, PostgreSQL and Kafka, without Spark"
    )
    options = parser.parse_args()
    if options.sinks:
        return _sinks(options.seed, options.kills)
    use_short_lived_java()
    run = _Run(options.parts, list(strikes(options.seed, options.kills, [kinds[name] for name in options.kinds])))
    try:
        with run_directory(DifferenceError) as root:
            run.rounds(root)
    except DifferenceError as error:
        print(f"FAILED: {error}\nThe files are in {root}. Repeat the run with --seed {options.seed}.", file=sys.stderr)
        return 1
    except WorldMissingError as error:
        print(f"{error}. Use --kinds to select kinds that do not need it.", file=sys.stderr)
        return 2
    finally:
        print("\n".join(recovery_table(run.recoveries)), flush=True)
    return 0


def _sinks(seed: int, kills: int) -> int:
    # This module imports the clients of the servers, which are extras.
    from verification.chaos.sinks import run_sinks

    try:
        with run_directory(DifferenceError) as root:
            run_sinks(root, seed, kills, _say)
    except DifferenceError as error:
        print(f"FAILED: {error}\nThe files are in {root}. Repeat the run with --seed {seed}.", file=sys.stderr)
        return 1
    return 0


@define
class _Run:
    """Runs jobs, one world after the other, until no strikes are left."""

    parts: int
    strikes: Sequence[Strike]
    recoveries: list[Recovery] = field(factory=list)

    def rounds(self, root: Path) -> None:
        """Run all jobs.

        Raises:
            DifferenceError: if the output of a job is wrong, or a job does not recover.
            WorldMissingError: if this machine lacks something that a world needs.
        """
        remaining = {world: deque(one for one in self.strikes if one.world is world) for world in World}
        number = 0
        while any(remaining.values()):
            for world in [one for one in World if remaining[one]]:
                backend = BACKENDS[number % len(BACKENDS)]
                _say(f"job {number}, {world.value}, {backend}: flights of {self.parts} parts of the year")
                place = root / f"job-{number}"
                with opened_world(world, place / "world") as opened:
                    played = Round(place, opened, self.parts, backend, _say, self.recoveries)
                    played.run(remaining[world])
                    _say(played.compare())
                number += 1


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
