"""`python -m benchmarks inprocess`: a keyed count on the local runtime, compared with Bytewax."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result

DESCRIPTION = "Jobs on the local runtime, compared with Bytewax."

REQUIRED_RECORDS_PER_SECOND = 300_000
"""Required speed of a keyed count on the heap on one core, with one checkpoint per second."""

REQUIRED_RATIO = 0.8
"""Required share of the speed of Bytewax."""

REQUIRED_ARROW_RATIO = 10.0
"""Required ratio of the count from Arrow batches to Bytewax with recovery."""

FLINK_ROWS_PER_SECOND = 3_000_000
"""Speed of the count of Flink 2.3 in Java on its heap; measured by hand."""

FLINK_KEYS = 50_000
"""The distinct keys of that count. Ours has as many, whatever ``--keys`` is, because checkpoints cost by key."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--records", type=int, default=1_000_000, help="records per turn (default 1,000,000)")
    parser.add_argument("--keys", type=int, default=10_000, help="distinct keys (default 10,000)")
    parser.add_argument(
        "--repeats", type=int, default=10, help="the Arrow batches repeat the records (default 10 times)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure (default 3)")
    parser.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="processor: processor time of all threads, for a busy machine (default wall)",
    )


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure all contenders on the same records in alternation."""
    from benchmarks.inprocess import keyed_count
    from benchmarks.inprocess.keyed_count import arrow_count, bytewax_count, our_count

    clock = keyed_count.wall_s if arguments.clock == "wall" else keyed_count.processor_s
    records = keyed_count.records_of(arguments.records, arguments.keys)
    contenders = {
        f"{who}, {what}": partial(count, records, has_checkpoints=has_checkpoints, clock=clock)
        for what, has_checkpoints in (("checkpoints", True), ("none", False))
        for who, count in (("ours", our_count), ("bytewax", bytewax_count))
    }
    contenders["arrow"] = partial(arrow_count, keyed_count.table_of(records, arguments.repeats), clock=clock)
    of_flink = keyed_count.records_of(arguments.records, FLINK_KEYS)
    contenders["arrow, keys of Flink"] = partial(
        arrow_count, keyed_count.table_of(of_flink, arguments.repeats), clock=clock
    )
    measured = measure_alternating(contenders, rounds=arguments.rounds)
    for name, measurement in measured.items():
        print(f"{name}: {measurement}", file=sys.stderr, flush=True)
    ours = measured["ours, checkpoints"].median
    yield Result(
        "keyed count, one checkpoint per second",
        ours,
        measured["bytewax, checkpoints"].median,
        "bytewax with recovery",
        "rows/s",
        REQUIRED_RATIO,
    )
    yield Result(
        "keyed count, one checkpoint per second",
        ours,
        measured["bytewax, none"].median,
        "bytewax without recovery",
        "rows/s",
    )
    yield Result(
        "keyed count, one checkpoint at the end",
        measured["ours, none"].median,
        measured["bytewax, none"].median,
        "bytewax without recovery",
        "rows/s",
        REQUIRED_RATIO,
    )
    yield Result(
        "keyed count, one checkpoint per second", ours, float(REQUIRED_RECORDS_PER_SECOND), "required", "rows/s", 1.0
    )
    from_arrow = measured["arrow"].median
    yield Result(
        "count from Arrow batches, one checkpoint per second",
        from_arrow,
        measured["bytewax, checkpoints"].median,
        "bytewax with recovery",
        "rows/s",
        REQUIRED_ARROW_RATIO,
    )
    yield Result(
        f"count from Arrow batches, {FLINK_KEYS:,} keys, one checkpoint per second",
        measured["arrow, keys of Flink"].median,
        float(FLINK_ROWS_PER_SECOND),
        "Flink 2.3 on its heap",
        "rows/s",
        1.0,
    )
