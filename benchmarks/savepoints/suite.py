"""`python -m benchmarks savepoints`: opens, counts, looks up, exports and rewrites, compared with bare pyarrow."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result

DESCRIPTION = "Reading and rewriting a savepoint, compared with bare pyarrow on the same Parquet files."

REQUIRED_RATIO = 0.5
"""Required share of the speed of bare pyarrow, which does not decode keys and values."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--entries", type=int, default=500_000, help="entries per state (default 500,000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure (default 3)")
    parser.add_argument(
        "--clock",
        choices=["wall", "processor"],
        default="wall",
        help="processor: processor time of all threads, for a busy machine (default wall)",
    )
    parser.add_argument(
        "--only",
        choices=("looking", "spark_count", "flink_import"),
        default="looking",
        help="spark_count: count on Spark; flink_import: import a savepoint of Flink",
    )


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure each operation on each state, ours and pyarrow's in alternation, or what ``--only`` names."""
    parts = {"looking": _looking, "spark_count": _counting_on_spark, "flink_import": _importing_from_flink}
    yield from parts[arguments.only](arguments)


def _importing_from_flink(arguments: argparse.Namespace) -> Iterator[Result]:
    from benchmarks.savepoints.flink_import import ENTRIES_PER_KEY, REQUIRED_PER_SECOND, imported_per_second

    speeds = imported_per_second(max(1, arguments.entries // ENTRIES_PER_KEY), arguments.rounds)
    median = statistics.median(speeds)
    yield Result("import from Flink, processor time", median, REQUIRED_PER_SECOND, "required", "entries/s", 1.0)


def _counting_on_spark(arguments: argparse.Namespace) -> Iterator[Result]:
    from benchmarks.savepoints.counting_on_spark import REQUIRED_PER_SECOND, counted_per_second

    for name, speeds in counted_per_second(arguments.entries, arguments.rounds):
        median = statistics.median(speeds)
        yield Result(f"count on Spark, {name}", median, REQUIRED_PER_SECOND, "required", "entries/s", 1.0)


def _looking(arguments: argparse.Namespace) -> Iterator[Result]:
    from benchmarks.savepoints.looking import OPERATIONS, STATES, LookedAt, write_savepoint
    from benchmarks.savepoints.writing import WRITING_OPERATIONS

    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    with tempfile.TemporaryDirectory(prefix="statebackend-benchmark-") as directory:
        path = Path(directory) / "savepoint"
        print(f"writing {arguments.entries:,} entries of each of {len(STATES)} states", file=sys.stderr, flush=True)
        write_savepoint(path, arguments.entries)
        for state in STATES:
            looked_at = LookedAt(path, state, arguments.entries, Path(directory), clock)
            for name, operation in (OPERATIONS | WRITING_OPERATIONS).items():
                contenders = {"ours": partial(operation.ours, looked_at), "pyarrow": partial(operation.peer, looked_at)}
                measured = measure_alternating(contenders, rounds=arguments.rounds, warm_up_rounds=1)
                print(f"{name}, {state}: ours {measured['ours']}; pyarrow {measured['pyarrow']}", file=sys.stderr)
                aim = REQUIRED_RATIO if operation.has_aim else None
                medians = measured["ours"].median, measured["pyarrow"].median
                yield Result(f"{name}, {state}", *medians, operation.peer_name, operation.unit, aim)
