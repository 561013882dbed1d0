"""Shows which part of the runtime takes the time: a profile by function, added up by module."""

from __future__ import annotations

import cProfile
import pstats
from collections import Counter
from typing import Any, Final

__all__ = ["shares_of_parts"]

_READS: Final = frozenset({"get", "value", "contains", "items", "is_empty", "_find", "_value", "_live_items"})

_MODULES: Final = (
    ("/benchmarks/payments/", "the job's own functions"),
    ("/dataclasses.py", "the job's own functions"),
    ("/typeserializers/", "codecs"),
    ("/snapshots/", "codecs"),
    ("/streaming/windows/", "windows"),
    ("window_", "windows"),
    ("timer", "timers"),
    ("priority_queue", "timers"),
    ("key_", "keys"),
    ("entry_keys", "keys"),
    ("composite_key", "keys"),
    ("/statebackend/checkpoint/", "checkpoint"),
    ("/row_writer", "rows out"),
    ("/row_converter", "rows out"),
    ("/local/sinks", "rows out"),
    ("/declared_schema", "rows in"),
    ("/row_reader", "rows in"),
    ("/record_", "rows in"),
    ("/time_zones", "rows in"),
    ("/copy.py", "rows in"),
    ("/local/", "rows in"),
    ("/statebackend/state/", "state"),
    ("/rocksdict/", "state"),
)
"""Parts of file names; the first that matches counts. State is split into reads and writes by function name."""

_GENERATED: Final = {"write": "codecs", "read": "codecs", "exact": "state write", "update": "state write"}


def shares_of_parts(profile: cProfile.Profile) -> dict[str, float]:
    """Return the share of each part; the time of a function without a file counts for its callers."""
    stats: Any = pstats.Stats(profile)
    seconds: Counter[str] = Counter()
    for (file, _, name), (_, _, own, _, callers) in stats.stats.items():
        if file != "~" or not callers:
            seconds[_part_of(file, name)] += own
            continue
        for (caller_file, _, caller_name), (_, _, of_caller, _) in callers.items():
            seconds[_part_of(caller_file, caller_name)] += of_caller
    total = sum(seconds.values())
    return {part: spent / total for part, spent in seconds.most_common()}


def _part_of(file: str, name: str) -> str:
    if file.startswith("<statebackend generated"):
        return _GENERATED.get(name, "state write")
    if file == "<string>":
        # Generated constructors of dataclasses.
        return "the job's own functions"
    part = next((part for place, part in _MODULES if place in file), "other")
    if part == "state":
        return "state read" if name in _READS else "state write"
    return part
