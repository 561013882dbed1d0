"""The work of the driver per epoch with many subtasks, and its growth over many epochs."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.result import Result

if TYPE_CHECKING:
    from benchmarks.scale.simulated_job import SimulatedJob

DESCRIPTION = "The work of the driver per epoch with many subtasks, and its growth over many epochs."

MOST_DRIVER_S = 2.0
MOST_TASK_BYTES = 64 << 10
MOST_GROWTH_BYTES = 16 << 20
LEAST_DISK_RATIO = 0.95
"""Not 1, because metadata with longer numbers or with less compression is not growth."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the suite."""
    parser.add_argument("--subtasks", type=int, default=1000, help="subtasks of the wide job")
    parser.add_argument("--states", type=int, default=10, help="states of each subtask")
    parser.add_argument("--files", type=int, default=16, help="files of each state")
    parser.add_argument("--epochs", type=int, default=1000, help="epochs of the long job, which has two subtasks")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure, and yield each result when it is available."""
    from benchmarks.scale.simulated_job import SimulatedJob

    with tempfile.TemporaryDirectory(prefix="statebackend-scale-") as directory:
        job = SimulatedJob(Path(directory), arguments.subtasks, arguments.states, arguments.files)
        costs = [job.run_epoch() for _ in range(5)]
    # The first epochs create shared files and remove no checkpoint yet.
    driver_s = median(cost.driver_s for cost in costs[2:])
    yield Result("driver, processor time of an epoch", driver_s, MOST_DRIVER_S, "the limit", "s", 1.0)
    for name, size_bytes in (
        ("closure of a task", max(cost.closure_bytes for cost in costs)),
        ("restore plan of a task", max(cost.restore_bytes for cost in costs)),
        ("acknowledgement of a task", max(cost.acknowledgement_bytes for cost in costs)),
    ):
        yield Result(name, size_bytes, MOST_TASK_BYTES, "the limit", "bytes", 1.0)
    with tempfile.TemporaryDirectory(prefix="statebackend-scale-") as directory:
        yield from _many_epochs(SimulatedJob(Path(directory), 2, 2, 4), arguments.epochs, Path(directory))


def _many_epochs(job: SimulatedJob, epochs: int, directory: Path) -> Iterator[Result]:
    """Sample the first and the last tenth of the epochs twenty times each, and compare the maxima."""
    tenth = max(20, epochs // 10)
    every = tenth // 20
    first, last = _Seen(), _Seen()
    for number in range(max(epochs, 2 * tenth)):
        job.run_epoch()
        seen = first if number < tenth else last if number >= epochs - tenth else None
        if seen is not None and number % every == 0:
            seen.look(directory)
        if number + 1 == tenth:
            sys.stderr.write(f"scale: {tenth} of {epochs} epochs\n")
    # At least 1, for the ratio. Bounded buffers, such as the history of checkpoints, still fill in the first tenth.
    grown_bytes = max(1, last.memory_bytes - first.memory_bytes)
    yield Result(f"memory grown in {epochs} epochs", grown_bytes, MOST_GROWTH_BYTES, "the limit", "bytes", 1.0)
    yield Result(f"files in the last of {epochs} epochs", last.files, first.files, "the first tenth", "files", 1.0)
    yield Result(
        f"disk in the last of {epochs} epochs",
        last.disk_bytes,
        first.disk_bytes,
        "the first tenth",
        "bytes",
        LEAST_DISK_RATIO,
    )


class _Seen:
    """The maxima of all samples."""

    def __init__(self) -> None:
        self.files = self.disk_bytes = self.memory_bytes = 0

    def look(self, directory: Path) -> None:
        """Sample the files in a directory, and the memory of this process."""
        sizes_bytes = [path.stat().st_size for path in directory.rglob("*") if path.is_file()]
        self.files = max(self.files, len(sizes_bytes))
        self.disk_bytes = max(self.disk_bytes, sum(sizes_bytes))
        self.memory_bytes = max(self.memory_bytes, _memory_bytes())


def _memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
