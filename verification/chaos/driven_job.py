"""One driver process of the flights job, observed from outside: its epochs, its processes and its result.

The Python process of the driver and the JVM are one process group; executors and Python workers are descendants of the
JVM. Only processes that this module started, and their descendants, receive signals.

A driver that makes no progress (`verification.chaos.progress`) fails the run, and the error contains diagnostics of all
processes of the job (`verification.chaos.hang_diagnostics`).
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen

from examples.demonstration.comparison import DifferenceError
from examples.demonstration.driver_process import DriverFailedError, DriverProcess
from verification.chaos.hang_diagnostics import hang_diagnostics, keep_executor_logs
from verification.chaos.processes import ProcessorTime, children, descendants, process_stat
from verification.chaos.progress import Progress
from verification.chaos.strikes import Strike, Target
from verification.chaos.struck_driver import EPOCH, SPARK_RUNS
from verification.chaos.worlds import JobWorld

__all__ = ["CompletedEpoch", "DrivenJob"]

DRIVER: Final = "verification.chaos.struck_driver"
"""The module of the driver."""

PAUSE_S: Final = 3.0
_LOOK_S = 1.0
"""Interval between checks of a driver that prints nothing."""


@frozen
class CompletedEpoch:
    """An epoch that a driver reported as complete, and the time of the report by `time.monotonic`."""

    epoch_id: int
    heard_s: float


class DrivenJob:
    """A process of `verification.chaos.struck_driver` in a world; its standard error goes to ``log``."""

    def __init__(self, arguments: Sequence[str], world: JobWorld, scratch: Path, log: Path) -> None:
        self._lines: queue.SimpleQueue[tuple[str, float] | None] = queue.SimpleQueue()
        self._world = world
        self._log = log
        self.spark_ran_s: float | None = None
        """When Spark ran in the driver, by `time.monotonic`."""
        self.failure = ""
        """The error of the driver, if it failed."""
        self._application = ""
        # Spark's temporary files stay if it is killed, so they are created in the directory of the run.
        with _environment({**world.environment, "TMPDIR": str(scratch)}):
            self._driver = DriverProcess(
                DRIVER,
                [*arguments, *world.arguments],
                lambda line: self._lines.put((line, time.monotonic())),
                job_dir=scratch,
                log=log,
                on_end=lambda: self._lines.put(None),
            )
        self._driver.hang_up()
        self._work = ProcessorTime(self._driver.pid)
        self._progress = Progress(time.monotonic())

    def next_epoch(self) -> CompletedEpoch | None:
        """Wait for the next complete epoch, and return it; return None if the driver ended.

        Raises `DifferenceError` with diagnostics of all processes if the driver makes no progress.
        """
        while True:
            try:
                heard = self._lines.get(timeout=_LOOK_S)
            except queue.Empty:
                self._check_progress()
                continue
            if heard is None:
                return None
            epoch = self._heard(*heard)
            if epoch is not None:
                return epoch

    def strike(self, strike: Strike) -> Target:
        """Strike after the delay, and return the actual target; a driver that ended before is not hit."""
        self._driver.ends_within(strike.delay_ms / 1000)
        hit = _HITS.get(strike.target)
        if hit is None:
            self._world.strike(strike)
            return strike.target
        with contextlib.suppress(ProcessLookupError):
            if hit(self, strike):
                return strike.target
            os.killpg(self._driver.pid, signal.SIGKILL)
        return Target.DRIVER

    def has_succeeded(self) -> bool:
        """Wait until the driver ends, and return whether it succeeded."""
        try:
            self._driver.wait()
        except DriverFailedError as error:
            self.failure = str(error)
            return False
        return True

    def kill(self) -> None:
        """Kill the remaining processes, and move the logs of the executors next to the driver's log."""
        self._driver.kill()
        keep_executor_logs(self._application, self._log.with_suffix(".executors"))

    def _pause(self, strike: Strike) -> bool:
        os.killpg(self._driver.pid, signal.SIGSTOP)
        self._driver.ends_within(PAUSE_S)
        os.killpg(self._driver.pid, signal.SIGCONT)
        return True

    def _kill_driver(self, strike: Strike) -> bool:
        return False

    def _kill_jvm(self, strike: Strike) -> bool:
        return _kill_one([pid for pid in children(self._driver.pid) if _name(pid) == "java"], strike)

    def _kill_executor(self, strike: Strike) -> bool:
        jvms = [pid for pid in children(self._driver.pid) if _name(pid) == "java"]
        return _kill_one([pid for jvm in jvms for pid in children(jvm) if _name(pid) == "java"], strike)

    def _kill_worker(self, strike: Strike) -> bool:
        jvms = [pid for pid in children(self._driver.pid) if _name(pid) == "java"]
        return _kill_one([pid for jvm in jvms for pid in descendants(jvm) if _name(pid).startswith("python")], strike)

    def _heard(self, line: str, heard_s: float) -> CompletedEpoch | None:
        self._progress.sign(time.monotonic(), self._work.seconds())
        word, _, rest = line.partition(" ")
        if word == EPOCH:
            return CompletedEpoch(int(rest), heard_s)
        if word == SPARK_RUNS:
            self.spark_ran_s, self._application = heard_s, rest
        else:
            with self._log.with_suffix(".out").open("a") as out:
                out.write(f"{line}\n")
        return None

    def _check_progress(self) -> None:
        stall_reason = self._progress.stall_reason(time.monotonic(), self._work.seconds())
        if stall_reason is not None:
            dumps = hang_diagnostics(self._driver.pid, self._log, self._application)
            dumps.update(self._world.diagnostics())
            diagnostics = "\n".join(f"--- {source}\n{text}" for source, text in dumps.items())
            raise DifferenceError(f"the job makes no progress: {stall_reason}\n{diagnostics}")


_HITS: Final[Mapping[Target, Callable[[DrivenJob, Strike], bool]]] = {
    Target.DRIVER: DrivenJob._kill_driver,
    Target.JVM: DrivenJob._kill_jvm,
    Target.WORKER: DrivenJob._kill_worker,
    Target.EXECUTOR: DrivenJob._kill_executor,
    Target.PAUSE: DrivenJob._pause,
}
"""Strikes on processes of the job. A function returns False if it found no process; then the driver is killed."""


@contextlib.contextmanager
def _environment(more: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(more)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _kill_one(pids: Sequence[int], strike: Strike) -> bool:
    if pids:
        os.kill(pids[strike.choice % len(pids)], signal.SIGKILL)
    return bool(pids)


def _name(pid: int) -> str:
    stat = process_stat(pid)
    return "" if stat is None else stat.name
