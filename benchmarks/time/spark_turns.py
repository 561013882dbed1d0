"""Measures streaming queries in alternation in one session, by wall time and by processor time.

A contender starts its query in a new directory and stops it at the end. The batches of the warm-up are not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from attrs import frozen

from benchmarks.alternating import measure_alternating
from benchmarks.result import Result, format_value
from benchmarks.time.processor_seconds import processor_seconds_since, processor_ticks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Contender = Callable[["SparkSession", Path], "AbstractContextManager[StreamingQuery]"]
"""Returns a context with a running query that keeps all its files in the given empty directory."""


@frozen
class Peer:
    """A contender to compare with, and the required ratio."""

    run: Contender
    aim: float | None = None


@frozen
class Speed:
    """Rows per second of wall time, and per second of processor time of all processes together."""

    wall: float
    processor: float


def compared_queries(
    ours: Mapping[str, Contender], peers: Mapping[str, Peer], arguments: argparse.Namespace
) -> Iterator[Result]:
    """Compare each of ours with each peer, in rows per second; the aim applies to both clocks."""
    from benchmarks.spark_stateful.session import benchmark_session

    if arguments.peers:
        peers = {peer_name: peer for peer_name, peer in peers.items() if peer_name in arguments.peers}
    reached: dict[str, list[Speed]] = {}
    with benchmark_session() as (spark, checkpoints):

        def turn_of(contender_name: str, contender: Contender) -> Callable[[], float]:
            def turn() -> float:
                with TemporaryDirectory(dir=checkpoints) as directory, contender(spark, Path(directory)) as query:
                    speed = _speed(query, arguments.batches)
                reached.setdefault(contender_name, []).append(speed)
                speeds = f"{format_value(speed.wall)} rows/s, {format_value(speed.processor)} per processor second"
                print(f"{contender_name}: {speeds}", file=sys.stderr, flush=True)
                return speed.wall

            return turn

        contenders = {**ours, **{peer_name: peer.run for peer_name, peer in peers.items()}}
        turns = {contender_name: turn_of(contender_name, contender) for contender_name, contender in contenders.items()}
        measured = measure_alternating(turns, rounds=arguments.rounds)
    for contender_name, measurement in measured.items():
        print(f"{contender_name}: {measurement}", file=sys.stderr, flush=True)
    of_processor = {
        contender_name: median(one.processor for one in speeds) for contender_name, speeds in reached.items()
    }
    for name, (peer_name, peer) in product(ours, peers.items()):
        yield Result(name, measured[name].median, measured[peer_name].median, peer_name, "rows/s", peer.aim)
        title = f"{name}, processor time"
        yield Result(title, of_processor[name], of_processor[peer_name], peer_name, "rows/s", peer.aim)


def _speed(query: StreamingQuery, batches: int) -> Speed:
    from benchmarks.spark_stateful.workload import WARM_UP_BATCHES, await_batches, steady_rows_per_second

    await_batches(query, WARM_UP_BATCHES)
    before = processor_ticks()
    finished = await_batches(query, WARM_UP_BATCHES + batches)
    seconds = processor_seconds_since(before)
    return Speed(steady_rows_per_second(finished), sum(batch.rows for batch in finished[WARM_UP_BATCHES:]) / seconds)
