"""What is measured of a state, of a snapshot, and of all the state of a subtask; and its form in an acknowledgement.

*Counters* (accesses, latencies, cache misses, bytes written) are those of one life of a backend, or of the time between
two snapshots of it (`KeyedStateMetrics.since`), which in a job is an epoch; *gauges* (entries, size) are as of its last
snapshot. Metrics of several subtasks are merged by adding up both;
of several epochs by adding up counters and keeping the newest gauges.

    report key              value
    state/<state name>      JSON object with the fields of `StateMetrics`
    snapshot                JSON object with the fields of `SnapshotMetrics`
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from attrs import evolve, field, fields, frozen
from attrs.validators import ge, instance_of

from snapshots.value_text import shown
from statebackend.metrics.latency_histogram import LatencyHistogram

_STATE_PREFIX: Final = "state/"
_SNAPSHOT: Final = "snapshot"


@frozen(kw_only=True)
class StateMetricsConfig:
    """Turns metrics on. Every access is counted; one in ``latency_sample_interval`` is timed, at random distances.

    An interval of 1 times all of them. Raises `ValueError` for one that is less.
    """

    latency_sample_interval: int = field(default=100, validator=[instance_of(int), ge(1)])


@frozen(kw_only=True)
class StateStatistics:
    """What a backend knows of one state itself; None for what it does not know. The fields are as in `StateMetrics`."""

    entries: int | None = None
    entries_are_exact: bool = True
    cache_misses: int | None = None


@frozen(kw_only=True)
class StateMetrics:
    """One state.

    ``reads`` and ``writes`` count calls of the handle's methods; a fold into a reducing or aggregating state is a
    write, an iteration one read, timed until its iterator is there. ``cache_misses`` counts the accesses that went to
    the engine below a cache, and is None in a backend that has none. ``entries`` counts values, lists (in some backends
    parts of them), map entries or elements; None where the backend cannot tell, an estimate unless
    ``entries_are_exact``. ``size_bytes`` is the size of the files that the last snapshot says the state is made of,
    ``bytes_written`` of those that it wrote.
    """

    reads: int = 0
    writes: int = 0
    read_latency: LatencyHistogram = field(factory=LatencyHistogram)
    write_latency: LatencyHistogram = field(factory=LatencyHistogram)
    cache_misses: int | None = None
    entries: int | None = None
    entries_are_exact: bool = True
    size_bytes: int = 0
    bytes_written: int = 0

    @property
    def accesses(self) -> int:
        """Reads and writes."""
        return self.reads + self.writes

    @property
    def cache_hits(self) -> int | None:
        """The accesses that needed nothing from the engine below the cache; None without a cache."""
        return None if self.cache_misses is None else max(self.accesses - self.cache_misses, 0)

    def merged_with(self, other: StateMetrics) -> StateMetrics:
        """The metrics of the same state in two subtasks."""
        return evolve(
            self.followed_by(other),
            entries=_sum(self.entries, other.entries),
            entries_are_exact=self.entries_are_exact and other.entries_are_exact,
            size_bytes=self.size_bytes + other.size_bytes,
        )

    def followed_by(self, later: StateMetrics) -> StateMetrics:
        """The metrics of the same state over two epochs."""
        return evolve(
            later,
            reads=self.reads + later.reads,
            writes=self.writes + later.writes,
            read_latency=self.read_latency.merged_with(later.read_latency),
            write_latency=self.write_latency.merged_with(later.write_latency),
            cache_misses=_sum(self.cache_misses, later.cache_misses),
            bytes_written=self.bytes_written + later.bytes_written,
        )

    def since(self, earlier: StateMetrics) -> StateMetrics:
        """What came behind an earlier state of these metrics; gauges and the last snapshot are as they are."""
        misses = None if self.cache_misses is None else self.cache_misses - (earlier.cache_misses or 0)
        return evolve(
            self,
            reads=self.reads - earlier.reads,
            writes=self.writes - earlier.writes,
            read_latency=self.read_latency.since(earlier.read_latency),
            write_latency=self.write_latency.since(earlier.write_latency),
            cache_misses=misses,
        )


@frozen(kw_only=True)
class SnapshotMetrics:
    """What snapshots cost: how many there were, entries and bytes written, and seconds of both parts.

    Seconds of several subtasks are those of the slowest; of several epochs their sum.
    """

    snapshots: int = 0
    entries_written: int = 0
    bytes_written: int = 0
    synchronous_s: float = 0.0
    asynchronous_s: float = 0.0

    def merged_with(self, other: SnapshotMetrics) -> SnapshotMetrics:
        """The snapshots of two subtasks at the same barriers."""
        return evolve(
            self.followed_by(other),
            snapshots=max(self.snapshots, other.snapshots),
            synchronous_s=max(self.synchronous_s, other.synchronous_s),
            asynchronous_s=max(self.asynchronous_s, other.asynchronous_s),
        )

    def followed_by(self, later: SnapshotMetrics) -> SnapshotMetrics:
        """The snapshots of two epochs."""
        return SnapshotMetrics(**{name: getattr(self, name) + getattr(later, name) for name in _names(SnapshotMetrics)})


@frozen
class KeyedStateMetrics:
    """All the state of an operator, or of one of its subtasks: by name the states that it registers, and snapshots."""

    states: Mapping[str, StateMetrics] = field(factory=dict)
    snapshot: SnapshotMetrics = field(factory=SnapshotMetrics)

    def merged_with(self, other: KeyedStateMetrics) -> KeyedStateMetrics:
        """The metrics of two subtasks."""
        return KeyedStateMetrics(
            _combined(self.states, other.states, StateMetrics.merged_with), self.snapshot.merged_with(other.snapshot)
        )

    def followed_by(self, later: KeyedStateMetrics) -> KeyedStateMetrics:
        """The metrics of two epochs."""
        return KeyedStateMetrics(
            _combined(self.states, later.states, StateMetrics.followed_by), self.snapshot.followed_by(later.snapshot)
        )

    def since(self, earlier: KeyedStateMetrics) -> KeyedStateMetrics:
        """What came behind an earlier state of the metrics of one backend, with its last snapshot."""
        known = earlier.states
        return KeyedStateMetrics(
            {name: one.since(known[name]) if name in known else one for name, one in self.states.items()}, self.snapshot
        )

    def to_report(self) -> dict[str, str]:
        """The form in which they travel in the metrics of an acknowledgement."""
        report = {_STATE_PREFIX + name: _to_json(metrics) for name, metrics in self.states.items()}
        report[_SNAPSHOT] = _to_json(self.snapshot)
        return report

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> KeyedStateMetrics | None:
        """What is in the metrics of an acknowledgement; None if it holds none. Raises `ValueError` if malformed."""
        if _SNAPSHOT not in report:
            return None
        states = {
            key.removeprefix(_STATE_PREFIX): _from_json(StateMetrics, value)
            for key, value in report.items()
            if key.startswith(_STATE_PREFIX)
        }
        return cls(states, _from_json(SnapshotMetrics, report[_SNAPSHOT]))


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def _combined(first: Mapping[str, Any], second: Mapping[str, Any], combine: Any) -> dict[str, Any]:
    combined = dict(first)
    for name, metrics in second.items():
        combined[name] = combine(combined[name], metrics) if name in combined else metrics
    return combined


def _names(of: type) -> list[str]:
    return [attribute.name for attribute in fields(of)]


def _to_json(metrics: StateMetrics | SnapshotMetrics) -> str:
    values = {name: getattr(metrics, name) for name in _names(type(metrics))}
    return json.dumps(
        {name: value.to_json() if isinstance(value, LatencyHistogram) else value for name, value in values.items()},
        separators=(",", ":"),
    )


def _from_json(of: type[Any], text: Any) -> Any:
    """Metrics from a text that may be anything; a field that is not known here is passed over."""
    values = json.loads(text) if isinstance(text, str) else None
    if not isinstance(values, dict):
        raise ValueError(f"no metrics: {shown(text)}")
    default = of()
    read = {}
    for name in _names(of):
        if name in values:
            read[name] = _checked(getattr(default, name), name, values[name])
    return of(**read)


def _checked(default: Any, name: str, value: Any) -> Any:
    if isinstance(default, LatencyHistogram):
        return LatencyHistogram.from_json(value)
    if value is None and default is None:
        return None
    expected = int if default is None else type(default)
    # A whole number of seconds is an int in JSON.
    if expected is float and type(value) is int:
        value = float(value)
    if type(value) is not expected or value < 0:
        raise ValueError(f"no metrics: {name} is {shown(value)}")
    return value
