"""The driver's work of an epoch at many subtasks, and what many epochs leave behind."""

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

DESCRIPTION = "what the driver does for an epoch of many subtasks, and what many epochs leave behind"

MOST_DRIVER_S = 2.0
MOST_TASK_BYTES = 64 << 10
MOST_GROWTH_BYTES = 16 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the suite's own options."""
    parser.add_argument("--subtasks", type=int, default=1000, help="subtasks of the wide job")
    parser.add_argument("--states", type=int, default=10, help="states of each subtask")
    parser.add_argument("--files", type=int, default=16, help="files of each state")
    parser.add_argument("--epochs", type=int, default=10_000, help="epochs of the long job, which has two subtasks")


def run(arguments: argparse.Namespace) -> Iterator[Result]:
    """Measure, and yield results as they are there."""
    from benchmarks.scale.simulated_job import SimulatedJob

    with tempfile.TemporaryDirectory(prefix="statebackend-scale-") as directory:
        job = SimulatedJob(Path(directory), arguments.subtasks, arguments.states, arguments.files)
        costs = [job.run_epoch() for _ in range(5)]
    # The first epochs make what the later ones share, and drop no checkpoint yet.
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
    # The first tenth fills what is bounded, such as the memory of the last ends of checkpoints.
    settled = max(10, epochs // 10)
    files_before, memory_before = 0, 0
    for number in range(epochs):
        job.run_epoch()
        if number + 1 == settled:
            files_before, memory_before = _files(directory), _memory_bytes()
            sys.stderr.write(f"scale: {settled} of {epochs} epochs\n")
    # A ratio needs a side that is not zero.
    grown_bytes = max(1, _memory_bytes() - memory_before)
    yield Result(f"memory grown in {epochs} epochs", grown_bytes, MOST_GROWTH_BYTES, "the limit", "bytes", 1.0)
    yield Result(f"files after {epochs} epochs", _files(directory), files_before, "settled", "files", 1.0)


def _files(directory: Path) -> int:
    return sum(1 for path in directory.rglob("*") if path.is_file())


def _memory_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    return 0
