"""The peak of memory while state of large values goes through checkpoint, savepoint and both restores.

The values are of 36 KiB, and one is of 256 MB. What is kept on the heap is memory by its nature, so its bound is a
multiple of the state itself; RocksDB's is one of the largest value, whatever the number of the others.
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
    "checkpoint": "filling it, and the first checkpoint",
    "increment": "restore of that, and a second checkpoint with a tenth of the values again",
    "restore": "restore of the second, every value read",
    "savepoint": "restore, and a canonical savepoint",
    "restore_savepoint": "restore of the savepoint, every value read",
}
"""The steps in the order in which each needs what those before it left, and what they are."""

LARGEST_BYTES = 256_000_000
LARGE_COPIES = 8
"""The largest value may be there so often at once on RocksDB: as object, bytes, row, batch and file buffer."""
HEAP_COPIES = 3
"""The state on the heap may be there so often at once: kept, frozen or read, and written."""


def fat_values(setting: Setting) -> Iterator[Result]:
    """One line for each backend and step."""
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
