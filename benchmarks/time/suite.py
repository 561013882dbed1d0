"""`python -m benchmarks time [--only GROUP]`: each group in a session of its own."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from benchmarks.result import Result

DESCRIPTION = "Time and operators: programs of Spark's on our state."

GROUPS = {
    "processor": "benchmarks.time.processor",
    "windows": "benchmarks.time.windows",
    "aggregates": "benchmarks.time.aggregates",
    "timers": "benchmarks.time.timers",
    "epochs": "benchmarks.time.epochs",
}
"""Modules with a function ``results(arguments)``, which yields `Result`s; each is imported when it is wanted."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """How long to measure, and what."""
    parser.add_argument(
        "--only", choices=list(GROUPS), action="append", help="a group of results; several may be given"
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender (default 3)")
    parser.add_argument("--batches", type=int, default=3, help="measured micro-batches a turn (default 3)")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="beside these peers alone; some take minutes")
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a micro-batch (default 200,000)")
    parser.add_argument("--keys", type=int, default=50_000, help="keys among them (default 50,000)")
    parser.add_argument("--epochs", type=int, default=20, help="measured epochs a turn (default 20)")
    parser.add_argument("--timers", type=int, default=100_000, help="timers of a turn (default 100,000)")
    parser.add_argument(
        "--clock",
        choices=["wall", "thread"],
        default="wall",
        help="of timers; thread: time on a core, for a busy machine",
    )
    parser.add_argument("--backend", choices=["heap", "rocksdb"], default="rocksdb", help="of ours (default rocksdb)")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """The results of the groups that were asked for, one after the other."""
    for name in arguments.only or GROUPS:
        yield from import_module(GROUPS[name]).results(arguments)
