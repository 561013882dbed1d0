"""Imports a canonical savepoint of Flink, in entries per second of processor time.

Statebackend exports the savepoint, so no JVM is needed. Each key has a number, a text, a list of two numbers, a timer,
and a map of three entries. Each entry of the map counts.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Final

import pyarrow as pa

from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.flink_writer import write_flink_savepoint
from statebackend.savepoint.state_location import find_state

__all__ = ["ENTRIES_PER_KEY", "REQUIRED_PER_SECOND", "imported_per_second"]

REQUIRED_PER_SECOND: Final = 300_000
ENTRIES_PER_KEY: Final = 7


def imported_per_second(keys: int, rounds: int) -> list[float]:
    """Return the entries per second of each round after the warm-up round."""
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="statebackend-benchmark-") as directory:
        savepoint = _write_savepoint(Path(directory), keys)
        return [_imported_per_second(savepoint, Path(directory) / "imported", keys) for _ in range(rounds + 1)][1:]


def _write_savepoint(directory: Path, keys: int) -> Path:
    numbers = range(keys)
    plan = Plan().add_operator("per key", "string")
    plan.add_state("per key", ValueStateDescriptor("number", int), ((f"key {n}", n) for n in numbers))
    plan.add_state("per key", ValueStateDescriptor("text", str), ((f"key {n}", f"text of {n}") for n in numbers))
    plan.add_state("per key", ListStateDescriptor("list", int), ((f"key {n}", [n, n + 1]) for n in numbers))
    entries = ((f"key {n}", f"user key {one}", n * one) for n in numbers for one in range(3))
    plan.add_state("per key", MapStateDescriptor("map", str, int), entries)
    plan.add_timers("per key", ((f"key {n}", n) for n in numbers), time="event")
    SavepointWriter.new(directory / "ours", max_parallelism=128).write(plan)
    write_flink_savepoint(find_state(directory / "ours"), directory / "flink")
    return directory / "flink"


def _imported_per_second(savepoint: Path, target: Path, keys: int) -> float:
    began = time.process_time()
    restored, _ = without_sources(find_state(savepoint), ["per key"])
    written = SavepointWriter.copy_of_restored(restored, target).write(Plan())
    took_s = time.process_time() - began
    imported = sum(written.rows["per key"].values())
    if imported != keys * ENTRIES_PER_KEY:
        raise AssertionError(f"imported {imported:,} entries of {keys * ENTRIES_PER_KEY:,}")
    shutil.rmtree(target)
    return imported / took_s
