"""Putting together what measured handles counted, what the store knows, and the sizes of the states in a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from statebackend.metrics.measured_states import MeasuredHandle
from statebackend.metrics.state_metrics import StateMetrics, StateStatistics


def states_measured(
    handles: Mapping[str, Any],
    statistics_of: Callable[[str], StateStatistics],
    sizes: Mapping[str, tuple[int, int]],
) -> dict[str, StateMetrics]:
    """The metrics of the states whose handles are measured ones.

    ``sizes`` are, by state, the bytes of all its files in the last snapshot, and of those it wrote; 0 if missing.
    """
    states = {}
    for name, handle in handles.items():
        if not isinstance(handle, MeasuredHandle):
            continue
        size_bytes, bytes_written = sizes.get(name, (0, 0))
        statistics = statistics_of(name)
        states[name] = StateMetrics(
            reads=handle.reads,
            writes=handle.writes,
            read_latency=handle.read_latency.copy(),
            write_latency=handle.write_latency.copy(),
            cache_misses=statistics.cache_misses,
            entries=statistics.entries,
            entries_are_exact=statistics.entries_are_exact,
            size_bytes=size_bytes,
            bytes_written=bytes_written,
        )
    return states
