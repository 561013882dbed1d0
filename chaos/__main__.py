"""The command: so many strikes on flights jobs, and a comparison behind each job."""

from __future__ import annotations

import argparse
import itertools
import shutil
import sys
import tempfile
from collections import deque
from pathlib import Path

from chaos.report import recovery_table
from chaos.rounds import Recovery, Round
from chaos.strikes import strikes
from examples.data.flights_dataset import PART_COUNT
from examples.demonstration.comparison import DifferenceError

BACKENDS = ("rocksdb", "heap")


def main() -> int:
    """Returns 1 if something was lost, doubled, wrong or left over; what was written is kept then."""
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--kills", type=int, default=10, help="how many strikes (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="which strikes (default: 1)")
    parser.add_argument(
        "--parts", type=int, default=PART_COUNT, help=f"of the year, for each job (default: {PART_COUNT})"
    )
    options = parser.parse_args()
    remaining = deque(strikes(options.seed, options.kills))
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    recoveries: list[Recovery] = []
    try:
        for number in itertools.count():
            backend = BACKENDS[number % len(BACKENDS)]
            _say(f"job {number}, {backend}: the flights of {options.parts} parts of the year")
            played = Round(root / f"job-{number}", options.parts, backend, _say)
            played.run(remaining)
            _say(played.compare())
            recoveries += played.recoveries
            if not remaining:
                break
    except DifferenceError as error:
        print(f"FAILED: {error}\nSee {root}; repeat it with --seed {options.seed}.", file=sys.stderr)
        return 1
    shutil.rmtree(root)
    print("\n".join(recovery_table(recoveries)))
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
