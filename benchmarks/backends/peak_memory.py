"""Measures the peak memory of a process.

Only Linux records the peak of each process; the result is empty on other systems.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path


def measured_peak(run: Callable[[], None], entries: int) -> str:
    """Call `run`, and return JSON: its peak memory in MB, above the memory used before, and its seconds and speed."""
    before_mb, started = status_mb("VmRSS"), time.perf_counter()
    run()
    seconds = time.perf_counter() - started
    peak_mb = status_mb("VmHWM")
    rise = None if before_mb is None or peak_mb is None else peak_mb - before_mb
    return json.dumps({"peak_mb": rise, "seconds": seconds, "entries/s": entries / seconds})


def status_mb(field: str) -> float | None:
    """Return a field of `/proc/self/status` in MB, or None if the system has no such file."""
    try:
        found = re.search(rf"^{field}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024 / 1e6
