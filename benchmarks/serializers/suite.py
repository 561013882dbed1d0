"""`python -m benchmarks serializers`: ours and each peer in turns, in nanoseconds for one value.

What is asked for: the record at least 3 times as fast as fastavro and 4 times as pickle, each scalar within 2 times of
a bare ``struct`` call (a ratio of 0.5), a hundred Japanese characters within 8 times of a hundred of ASCII and one
accent among them within 3 times, a list of ints likewise, a map faster than pickle, and half a million records a
second from bytes to bytes. `--profile-map` says where the time of a map goes instead.
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

DESCRIPTION = "Serializers beside fastavro, pickle, msgspec and bare struct; and migration from bytes to bytes."

OURS = "ours"
REQUIRED_MIGRATION_RECORDS_PER_S = 500_000.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to measure, and what."""
    parser.add_argument("--rounds", type=int, default=31, help="turns of every contender (default 31)")
    parser.add_argument("--profile-map", action="store_true", help="instead: the steps of writing and reading a map")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure one comparison after the other, each in turns."""
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
