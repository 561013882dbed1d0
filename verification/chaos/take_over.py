"""Measures how long a standby driver takes to replace a killed leader.

Run it as `python -m verification.chaos.take_over --kills 5`. The steps for each kill are:

1. The leading driver of the flights job writes an epoch, and is held before its checkpoint is stored.
2. A standby driver starts Spark and waits to become the leader.
3. The leader is killed, and the standby driver completes the epoch.
4. The new leader is held in its next epoch.

The time is from the kill to the completed epoch. It includes the session timeout, after which ZooKeeper ends the
session of the killed driver.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from examples.data.flights_dataset import PART_COUNT
from examples.data.staging import stage_flights
from examples.demonstration.comparison import DifferenceError
from examples.demonstration.driver_process import DriverProcess
from tests.java_options import use_short_lived_java
from tests.zookeeper_server import running_server
from verification.chaos.driven_job import DRIVER
from verification.chaos.hang_diagnostics import hang_diagnostics
from verification.chaos.processes import ProcessorTime
from verification.chaos.progress import Progress
from verification.chaos.report import distribution
from verification.chaos.run_directory import run_directory
from verification.chaos.struck_driver import EPOCH, SESSION_TIMEOUT_S

_LOOK_S: Final = 0.2
_STANDS_BY: Final = "standing by"


def main() -> int:
    """Print the distribution of the times; return 1 if a driver ended or made no progress."""
    parser = argparse.ArgumentParser(prog="python -m verification.chaos.take_over", description=__doc__)
    parser.add_argument("--kills", type=int, default=5, help="number of leaders to kill (default: 5)")
    options = parser.parse_args()
    if not 0 < options.kills < PART_COUNT:
        # Each kill needs a further epoch, and each part of the year is one epoch.
        parser.error(f"--kills is {options.kills}; it must be from 1 to {PART_COUNT - 1}")
    use_short_lived_java()
    seconds: list[float] = []
    try:
        with run_directory(DifferenceError) as root, running_server(root / "zoo") as zookeeper:
            os.environ["TMPDIR"] = str(root)
            stage_flights(root / "incoming", 0, PART_COUNT)
            for took_s in _take_overs(root, zookeeper.hosts, options.kills):
                seconds.append(took_s)
                print(f"{took_s:.1f} s", flush=True)
    except DifferenceError as error:
        print(f"FAILED: {error}\nThe files are in {root}.", file=sys.stderr)
        return 1
    finally:
        print(f"seconds from the kill to the next epoch, with a session timeout of {SESSION_TIMEOUT_S:g} s")
        print("\n".join(distribution({"take-over": seconds})), flush=True)
    return 0


def _take_overs(root: Path, zookeeper: str, kills: int) -> Iterator[float]:
    with contextlib.ExitStack() as drivers:
        leader = _Driver(root, zookeeper, 0)
        drivers.callback(leader.kill)
        leader.wait_until_written()
        for number in range(1, kills + 1):
            stand_by = _Driver(root, zookeeper, number)
            drivers.callback(stand_by.kill)
            stand_by.wait_until_it_stands_by()
            leader.kill()
            killed_s = time.monotonic()
            stand_by.wait_until_written()
            yield stand_by.complete_epoch_s() - killed_s
            leader = stand_by
            leader.wait_until_written()


class _Driver:
    """A driver that is held in each epoch. Its methods raise `DifferenceError` if it ends or makes no progress."""

    def __init__(self, root: Path, zookeeper: str, number: int) -> None:
        arguments = [
            *("--input", str(root / "incoming")),
            *("--job-dir", str(root / "job")),
            *("--rows", str(root / "rows")),
            *("--savepoint", str(root / f"savepoint-{number}")),
            *("--version", "2"),
            *("--log", str(root / f"spark-{number}.log")),
            *("--zookeeper", zookeeper),
        ]
        self._log = root / f"driver-{number}.log"
        self._epochs: queue.SimpleQueue[float | None] = queue.SimpleQueue()

        def receive(line: str) -> None:
            if line.startswith(f"{EPOCH} "):
                self._epochs.put(time.monotonic())

        self._process = DriverProcess(
            DRIVER,
            arguments,
            receive,
            job_dir=root / "job",
            log=self._log,
            on_end=lambda: self._epochs.put(None),
        )
        self._work = ProcessorTime(self._process.pid)

    def wait_until_written(self) -> None:
        """Wait until the driver has written an epoch, which is not complete yet."""
        for _ in self._looks():
            with contextlib.suppress(TimeoutError):
                if self._process.next_written(_LOOK_S) is None:
                    raise self._failure("it ended")
                return

    def wait_until_it_stands_by(self) -> None:
        """Wait until the driver is a standby of another leader."""
        for _ in self._looks():
            if _STANDS_BY in self._log.read_text():
                return
            if self._process.ends_within(_LOOK_S):
                raise self._failure("it ended")

    def complete_epoch_s(self) -> float:
        """Let the driver complete the epoch, and return the time of completion by `time.monotonic`."""
        self._process.let_complete()
        for _ in self._looks():
            with contextlib.suppress(queue.Empty):
                completed_s = self._epochs.get(timeout=_LOOK_S)
                if completed_s is not None:
                    return completed_s
                raise self._failure("it ended")
        raise AssertionError("unreachable: _looks() never ends")

    def kill(self) -> None:
        """Kill the driver, if it still runs."""
        self._process.kill()

    def _looks(self) -> Iterator[None]:
        progress = Progress(time.monotonic(), self._work.seconds())
        while True:
            yield
            stall_reason = progress.stall_reason(time.monotonic(), self._work.seconds())
            if stall_reason is not None:
                raise self._failure(stall_reason)

    def _failure(self, what: str) -> DifferenceError:
        dumps = hang_diagnostics(self._process.pid, self._log, "")
        diagnostics = "\n".join(f"--- {source}\n{text}" for source, text in dumps.items())
        return DifferenceError(f"a driver that was not killed failed: {what}\n{diagnostics}")


if __name__ == "__main__":
    raise SystemExit(main())
