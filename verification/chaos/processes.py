"""Processes as `/proc` tells of them: whose children they are, how they stand, what they have used."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from attrs import frozen

__all__ = ["ProcessorTime", "Seen", "children", "descendants", "look", "start_of", "started_with"]

_TICKS_S: Final = os.sysconf("SC_CLK_TCK")
_IS_OF_THE_KERNEL: Final = 0x0020_0000


@frozen
class Seen:
    """A process as it is at this moment: its name, its state as a letter, and the processor time it has used."""

    pid: int
    name: str
    state: str
    work_s: float
    start: int
    """When it was started, in ticks since the machine was: with the id, no other process has that."""

    def __str__(self) -> str:
        return f"{self.pid} {self.name}, {_STATES.get(self.state, self.state)}, {self.work_s:.1f} s of processor time"


_STATES: Final = {"R": "runs", "S": "sleeps", "D": "waits for a device", "T": "is stopped", "Z": "has ended"}


def look(pid: int) -> Seen | None:
    """A process; None if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The name may hold anything, parentheses too.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Seen(pid, head.partition("(")[2], fields[0], (int(fields[11]) + int(fields[12])) / _TICKS_S, int(fields[19]))


def start_of(pid: int) -> int | None:
    """When a process was started, in ticks; None if there is none, or it has ended and only its parent knows."""
    seen = look(pid)
    return None if seen is None or seen.state == "Z" else seen.start


def children(pid: int) -> list[int]:
    """The processes that it has started and that live."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> list[int]:
    """Those, and theirs, and so on."""
    found = children(pid)
    # It grows while it is gone through.
    for child in found:
        found += children(child)
    return found


def started_with(variable: str, value: str) -> list[int]:
    """The processes of this user, but this one, that were started with a variable of the environment at a value."""
    wanted = f"{variable}={value}".encode()
    found: list[int] = []
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in _environment(place).split(b"\0"):
                    found.append(int(place.name))
    return found


def _environment(place: Path) -> bytes:
    """That of a process, by its directory in `/proc`; `OSError` if there is none, or it is somebody else's.

    One that begins another program has none for a moment, in which whoever has started it may have gone on: that is
    waited for.
    """
    while not (found := (place / "environ").read_bytes()):
        fields = (place / "stat").read_text().rpartition(")")[2].split()
        state, flags, where_it_begins = fields[0], int(fields[6]), int(fields[47])
        if state == "Z" or flags & _IS_OF_THE_KERNEL or where_it_begins:
            break
        os.sched_yield()
    return found


class ProcessorTime:
    """What a process and its descendants have used together, those that have ended too as far as they were seen."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._used_s: dict[tuple[int, int], float] = {}

    def seconds(self) -> float:
        """Looks again, and returns the sum."""
        for pid in (self._pid, *descendants(self._pid)):
            seen = look(pid)
            if seen is not None:
                self._used_s[seen.pid, seen.start] = seen.work_s
        return sum(self._used_s.values())
