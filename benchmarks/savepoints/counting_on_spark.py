"""Counts the entries of a savepoint on Spark with two cores: all columns, one column, and the metadata.

Keys and values are whole numbers. Spark does not report that a count needs no columns, so a count of all columns
decodes them and sends them to the JVM.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.spark_stateful.session import PARALLELISM, benchmark_session
from statebackend import ValueStateDescriptor
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.source import register_state_tables

__all__ = ["REQUIRED_PER_SECOND", "counted_per_second", "write_numbers"]

REQUIRED_PER_SECOND: Final = 500_000
"""Ten million entries in twenty seconds."""

QUERIES: Final[Mapping[str, Mapping[str, str]]] = {
    "all columns": {"state": "numbers"},
    "one column": {"state": "numbers", "columns": "key_group"},
    "metadata": {"kind": "metadata"},
}
"""The reader options of each way to count."""

_BATCH: Final = 1 << 16


def write_numbers(path: Path, entries: int) -> None:
    """Write a savepoint of one state, with one file per core."""
    plan = Plan().change_parallelism(PARALLELISM).add_operator("per key", "bigint")
    plan.add_state("per key", ValueStateDescriptor("numbers", int), _numbers(entries))
    SavepointWriter.new(path, max_parallelism=128).write(plan)


def _numbers(entries: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, entries, _BATCH):
        numbers = pa.array(range(start, min(entries, start + _BATCH)), pa.int64())
        yield pa.record_batch([numbers, numbers], names=["key", "value"])


def counted_per_second(entries: int, rounds: int) -> Iterator[tuple[str, list[float]]]:
    """Yield each way to count and its entries per second in each round after the warm-up round."""
    with tempfile.TemporaryDirectory(prefix="statebackend-benchmark-") as directory:
        path = Path(directory) / "savepoint"
        write_numbers(path, entries)
        with benchmark_session() as (spark, _):
            register_state_tables(spark)
            measured: dict[str, list[float]] = {name: [] for name in QUERIES}
            for _ in range(rounds + 1):
                for name, options in QUERIES.items():
                    measured[name].append(entries / _seconds(spark, path, entries, options))
            yield from ((name, speeds[1:]) for name, speeds in measured.items())


def _seconds(spark: Any, path: Path, entries: int, options: Mapping[str, str]) -> float:
    began = time.perf_counter()
    table = spark.read.format("statebackend").options(**options).load(str(path))
    counted = table.first()["entries"] if options.get("kind") == "metadata" else table.count()
    took_s = time.perf_counter() - began
    if counted != entries:
        raise AssertionError(f"counted {counted:,} entries of {entries:,}")
    return took_s
