"""A driver process seen from outside: started, listened to through a pipe, and killed in mid-epoch.

The driver's sink is a `SupervisedSink`: in each epoch, when all tasks have written rows and state and the checkpoint is
not stored yet, it says so on standard output and waits for a line on standard input. Whoever does not answer can kill
the driver there, however fast or slow the machine is.

The driver is a process group: the Python process, and the JVM it launches. All of it is killed at once, so nobody can
tidy up. Spark's Python workers make a group of their own, and end when the JVM is gone.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

WRITTEN = "written"
"""The word before the epoch, on the driver's standard output, when its checkpoint is all that is missing."""

_CHECKPOINT = re.compile(r"chk-(\d{12})")


class DriverFailedError(Exception):
    """The driver ended when it should not have; the message has its last words."""


class DriverProcess:
    """`python -m <module>` with these arguments; ``on_line`` gets, in a thread, every line it prints.

    ``on_end`` is called behind the last of them. ``job_dir`` is the directory of its job, ``log`` takes the standard
    error.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        on_line: Callable[[str], None],
        *,
        job_dir: Path,
        log: Path,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._job_dir = job_dir
        self._log = log
        self._written: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as standard_error:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=standard_error,
                text=True,
                start_new_session=True,
            )
        self._reader = threading.Thread(
            target=self._read, args=(on_line, on_end), name=f"driver-{self.pid}", daemon=True
        )
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id, which is also that of the group."""
        return self._process.pid

    def wait(self) -> None:
        """Waits until the driver has ended by itself; raises `DriverFailedError` if it failed."""
        self.hang_up()
        self._process.wait()
        self._reader.join()
        if self._process.returncode != 0:
            raise self._failure()

    def ends_within(self, seconds: float) -> bool:
        """Whether the driver ends before so many seconds have passed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def hang_up(self) -> None:
        """From now on the driver waits for nobody."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill_in_epoch_after(self, epoch_id: int) -> int:
        """Lets epochs up to ``epoch_id`` pass, and kills the driver in the next one; returns that.

        Raises `DriverFailedError` if the driver ends before.
        """
        while (under_way := self.next_written()) is not None:
            if under_way > epoch_id:
                self.kill()
                return under_way
            self.let_complete()
        raise self._failure()

    def next_written(self, timeout_s: float | None = None) -> int | None:
        """Waits until all is written of an epoch but its checkpoint; its id, None if the driver has ended.

        Raises `TimeoutError` if none is within so many seconds.
        """
        try:
            return self._written.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None

    def let_complete(self) -> None:
        """Lets the epoch that is written be completed."""
        assert self._process.stdin is not None
        # A driver that has ended since is found out when the next line is waited for.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Ends the driver at once, as a power cut would, and what is left of its group if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self.hang_up()

    def completed_epoch(self) -> int | None:
        """The newest epoch whose checkpoint is complete."""
        directory = self._job_dir / "checkpoints"
        matches = (_CHECKPOINT.fullmatch(path.parent.name) for path in directory.glob("*/_metadata"))
        return max((int(match[1]) for match in matches if match), default=None)

    def _read(self, on_line: Callable[[str], None], on_end: Callable[[], None]) -> None:
        output = self._process.stdout
        assert output is not None
        for line in output:
            word, _, rest = line.strip().partition(" ")
            if word == WRITTEN:
                self._written.put(int(rest))
            else:
                on_line(line.rstrip("\n"))
        self._written.put(None)
        on_end()

    def _failure(self) -> DriverFailedError:
        self._process.wait()
        words = self._log.read_text("utf-8", "replace").splitlines()[-15:] if self._log.exists() else []
        what = f"the driver process ended with status {self._process.returncode}; its last words were:"
        return DriverFailedError("\n  ".join([what, *words]))
