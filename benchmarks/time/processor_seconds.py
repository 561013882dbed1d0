"""The processor time of this process and of all that it has started: here of Python, the JVM and Spark's workers.

On a machine that others use, wall time says as much of them as of what is measured; what a core has done for us says
less of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["processor_seconds_since", "processor_ticks"]

_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Places in /proc/<pid>/stat, counted behind the name."""


def processor_ticks() -> Mapping[int, int]:
    """User and system time so far of each process of the tree, in ticks."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            # It has ended meanwhile.
            continue
        pid = int(directory.name)
        parents[pid] = int(fields[_PARENT])
        ticks[pid] = int(fields[_USER]) + int(fields[_SYSTEM])
    own = os.getpid()
    return {pid: count for pid, count in ticks.items() if _descends(pid, own, parents)}


def processor_seconds_since(before: Mapping[int, int]) -> float:
    """What the processes of the tree have used since; one that has ended meanwhile is left out."""
    used = sum(count - before.get(pid, 0) for pid, count in processor_ticks().items())
    return used / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid != ancestor:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True
