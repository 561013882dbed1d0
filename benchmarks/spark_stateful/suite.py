"""`python -m benchmarks spark_stateful`: the keyed count in alternation, or `--epoch-cost`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result, format_value

if TYPE_CHECKING:
    from benchmarks.spark_stateful.contenders import Contender

BATCH_AIM = 1.1
"""The least ratio of the count as a `KeyedBatchFunction` to Spark's own."""

DESCRIPTION = "A keyed count on Spark: our ValueState compared with transformWithState and groupBy().count()."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure (default 3)")
    parser.add_argument("--batches", type=int, default=5, help="measured micro-batches per round (default 5)")
    parser.add_argument("--changelog", action="store_true", help="let Spark's state use changelog checkpointing")
    parser.add_argument("--peers-only", action="store_true", help="measure the peers only")
    parser.add_argument("--epoch-cost", action="store_true", help="measure an almost empty epoch instead")
    parser.add_argument("--epochs", type=int, default=30, help="measured epochs per round (default 30)")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure in one Spark session, and yield a result per peer."""
    if arguments.epoch_cost:
        yield from run_epoch_cost(arguments)
    else:
        yield from run_keyed_count(arguments)


def run_keyed_count(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare ours with each available peer, in rows per second."""
    from benchmarks.spark_stateful.contenders import (
        OURS,
        OURS_IN_BATCHES,
        SPARKS,
        available_peers,
        our_batch_count,
        our_keyed_count,
    )

    contenders = available_peers()
    peer_names = list(contenders)
    if not arguments.peers_only:
        contenders = {OURS: our_keyed_count(), OURS_IN_BATCHES: our_batch_count(), **contenders}
    reached = _measure(contenders, arguments.rounds, arguments.batches, "rows/s", changelog=arguments.changelog)
    name = "spark_stateful, changelog" if arguments.changelog else "spark_stateful"
    for peer_name in peer_names:
        yield Result(name, reached.get(OURS), reached[peer_name], peer_name, "rows/s")
    name = f"{name}, {OURS_IN_BATCHES}"
    yield Result(name, reached.get(OURS_IN_BATCHES), reached[SPARKS], SPARKS, "rows/s", BATCH_AIM)


def run_epoch_cost(arguments: argparse.Namespace) -> Iterator[Result]:
    """Compare our epoch with one row with a bare and with a keyed `foreachBatch`, in milliseconds."""
    from benchmarks.spark_stateful.contenders import OURS, our_almost_empty_epoch
    from benchmarks.spark_stateful.epoch_cost import bare_foreach_batch, keyed_foreach_batch

    peers: dict[str, tuple[Contender, float | None]] = {
        "bare foreachBatch": (bare_foreach_batch, 1 / 1.6),
        "foreachBatch by key through Python": (keyed_foreach_batch, None),
    }
    ours = {} if arguments.peers_only else {OURS: our_almost_empty_epoch()}
    contenders = {**ours, **{name: peer for name, (peer, _) in peers.items()}}
    reached = _measure(contenders, arguments.rounds, arguments.epochs, "ms", warm_up_rounds=1)
    for peer_name, (_, aim) in peers.items():
        yield Result("spark_stateful epoch cost", reached.get(OURS), reached[peer_name], peer_name, "ms", aim)
    if not arguments.peers_only:
        yield from _checkpoint_cost(arguments.epochs)


def _checkpoint_cost(epochs: int) -> Iterator[Result]:
    """Measure how bytes and time of a checkpoint depend on the number of changed keys and of all keys."""
    from benchmarks.spark_stateful.checkpoint_cost import results
    from benchmarks.spark_stateful.session import benchmark_session

    with benchmark_session() as (spark, checkpoints):
        yield from results(spark, checkpoints, epochs)


def _measure(
    contenders: Mapping[str, Contender],
    rounds: int,
    batches: int,
    unit: str,
    *,
    warm_up_rounds: int = 0,
    changelog: bool = False,
) -> dict[str, float]:
    """Return the median of each contender. Every turn has a new checkpoint directory, which is removed after it."""
    from benchmarks.spark_stateful.session import benchmark_session

    with benchmark_session(changelog=changelog) as (spark, checkpoints):

        def turn_of(name: str, contender: Contender) -> Callable[[], float]:
            def turn() -> float:
                with TemporaryDirectory(dir=checkpoints) as checkpoint_dir:
                    value = contender(spark, Path(checkpoint_dir), batches)
                print(f"{name}: {format_value(value)} {unit}", file=sys.stderr, flush=True)
                return value

            return turn

        turns = {name: turn_of(name, contender) for name, contender in contenders.items()}
        measured = measure_alternating(turns, rounds=rounds, warm_up_rounds=warm_up_rounds)
    for name, measurement in measured.items():
        print(f"{name}, {unit}: {measurement}", file=sys.stderr, flush=True)
    return {name: measurement.median for name, measurement in measured.items()}
