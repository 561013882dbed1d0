"""`python -m benchmarks serializers`: ours and each peer in alternation, in nanoseconds per value.

| Comparison | Least ratio |
| --- | --- |
| record with fastavro / with pickle | 3 / 4 |
| each scalar, and a list of ints, with a bare ``struct`` call | 0.5 |
| 100 Japanese characters with 100 ASCII characters | 1/8 |
| one accent in 100 characters with 100 ASCII characters | 1/3 |
| map with pickle | 1 |

A migration from bytes to bytes must reach half a million records per second. `--profile-map` measures the steps of a
map instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result

if TYPE_CHECKING:
    from benchmarks.serializers.contenders import Comparison, Contender

DESCRIPTION = "Serializers compared with fastavro, pickle, msgspec and bare struct; and migration from bytes to bytes."

OURS = "ours"
REQUIRED_MIGRATION_RECORDS_PER_S = 500_000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--rounds", type=int, default=31, help="rounds to measure (default 31)")
    parser.add_argument(
        "--profile-map", action="store_true", help="measure the steps of writing and reading a map instead"
    )


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Run the comparisons one after the other, each with its contenders in alternation."""
    if arguments.profile_map:
        from benchmarks.serializers.map_profile import run_map_profile

        yield from run_map_profile(arguments.rounds)
        return
    from benchmarks.serializers.contenders import (
        container_comparisons,
        migration_contenders,
        record_comparisons,
        scalar_comparisons,
        text_comparisons,
    )

    for comparison in (*record_comparisons(), *scalar_comparisons(), *text_comparisons(), *container_comparisons()):
        yield from _compared(comparison, arguments.rounds)
    ours, by_objects = migration_contenders()
    reached = _measured({OURS: ours, "read and write": by_objects}, arguments.rounds)
    name = "migration of the record, bytes to bytes"
    yield Result(name, reached[OURS], reached["read and write"], "through objects of both classes", "values/s")
    yield Result(name, reached[OURS], REQUIRED_MIGRATION_RECORDS_PER_S, "required", "values/s")


def _compared(comparison: Comparison, rounds: int) -> Iterator[Result]:
    present = {name: peer for name, peer in comparison.peers.items() if peer is not None}
    reached = _measured({OURS: comparison.ours, **present}, rounds)
    for name in comparison.peers:
        yield Result(comparison.name, reached[OURS], reached.get(name), name, "ns", comparison.aim)


def _measured(contenders: dict[str, Contender], rounds: int) -> dict[str, float]:
    measured = measure_alternating(contenders, rounds=rounds, warm_up_rounds=3)
    for name, measurement in measured.items():
        spread = f"{measurement.median:.4g}, spread {measurement.spread:.0%} of {len(measurement.values)} rounds"
        print(f"{name}: {spread}", file=sys.stderr, flush=True)
    return {name: measurement.median for name, measurement in measured.items()}
