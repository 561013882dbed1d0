"""A driver process seen from outside: started, watched through what it puts on the disk, killed in mid-epoch.

When to kill is read off the disk, not off a clock: an epoch is under way when its predecessor's checkpoint is complete
and a task has begun to write its rows to the sink's staging directory. To be sure that it does not complete
while we look, the driver is halted (SIGSTOP), looked at again, and killed from there or let go on to the next epoch.

The driver is a process group: the Python process, and the JVM it launches. All of it is killed at once, so nobody can
tidy up. Spark's Python workers make a group of their own, and end when the JVM is gone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

POLL_S = 0.005

_CHECKPOINT = re.compile(r"chk-(\d{12})")


class DriverFailedError(Exception):
    """The driver ended when it should not have; the message has its last words."""


class DriverProcess:
    """`python -m examples.flights.driver` with these arguments; ``on_line`` gets, in a thread, every line it prints.

    ``job_dir`` and ``rows_dir`` are watched for the kill, ``log`` takes the standard error.
    """

    def __init__(
        self, arguments: Sequence[str], on_line: Callable[[str], None], *, job_dir: Path, rows_dir: Path, log: Path
    ) -> None:
        self._job_dir = job_dir
        self._rows_dir = rows_dir
        self._log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as standard_error:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "examples.flights.driver", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=standard_error,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, args=(on_line,), name=f"driver-{self.pid}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id, which is also that of the group."""
        return self._process.pid

    def wait(self) -> None:
        """Waits until the driver has ended by itself; raises `DriverFailedError` if it failed."""
        self._process.wait()
        self._reader.join()
        if self._process.returncode != 0:
            raise self._failure()

    def kill_in_epoch_after(self, epoch_id: int) -> int:
        """Waits until an epoch after ``epoch_id`` is under way, and kills the driver there; returns that epoch."""
        while True:
            under_way = self._epoch_under_way()
            if under_way is not None and under_way > epoch_id:
                os.killpg(self.pid, signal.SIGSTOP)
                if self._epoch_under_way() == under_way:
                    self.kill()
                    return under_way
                os.killpg(self.pid, signal.SIGCONT)
            if self._process.poll() is not None:
                raise self._failure()
            time.sleep(POLL_S)

    def kill(self) -> None:
        """Ends the driver at once, as a power cut would; does nothing if it has ended."""
        if self._process.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._reader.join()

    def completed_epoch(self) -> int | None:
        """The newest epoch whose checkpoint is complete."""
        directory = self._job_dir / "checkpoints"
        matches = (_CHECKPOINT.fullmatch(path.parent.name) for path in directory.glob("*/_metadata"))
        return max((int(match[1]) for match in matches if match), default=None)

    def _epoch_under_way(self) -> int | None:
        completed = self.completed_epoch()
        following = 0 if completed is None else completed + 1
        return following if self._is_being_written(following) else None

    def _is_being_written(self, epoch_id: int) -> bool:
        for attempt in self._rows_dir.glob(f"_staging/{epoch_id:012d}-*"):
            # Directories vanish while we look, which os.walk passes over.
            for _, _, names in os.walk(attempt):
                if any(name.startswith("part-") for name in names):
                    return True
        return False

    def _read(self, on_line: Callable[[str], None]) -> None:
        output = self._process.stdout
        assert output is not None
        for line in output:
            on_line(line.rstrip("\n"))

    def _failure(self) -> DriverFailedError:
        self._process.wait()
        words = self._log.read_text("utf-8", "replace").splitlines()[-15:] if self._log.exists() else []
        what = f"the driver process ended with status {self._process.returncode}; its last words were:"
        return DriverFailedError("\n  ".join([what, *words]))
