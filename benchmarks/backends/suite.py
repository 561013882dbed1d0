"""`python -m benchmarks backends`: compares the state backends with what they are built on.

Every line is a ratio from the same run, and shows its aim. The aim of a line with another program is a share of that
program's speed. Bounds in milliseconds, megabytes or entries per second have the peer ``required`` and the aim 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from importlib import import_module
from tempfile import TemporaryDirectory

from benchmarks.result import Result

DESCRIPTION = "Heap and RocksDB state compared with a bare dict and bare rocksdict: access, snapshot, restore, memory."

GROUPS = {
    "rocksdb_value": "benchmarks.backends.value_access",
    "heap_value": "benchmarks.backends.value_access",
    "heap_bytes": "benchmarks.backends.heap_bytes",
    "heap_snapshot": "benchmarks.backends.snapshot_pause",
    "rocksdb_snapshot": "benchmarks.backends.snapshot_pause",
    "rocksdb_epoch": "benchmarks.backends.short_epoch",
    "rocksdb_restore": "benchmarks.backends.restore",
    "rocksdb_migration": "benchmarks.backends.restore",
    "heap_restore": "benchmarks.backends.restore",
    "memory": "benchmarks.backends.bulk_memory",
    "fat_values": "benchmarks.backends.fat_values",
    "rocksdb_map": "benchmarks.backends.map_iteration",
    "list_append": "benchmarks.backends.list_append",
    "operator_state": "benchmarks.backends.operator_state",
    "state_ttl": "benchmarks.backends.ttl_cost",
    "timers": "benchmarks.backends.timers",
    "state_metrics": "benchmarks.backends.metrics_cost",
}
"""The groups of lines. Each is a function of that name in the module; it takes the `Setting` and yields results."""

LARGE_ENTRIES = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument(
        "--only", nargs="+", choices=list(GROUPS), metavar="NAME", help=f"groups to run, of {', '.join(GROUPS)}"
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds to measure (default 5)")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the entries to measure with (default 1)")
    parser.add_argument("--seed", type=int, default=4, help="seed of the order of keys (default 4)")
    parser.add_argument(
        "--clock",
        choices=["wall", "thread"],
        default="wall",
        help="thread: processor time of the thread, for a busy machine",
    )
    parser.add_argument(
        "--large",
        action="store_true",
        help=f"take {LARGE_ENTRIES:,} entries, and 200,000 large values, for the peak memory (takes minutes longer)",
    )
    parser.add_argument(
        "--directory", help="where to make the temporary directory (default: the system's temporary directory)"
    )


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure the groups one after the other in a temporary directory."""
    from benchmarks.backends.setting import Setting

    for name in arguments.only or GROUPS:
        print(f"{name}:", file=sys.stderr, flush=True)
        with TemporaryDirectory(prefix="benchmark-backends-", dir=arguments.directory) as directory:
            setting = Setting(
                directory=directory,
                rounds=arguments.rounds,
                scale=arguments.scale,
                seed=arguments.seed,
                clock_name=arguments.clock,
            )
            if arguments.large:
                setting.large_entries = LARGE_ENTRIES
                setting.is_large = True
            yield from getattr(import_module(GROUPS[name]), name)(setting)
