"""Metrics of keyed state: how often each state is read and written, how long that takes, and how large it is.

They are off by default, and then nothing of this package is in the way of an access. Where a
`KeyedStateBackendParameters` carries a `StateMetricsConfig`, the backend gives out *measured* handles around its own
(`statebackend.metrics.measured_states`) and can say what they counted (`KeyedStateBackend.collect_metrics`).
Nothing here decides anything for a state, or knows a store.
"""

from statebackend.metrics.latency_histogram import LatencyHistogram
from statebackend.metrics.state_metrics import (
    KeyedStateMetrics,
    SnapshotMetrics,
    StateMetrics,
    StateMetricsConfig,
    StateStatistics,
)

__all__ = [
    "KeyedStateMetrics",
    "LatencyHistogram",
    "SnapshotMetrics",
    "StateMetrics",
    "StateMetricsConfig",
    "StateStatistics",
]
