"""Peak memory of RocksDB while it restores and migrates a large state of small entries.

Each step runs in a child process, which reports by how much its peak resident memory exceeds the memory that it used
after all imports. Only Linux records that peak; the result is empty on other systems.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.backends.measuring import REQUIRED
from benchmarks.backends.setting import Setting
from benchmarks.result import Result

BOUND_MB = 300.0

STEPS = {
    "savepoint": "writing the savepoint to restore from",
    "restore_savepoint": "restore of a savepoint",
    "snapshot": "the first snapshot after that restore",
    "restore_native": "restore of a native handle",
    "migrate": "migration",
}
"""The steps and their titles, in order; each step uses the output of the steps before it."""

_MEASURED = ("restore_savepoint", "snapshot", "restore_native", "migrate")


def memory(setting: Setting) -> Iterator[Result]:
    """Yield the peak memory of each step, and print its speed."""
    entries = setting.count(setting.large_entries)
    directory = setting.new_directory("memory")
    os.makedirs(directory)
    for step, title in STEPS.items():
        reached = run_in_child("benchmarks.backends.memory_step", step, directory, str(entries))
        print(f"  {title}: {reached}", file=sys.stderr, flush=True)
        if step in _MEASURED:
            name = f"RocksDB peak memory, {title}, {entries:,} entries"
            yield Result(name, reached["peak_mb"], BOUND_MB, REQUIRED, "MB", 1.0)


def run_in_child(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module in a child process, and return the JSON that it prints."""
    root = str(Path(__file__).parents[2])
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH", "")]))
    completed = subprocess.run(
        [sys.executable, "-m", module, *arguments], env=environment, stdout=subprocess.PIPE, check=True
    )
    reached: dict[str, Any] = json.loads(completed.stdout)
    return reached
