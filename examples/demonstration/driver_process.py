"""A driver process: started, read through a pipe, and killed in the middle of an epoch.

The driver's last sink is a `supervised_sink`. It stops each epoch when all tasks have written rows and state and the
checkpoint is not stored yet: it prints a line on standard output, and waits for a line on standard input. So the driver
can be killed exactly there, on a fast or a slow machine.

The driver is a process group of the Python process and its JVM. Both are killed at once, so neither can clean up.
Spark's Python workers are a group of their own, and end after the JVM.
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
"""The word before the epoch id on standard output when only the checkpoint of the epoch is missing."""

_CHECKPOINT = re.compile(r"chk-(\d{12})")


class DriverFailedError(Exception):
    """The driver ended unexpectedly; the message has the end of its log."""


class DriverProcess:
    """Runs `python -m <module>` with arguments; ``on_line`` receives each line of its output, in a thread.

    ``on_end`` is called after the last line. ``job_dir`` is the directory of its job. Standard error goes to ``log``.
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
        """Wait until the driver has ended. Raises `DriverFailedError` if it failed."""
        self.hang_up()
        self._process.wait()
        self._reader.join()
        if self._process.returncode != 0:
            raise self._failure()

    def ends_within(self, seconds: float) -> bool:
        """Return whether the driver ends within this time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def hang_up(self) -> None:
        """Close the driver's standard input, so that it stops waiting."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def kill_in_epoch_after(self, epoch_id: int) -> int:
        """Let epochs up to ``epoch_id`` complete, kill the driver in the next one, and return its id.

        Raises `DriverFailedError` if the driver ends before.
        """
        while (under_way := self.next_written()) is not None:
            if under_way > epoch_id:
                self.kill()
                return under_way
            self.let_complete()
        raise self._failure()

    def next_written(self, timeout_s: float | None = None) -> int | None:
        """Wait for the next epoch whose checkpoint alone is missing. Return its id, or None if the driver has ended.

        Raises `TimeoutError` if there is none within this time.
        """
        try:
            return self._written.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None

    def let_complete(self) -> None:
        """Let the written epoch complete."""
        assert self._process.stdin is not None
        # If the driver has ended, waiting for its next line reports it.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def kill(self) -> None:
        """Kill the driver at once, as a power failure would, and the rest of its group if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        self.hang_up()

    def completed_epoch(self) -> int | None:
        """Return the newest epoch whose checkpoint is complete."""
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
        what = f"the driver process ended with status {self._process.returncode}; its log ends with:"
        return DriverFailedError("\n  ".join([what, *words]))
