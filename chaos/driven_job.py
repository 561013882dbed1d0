"""One driver process of the flights job from outside: the epochs that it tells, its processes, how it ended.

The driver leads a process group, the Python process and the JVM; the Python workers are children of the JVM. Whoever is
hit and when is decided elsewhere. Only processes that this one has started, and their children, are ever signalled.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from chaos.strikes import Strike, Target

__all__ = ["DrivenJob"]

PAUSE_S = 3.0


class DrivenJob:
    """`python -m examples.flights.driver` with these arguments; ``log`` takes its standard error."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self._epochs: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        with log.open("ab") as standard_error:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.flights.driver", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=standard_error,
                text=True,
                start_new_session=True,
                env=environment,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def next_epoch(self) -> int | None:
        """Waits for the next epoch to be complete; None if the driver has ended."""
        return self._epochs.get()

    def strike(self, strike: Strike) -> Target:
        """Does it, after its delay; returns whom it hit. A driver that ended meanwhile was hit by nothing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(strike.delay_ms / 1000)
        jvm = next((pid for pid in _children(self._process.pid) if _name(pid) == "java"), None)
        workers = [] if jvm is None else [pid for pid in _descendants(jvm) if _name(pid).startswith("python")]
        with contextlib.suppress(ProcessLookupError):
            if strike.target is Target.PAUSE:
                os.killpg(self._process.pid, signal.SIGSTOP)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(PAUSE_S)
                os.killpg(self._process.pid, signal.SIGCONT)
                return strike.target
            if strike.target is Target.WORKER and workers:
                os.kill(workers[strike.choice % len(workers)], signal.SIGKILL)
                return strike.target
            if strike.target is Target.JVM and jvm is not None:
                os.kill(jvm, signal.SIGKILL)
                return strike.target
            os.killpg(self._process.pid, signal.SIGKILL)
        return Target.DRIVER

    def wait(self) -> int:
        """Waits until it has ended; its status, negative for a signal."""
        status = self._process.wait()
        self._reader.join()
        self.kill()
        return status

    def kill(self) -> None:
        """Ends what is left of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _read(self) -> None:
        output = self._process.stdout
        assert output is not None
        for line in output:
            word, _, rest = line.strip().partition(" ")
            if word == "epoch":
                self._epochs.put(int(rest))
        self._epochs.put(None)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _descendants(pid: int) -> list[int]:
    found = _children(pid)
    for child in found:
        found += _children(child)
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
