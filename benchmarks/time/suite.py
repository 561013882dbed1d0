"""`python -m benchmarks time [--only GROUP]`: runs each group in its own session."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module

from benchmarks.result import Result

DESCRIPTION = "Event time, timers and windows, compared with Spark's own."

GROUPS = {
    "processor": "benchmarks.time.processor",
    "windows": "benchmarks.time.windows",
    "aggregates": "benchmarks.time.aggregates",
    "forms": "benchmarks.time.forms",
    "timers": "benchmarks.time.timers",
    "epochs": "benchmarks.time.epochs",
}
"""Modules with a function ``results(arguments)`` that yields `Result`s; a module is imported only if its group runs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--only", choices=list(GROUPS), action="append", help="a group of results; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="rounds to measure (default 3)")
    parser.add_argument("--batches", type=int, default=3, help="measured micro-batches per round (default 3)")
    parser.add_argument("--peers", nargs="+", metavar="NAME", help="compare with these peers only; some take minutes")
    parser.add_argument("--rows", type=int, default=200_000, help="rows per micro-batch (default 200,000)")
    parser.add_argument("--keys", type=int, default=50_000, help="distinct keys (default 50,000)")
    parser.add_argument("--epochs", type=int, default=20, help="measured epochs per round (default 20)")
    parser.add_argument("--timers", type=int, default=100_000, help="timers per round (default 100,000)")
    parser.add_argument(
        "--clock",
        choices=["wall", "thread"],
        default="wall",
        help="clock of the group timers; thread: processor time of the thread, for a busy machine",
    )
    parser.add_argument(
        "--backend", choices=["heap", "rocksdb"], default="rocksdb", help="our state backend (default rocksdb)"
    )


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Yield the results of the selected groups."""
    for name in arguments.only or GROUPS:
        yield from import_module(GROUPS[name]).results(arguments)
