"""Reads processes from `/proc`: their children, their states and their processor times."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from attrs import frozen

__all__ = ["ProcessStat", "ProcessorTime", "children", "descendants", "process_stat", "start_of", "started_with"]

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_IS_OF_THE_KERNEL: Final = 0x0020_0000


@frozen
class ProcessStat:
    """A snapshot of a process: its name, its state as a letter, and its processor time."""

    pid: int
    name: str
    state: str
    work_s: float
    start: int
    """Start in ticks since the boot of the machine; start and pid together are unique."""

    def __str__(self) -> str:
        return f"{self.pid} {self.name}, {_STATES.get(self.state, self.state)}, {self.work_s:.1f} s of processor time"


_STATES: Final = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "Z": "has ended"}


def process_stat(pid: int) -> ProcessStat | None:
    """Return a snapshot of a process, or None if it does not exist."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name may contain any characters, also parentheses.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return ProcessStat(
        pid, head.partition("(")[2], fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_S, int(fields[19])
    )


def start_of(pid: int) -> int | None:
    """Return the start of a process in ticks, or None if it does not exist or is a zombie."""
    stat = process_stat(pid)
    return None if stat is None or stat.state == "Z" else stat.start


def children(pid: int) -> list[int]:
    """Return the live child processes."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Return the live children, their children, and so on."""
    found = children(pid)
    # The list grows during the iteration.
    for child in found:
        found += children(child)
    return found


def started_with(variable: str, value: str) -> list[int]:
    """Return this user's other processes that were started with an environment variable of that value."""
    wanted = f"{variable}={value}".encode()
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in _environment(place).split(b"\0"):
                    found.append(int(place.name))
    return found


def _environment(place: Path) -> bytes:
    """Return the raw environment of a process, given its directory in `/proc`.

    A process that executes a new program has no environment for a moment, and its parent may already have continued.
    This function waits for the end of that moment. Raises `OSError` if the process does not exist or belongs to another
    user.
    """
    while True:
        # The state comes first: an environment that is set after an empty one was read must be read again.
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        found = (place / "environ").read_bytes()
        state, flags, env_end = fields[0], int(fields[6]), int(fields[48])
        if found or state == "Z" or flags & _IS_OF_THE_KERNEL or env_end:
            return found
        os.sched_yield()


class ProcessorTime:
    """The total processor time of a process and its descendants, up to the last snapshot of those that ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s: dict[tuple[int, int], float] = {}

    def seconds(self) -> float:
        """Take a snapshot of all processes, and return the total."""
        for pid in (self._pid, *descendants(self._pid)):
            stat = process_stat(pid)
            if stat is not None:
                self._used_s[stat.pid, stat.start] = stat.work_s
        return sum(self._used_s.values())
