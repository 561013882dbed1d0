"""How a run of the suite measures: how much, how often, with which clock, and where its files are.

Wall time is what people wait for, and what a busy machine disturbs. The time of the thread is steadier for a loop that
does nothing but compute; a bare RocksDB gets its background threads for free then, as on a machine with idle cores.
What is asked for *on one core* is the larger of the wall time and the time of all threads together, so that neither
waiting nor a helping thread goes uncounted.
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
"""Key groups, as a job has them unless it says otherwise."""

Record = tuple[int, int]
"""A key and its key group, which a runtime hands over with every row."""

CLOCKS: Final[dict[str, Callable[[], float]]] = {"wall": time.perf_counter, "thread": time.thread_time}


@define
class Setting:
    """The options of a run. ``scale`` multiplies all counts; the data of a run depend on ``seed`` alone."""

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
        """Seconds, for one thread's loops."""
        return CLOCKS[self.clock_name]

    def count(self, at_full_scale: int, least: int = 20) -> int:
        """A number of entries at the scale of this run."""
        return max(least, int(at_full_scale * self.scale))

    def new_directory(self, name: str) -> str:
        """A path inside the run's directory that nothing else uses."""
        return os.path.join(self.directory, f"{name}-{next(self._numbers)}")

    def random(self) -> random.Random:
        """A source of random numbers that is the same in each run."""
        return random.Random(self.seed)

    def shuffled_records(self, keys: int, passes: int = 1) -> list[Record]:
        """Every key below ``keys`` once in each pass, each pass in another order.

        The records are made in this order, so that they lie in memory as rows that arrive do: a loop over them misses
        the processor's caches where it looks up a key, not already where it reads a row.
        """
        source, result = self.random(), list[Record]()
        for _ in range(passes):
            result += [(key, key_group_of(key)) for key in source.sample(range(keys), keys)]
        return result

    def one_core_seconds(self, work: Callable[[], object]) -> float:
        """How long one core is busy with the work: wall time, or the time of all threads if that is more."""
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        cpu = time.process_time() - cpu
        return cpu if self.clock_name == "thread" else max(cpu, time.perf_counter() - wall)


def all_records(keys: int) -> list[Record]:
    """Every key below ``keys``, in order."""
    return [(key, key_group_of(key)) for key in range(keys)]


def key_group_of(key: int) -> int:
    """A key group that spreads neighbouring keys, as the hash of a runtime does."""
    return (key * 0x9E3779B97F4A7C15 >> 40) % MAX_PARALLELISM
