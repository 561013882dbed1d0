"""`python -m benchmarks inprocess`: a keyed count in this process, beside bytewax, with and without checkpoints."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result

DESCRIPTION = "Jobs in one process, beside bytewax."

REQUIRED_RECORDS_PER_SECOND = 300_000
"""What a keyed count on the heap must reach on one core, with a checkpoint a second."""

REQUIRED_RATIO = 0.8
"""What it must reach of bytewax."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How much to count, and by which clock."""
    parser.add_argument("--records", type=int, default=1_000_000, help="records of a turn (default 1,000,000)")
    parser.add_argument("--keys", type=int, default=10_000, help="keys among them (default 10,000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender (default 3)")
    parser.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="processor: time of all threads on a core, for a busy machine (default wall)",
    )


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Each contender counts the same records, in turns."""
    from benchmarks.inprocess.keyed_count import bytewax_count, our_count, processor_s, records_of, wall_s

    clock = wall_s if arguments.clock == "wall" else processor_s
    records = records_of(arguments.records, arguments.keys)
    contenders = {
        f"{who}, {what}": partial(count, records, has_checkpoints=has_checkpoints, clock=clock)
        for what, has_checkpoints in (("checkpoints", True), ("none", False))
        for who, count in (("ours", our_count), ("bytewax", bytewax_count))
    }
    measured = measure_alternating(contenders, rounds=arguments.rounds)
    for name, measurement in measured.items():
        print(f"{name}: {measurement}", file=sys.stderr, flush=True)
    ours = measured["ours, checkpoints"].median
    yield Result(
        "keyed count, a checkpoint a second",
        ours,
        measured["bytewax, checkpoints"].median,
        "bytewax with recovery",
        "rows/s",
        REQUIRED_RATIO,
    )
    yield Result(
        "keyed count, a checkpoint a second", ours, measured["bytewax, none"].median, "bytewax without", "rows/s"
    )
    yield Result(
        "keyed count, one checkpoint at the end",
        measured["ours, none"].median,
        measured["bytewax, none"].median,
        "bytewax without",
        "rows/s",
        REQUIRED_RATIO,
    )
    yield Result(
        "keyed count, a checkpoint a second", ours, float(REQUIRED_RECORDS_PER_SECOND), "required", "rows/s", 1.0
    )
