"""The options of a run of the suite: number of entries and rounds, clock, and directory.

Wall time is what users wait for, but other processes disturb it. The time of the thread is more stable for a loop that
only computes; the background threads of bare RocksDB are then not counted, as on a machine with idle cores. Times *on
one core* are the larger of the wall time and the time of all threads, so waits and helper threads are counted.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from typing import Final

from attrs import define, field

MAX_PARALLELISM: Final = 128
"""Number of key groups, which is also the default of a job."""

Record = tuple[int, int]
"""A key and its key group, which a runtime passes with every row."""

CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "thread": time.thread_time}


@define
class Setting:
    """The options of a run. ``scale`` multiplies all counts; the data of a run depend only on ``seed``."""

    directory: str
    rounds: int = 5
    scale: float = 1.0
    seed: int = 4
    clock_name: str = "wall"
    large_entries: int = 2_000_000
    is_large: bool = False
    _numbers: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    @property
    def clock(self) -> Callable[[], float]:
        """The clock for loops of one thread, in seconds."""
        return CLOCKS[self.clock_name]

    def count(self, at_full_scale: int, least: int = 20) -> int:
        """Return a number of entries at the scale of this run, at least `least`."""
        return max(least, int(at_full_scale * self.scale))

    def new_directory(self, name: str) -> str:
        """Return a new path inside the run's directory."""
        return os.path.join(self.directory, f"{name}-{next(self._numbers)}")

    def random(self) -> random.Random:
        """Return a random number generator that is the same in each run."""
        return random.Random(self.seed)

    def shuffled_records(self, keys: int, passes: int = 1) -> list[Record]:
        """Return every key below ``keys`` once per pass, each pass in another order.

        The records are created in this order, so that their memory layout is that of arriving rows. The loop then
        misses the processor's caches when it looks up a key, and not when it reads a row.
        """
        source, result = self.random(), list[Record]()
        for _ in range(passes):
            result += [(key, key_group_of(key)) for key in source.sample(range(keys), keys)]
        return result

    def one_core_seconds(self, work: Callable[[], object]) -> float:
        """Return the wall time of the work in seconds, or the time of all threads if that is longer."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        cpu = time.process_time() - cpu
        return cpu if self.clock_name == "thread" else max(cpu, time.perf_counter() - wall)


def all_records(keys: int) -> list[Record]:
    """Return every key below ``keys``, in order."""
    return [(key, key_group_of(key)) for key in range(keys)]


def key_group_of(key: int) -> int:
    """Return a key group that spreads neighbouring keys, as the hash of a runtime does."""
    return (key * 0x9E3779B97F4A7C15 >> 40) % MAX_PARALLELISM
