"""The command: runs many schedules, graphs or upgrades on all cores, or replays one and prints its steps."""

from __future__ import annotations

import argparse
import os
import sys

from verification.simulation.generated import GENERATORS, replay_generated, report_generated
from verification.simulation.report import replay, report


def main() -> int:
    """Run the command. Returns 1 if a schedule has failed."""
    parser = argparse.ArgumentParser(prog="python -m verification.simulation", description=__doc__)
    parser.add_argument("--schedules", type=int, default=1000, help="how many of each kind (default: 1000)")
    parser.add_argument(
        "--of", choices=("schedules", *GENERATORS), help="only those (default: all kinds; with --replay: schedules)"
    )
    parser.add_argument("--seed", type=int, default=1, help="the seed of the first; the others follow (default: 1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="at a time (default: one for each core)")
    parser.add_argument("--replay", type=int, metavar="SEED", help="print the schedule of that seed step by step")
    parser.add_argument("--whole", action="store_true", help="with --replay: do not shorten a schedule that fails")
    arguments = parser.parse_args()
    if arguments.replay is not None:
        if arguments.of in GENERATORS:
            return replay_generated(arguments.of, arguments.replay, is_whole=arguments.whole)
        return replay(arguments.replay, is_whole=arguments.whole)
    status = 0
    if arguments.of in (None, "schedules"):
        status = report(arguments.schedules, arguments.seed, arguments.processes)
    for name in GENERATORS:
        if arguments.of in (None, name):
            status |= report_generated(name, arguments.schedules, arguments.seed, arguments.processes)
    return status


if __name__ == "__main__":
    # The order of sets of strings must depend on the schedule only, so the hash seed is fixed.
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.execve(
            sys.executable,
            [sys.executable, "-m", "verification.simulation", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    raise SystemExit(main())
