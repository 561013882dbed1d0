"""The processor time of this process and of all its descendants: Python, the JVM and Spark's workers.

On a shared machine other processes change the wall time more than the processor time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["processor_seconds_since", "processor_ticks"]

_PARENT, _USER, _SYSTEM = 1, 11, 12
"""Indexes in /proc/<pid>/stat, counted after the name."""


def processor_ticks() -> Mapping[int, int]:
    """Return the user and system time of each process of the tree, in ticks."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit():
            continue
        try:
            fields = (directory / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            # The process ended in the meantime.
            continue
        pid = int(directory.name)
        parents[pid] = int(fields[_PARENT])
        ticks[pid] = int(fields[_USER]) + int(fields[_SYSTEM])
    own = os.getpid()
    return {pid: count for pid, count in ticks.items() if _descends(pid, own, parents)}


def processor_seconds_since(before: Mapping[int, int]) -> float:
    """Return the processor time of the tree since `before`, without processes that ended since."""
    used = sum(count - before.get(pid, 0) for pid, count in processor_ticks().items())
    return used / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestor: int, parents: Mapping[int, int]) -> bool:
    while pid != ancestor:
        if pid not in parents:
            return False
        pid = parents[pid]
    return True
