"""Putting together what measured handles counted, what the backend knows, and what a snapshot's handle says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend.keyed.state_meta import decode_meta
from statebackend.metrics.measured_states import MeasuredHandle
from statebackend.metrics.state_metrics import StateMetrics, StateStatistics


def states_measured(
    handles: Mapping[str, Any], statistics_of: Callable[[str], StateStatistics], snapshot: KeyedStateHandle | None
) -> dict[str, StateMetrics]:
    """The metrics of the states whose handles are measured ones; sizes are 0 without a snapshot."""
    sizes = {} if snapshot is None else _sizes(snapshot)
    states = {}
    for name, handle in handles.items():
        if not isinstance(handle, MeasuredHandle):
            continue
        size_bytes, bytes_written = sizes.get(name, (0, 0))
        statistics = statistics_of(name)
        states[name] = StateMetrics(
            reads=handle.reads,
            writes=handle.writes,
            read_latency=handle.read_latency,
            write_latency=handle.write_latency,
            cache_misses=statistics.cache_misses,
            entries=statistics.entries,
            entries_are_exact=statistics.entries_are_exact,
            size_bytes=size_bytes,
            bytes_written=bytes_written,
        )
    return states


def _sizes(handle: KeyedStateHandle) -> dict[str, tuple[int, int]]:
    """By state the bytes of all its files in a handle, and of those that the snapshot itself wrote."""
    sizes = {}
    for state in decode_meta(handle.meta, len(handle.files)).states:
        files = [(handle.files[file.index].size_bytes, file.written_by) for file in state.files]
        written = sum(size_bytes for size_bytes, written_by in files if written_by == handle.state_id)
        sizes[state.name] = sum(size_bytes for size_bytes, _ in files), written
    return sizes
