"""One driver process of the flights job from outside: the epochs that it tells, its processes, how it ended.

The driver leads a process group, the Python process and the JVM; executors and Python workers are below the JVM. Who is
hit and when is decided elsewhere. Only processes that this one has started, and their children, are ever signalled.

Nobody waits for a driver for ever: one that makes no progress (`verification.chaos.progress`) is asked where it
stands, and what all processes of the job have said last is told (`verification.chaos.last_words`).
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
from verification.chaos.last_words import keep_executor_logs, last_words
from verification.chaos.processes import ProcessorTime, children, descendants, look
from verification.chaos.progress import Progress
from verification.chaos.strikes import Strike, Target
from verification.chaos.struck_driver import EPOCH, SPARK_RUNS
from verification.chaos.worlds import JobWorld

__all__ = ["CompletedEpoch", "DrivenJob"]

DRIVER: Final = "verification.chaos.struck_driver"
"""The module of the driver."""

PAUSE_S: Final = 3.0
_LOOK_S = 1.0
"""How often a driver that says nothing is looked at."""


@frozen
class CompletedEpoch:
    """An epoch that a driver has told, and when that was heard, by `time.monotonic`."""

    epoch_id: int
    heard_s: float


class DrivenJob:
    """`python -m verification.chaos.struck_driver` with these arguments, in a world; ``log`` takes its standard
    error.
    """

    def __init__(self, arguments: Sequence[str], world: JobWorld, scratch: Path, log: Path) -> None:
        self._lines: queue.SimpleQueue[tuple[str, float] | None] = queue.SimpleQueue()
        self._world = world
        self._log = log
        self.spark_ran_s: float | None = None
        """When the driver had a session of Spark, by `time.monotonic`."""
        self.failure = ""
        """What it has said last, if it has failed."""
        self._application = ""
        # What Spark leaves behind when it is killed goes with the rest.
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
        """Waits for the next epoch to be complete; None if the driver has ended.

        Raises `DifferenceError`, with what each process has said last, if it makes no progress.
        """
        while True:
            try:
                told = self._lines.get(timeout=_LOOK_S)
            except queue.Empty:
                self._check_progress()
                continue
            if told is None:
                return None
            epoch = self._heard(*told)
            if epoch is not None:
                return epoch

    def strike(self, strike: Strike) -> Target:
        """Does it, after its delay; returns whom it hit. A driver that ended meanwhile was hit by nothing."""
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
        """Waits until it has ended, and says whether it came to its end by itself."""
        try:
            self._driver.wait()
        except DriverFailedError as error:
            self.failure = str(error)
            return False
        return True

    def kill(self) -> None:
        """Ends what is left of it; what its executors have said is kept with its log."""
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
            with self._log.with_suffix(".out").open("a") as said:
                said.write(f"{line}\n")
        return None

    def _check_progress(self) -> None:
        compatibility = self._progress.compatibility(time.monotonic(), self._work.seconds())
        if compatibility is not None:
            words = last_words(self._driver.pid, self._log, self._application)
            words.update(self._world.last_words())
            told = "\n".join(f"--- {who}\n{said}" for who, said in words.items())
            raise DifferenceError(f"the job makes no progress: {compatibility}\n{told}")


_HITS: Final[Mapping[Target, Callable[[DrivenJob, Strike], bool]]] = {
    Target.DRIVER: DrivenJob._kill_driver,
    Target.JVM: DrivenJob._kill_jvm,
    Target.WORKER: DrivenJob._kill_worker,
    Target.EXECUTOR: DrivenJob._kill_executor,
    Target.PAUSE: DrivenJob._pause,
}
"""What is done to processes of the job: False if there was none, and the driver is killed. The rest is the world's."""


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
    seen = look(pid)
    return "" if seen is None else seen.name
