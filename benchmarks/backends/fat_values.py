"""Peak memory while state with large values is checkpointed, saved and restored.

Each value has 36 KiB, and one has 256 MB. The heap backend keeps the whole state in memory, so its bound is a multiple
of the state's size. The bound of RocksDB is a multiple of the largest value and does not depend on the number of
values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from benchmarks.backends.bulk_memory import run_in_child
from benchmarks.backends.fat_values_step import VALUE_BYTES
from benchmarks.backends.measuring import REQUIRED
from benchmarks.backends.setting import Setting
from benchmarks.result import Result

STEPS = {
    "checkpoint": "first checkpoint, with all values",
    "increment": "restore, and a second checkpoint with a tenth of the values",
    "restore": "restore of the second checkpoint, every value read",
    "savepoint": "restore, and a canonical savepoint",
    "restore_savepoint": "restore of the savepoint, every value read",
}
"""The steps and their titles, in order; each step uses the output of the steps before it."""

LARGEST_BYTES = 256_000_000
LARGE_COPIES = 8
"""How many copies of the largest value RocksDB may hold at once: object, bytes, row, batch and file buffer."""
HEAP_COPIES = 3
"""How many copies of the state the heap may hold at once: the state, its frozen or read copy, and the written one."""


def fat_values(setting: Setting) -> Iterator[Result]:
    """Yield the peak memory of each backend and step."""
    entries = setting.count(200_000 if setting.is_large else 20_000)
    largest_bytes = min(setting.count(LARGEST_BYTES), LARGEST_BYTES)
    for backend in ("rocksdb", "heap"):
        directory = setting.new_directory(f"fat-{backend}")
        os.makedirs(directory)
        bound_mb = LARGE_COPIES * largest_bytes / 1e6
        if backend == "heap":
            bound_mb += HEAP_COPIES * entries * VALUE_BYTES / 1e6
        for step, title in STEPS.items():
            given = (backend, step, directory, str(entries), str(largest_bytes))
            reached = run_in_child("benchmarks.backends.fat_values_step", *given)
            print(f"  {backend}, {title}: {reached}", file=sys.stderr, flush=True)
            name = f"{backend} peak memory, {entries:,} x 36 KiB and one of {largest_bytes / 1e6:,.0f} MB, {title}"
            yield Result(name, reached["peak_mb"], bound_mb, REQUIRED, "MB", 1.0)
