"""The metrics of a state, of a snapshot, and of all keyed state of a subtask; and their form in an acknowledgement.

*Counters* (accesses, latencies, cache misses, bytes written) cover one life of a backend, or the time between two of
its snapshots (`KeyedStateMetrics.since`), which in a job is an epoch. *Gauges* (entries, size) are of the last
snapshot. Metrics of several subtasks are merged by adding both. Metrics of several epochs are merged by adding the
counters and keeping the newest gauges.

    report key              value
    state/<state name>      JSON object with the fields of `StateMetrics`
    snapshot                JSON object with the fields of `SnapshotMetrics`

Latencies are recorded in histograms with fixed buckets, so that any two can be merged. The boundaries are all numbers
of nanoseconds with four significant bits: 0, 1, ... 15, 16, 18, 20, ... 30, 32, 36, ... So the error of a latency is at
most an eighth, and a histogram has at most a few dozen buckets that are not empty (HdrHistogram, Gil Tene).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import evolve, field, fields, frozen
from attrs.validators import ge, instance_of

from snapshots.errors import format_value

_SIGNIFICANT_BITS: Final = 4
_SUB_BUCKETS: Final = 1 << (_SIGNIFICANT_BITS - 1)

LONGEST_NS: Final = (1 << 62) - 1
"""Longer latencies are counted as this one: 146 years."""


class LatencyHistogram:
    """Counts of latencies by bucket, their sum, and the exact maximum."""

    __slots__ = ("_counts", "count", "maximum_ns", "total_ns")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total_ns = 0
        self.maximum_ns = 0

    def record(self, latency_ns: int) -> None:
        """Count one latency; a negative one, from a clock that went back, counts as 0."""
        latency_ns = min(max(latency_ns, 0), LONGEST_NS)
        bucket = _bucket_of(latency_ns)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total_ns += latency_ns
        self.maximum_ns = max(self.maximum_ns, latency_ns)

    def merged_with(self, other: LatencyHistogram) -> LatencyHistogram:
        """Return a histogram of the latencies of both."""
        merged = LatencyHistogram()
        merged._counts = dict(self._counts)
        for bucket, count in other._counts.items():
            merged._counts[bucket] = merged._counts.get(bucket, 0) + count
        merged.count = self.count + other.count
        merged.total_ns = self.total_ns + other.total_ns
        merged.maximum_ns = max(self.maximum_ns, other.maximum_ns)
        return merged

    def copy(self) -> LatencyHistogram:
        """Copy the histogram."""
        return self.merged_with(LatencyHistogram())

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """Return the latencies recorded since ``earlier``; the maximum may be older."""
        later = LatencyHistogram()
        for bucket, count in self._counts.items():
            if count > earlier._counts.get(bucket, 0):
                later._counts[bucket] = count - earlier._counts.get(bucket, 0)
        later.count = self.count - earlier.count
        later.total_ns = self.total_ns - earlier.total_ns
        later.maximum_ns = self.maximum_ns if later.count else 0
        return later

    @property
    def mean_ns(self) -> float:
        """The mean; 0 if nothing was recorded."""
        return self.total_ns / self.count if self.count else 0.0

    def percentile_ns(self, percent: float) -> int:
        """The smallest latency that at least ``percent`` % of the recorded ones do not exceed, rounded up to a bucket.

        At most an eighth above the exact one, and never above the maximum; 0 if nothing was recorded. Raises
        `ValueError` unless ``percent`` is above 0 and at most 100.
        """
        if not 0 < percent <= 100:
            raise ValueError(f"percent is {percent}; it must be above 0 and at most 100")
        wanted = self.count * percent / 100
        seen = 0
        for bucket, count in sorted(self._counts.items()):
            seen += count
            if seen >= wanted:
                return min(_longest_of(bucket), self.maximum_ns)
        return self.maximum_ns

    def to_json(self) -> list[Any]:
        """A JSON value: sum, maximum, and pairs of bucket and count."""
        return [self.total_ns, self.maximum_ns, sorted(self._counts.items())]

    @classmethod
    def from_json(cls, value: Any) -> LatencyHistogram:
        """Read a histogram from `to_json`; raise `ValueError` for any other value."""
        histogram = cls()
        try:
            total, maximum, pairs = value
            counts: Mapping[int, int] = dict(pairs)
        except (TypeError, ValueError) as error:
            raise ValueError(f"not a latency histogram: {format_value(value)}") from error
        last = _bucket_of(LONGEST_NS)
        if not all(
            type(bucket) is int and type(count) is int and 0 <= bucket <= last and count > 0
            for bucket, count in counts.items()
        ) or any(type(number) is not int or number < 0 for number in (total, maximum)):
            raise ValueError(f"not a latency histogram: {format_value(value)}")
        histogram._counts = dict(counts)
        histogram.count = sum(counts.values())
        histogram.total_ns, histogram.maximum_ns = total, maximum
        return histogram

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LatencyHistogram) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        if not self.count:
            return "LatencyHistogram(empty)"
        median, high = self.percentile_ns(50), self.percentile_ns(99)
        return f"LatencyHistogram({self.count} samples, p50 {median} ns, p99 {high} ns, max {self.maximum_ns} ns)"


def _bucket_of(latency_ns: int) -> int:
    shift = latency_ns.bit_length() - _SIGNIFICANT_BITS
    return latency_ns if shift <= 0 else shift * _SUB_BUCKETS + (latency_ns >> shift)


def _longest_of(bucket: int) -> int:
    shift = max(bucket // _SUB_BUCKETS - 1, 0)
    mantissa = bucket - shift * _SUB_BUCKETS
    return ((mantissa + 1) << shift) - 1


def skew_of(sizes: Sequence[int]) -> float:
    """Return the largest size divided by the mean, 1.0 if all are equal or zero."""
    total = sum(sizes)
    return max(sizes) * len(sizes) / total if total else 1.0


_STATE_PREFIX: Final = "state/"
_SNAPSHOT: Final = "snapshot"


@frozen(kw_only=True)
class StateMetricsConfig:
    """Turns metrics on. Every access is counted; one in ``latency_sample_interval`` is timed, at random distances.

    An interval of 1 times every access. Raises `ValueError` for a smaller one.
    """

    latency_sample_interval: int = field(default=100, validator=[instance_of(int), ge(1)])


@frozen(kw_only=True)
class StateStatistics:
    """The metrics of a state that only its store knows, None if unknown. The fields are as in `StateMetrics`."""

    entries: int | None = None
    entries_are_exact: bool = True
    cache_misses: int | None = None


@frozen(kw_only=True)
class StateMetrics:
    """The metrics of one state.

    ``reads`` and ``writes`` count calls of the handle's methods. A fold into a reducing or aggregating state is a
    write. An iteration is one read, timed until its iterator exists. ``cache_misses`` counts the accesses that read the
    engine below a cache; None in a backend without a cache. ``entries`` counts values, lists (in some backends parts of
    lists), map entries or elements; None if unknown, an estimate unless ``entries_are_exact``. ``size_bytes`` is the
    size of the state's files in the last snapshot, ``bytes_written`` the size of the files that it wrote.
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
        """The accesses that did not read the engine below the cache; None without a cache."""
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
        """Return the counters since ``earlier``; gauges and the last snapshot are unchanged."""
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
    """The cost of snapshots: their number, entries and bytes written, and the seconds of both parts.

    For several subtasks the seconds are those of the slowest one, for several epochs their sum.
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
    """The metrics of an operator's keyed state, or of one subtask: registered states by name, and snapshots."""

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
        """Return the metrics of one backend since ``earlier``, with its last snapshot."""
        known = earlier.states
        return KeyedStateMetrics(
            {name: one.since(known[name]) if name in known else one for name, one in self.states.items()}, self.snapshot
        )

    def to_report(self) -> dict[str, str]:
        """Convert to the form in the metrics of an acknowledgement."""
        report = {_STATE_PREFIX + name: _to_json(metrics) for name, metrics in self.states.items()}
        report[_SNAPSHOT] = _to_json(self.snapshot)
        return report

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> KeyedStateMetrics | None:
        """Read the metrics of an acknowledgement, None if there are none. Raises `ValueError` if malformed."""
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
    """Read metrics from untrusted text; unknown fields are skipped."""
    values = json.loads(text) if isinstance(text, str) else None
    if not isinstance(values, dict):
        raise ValueError(f"not metrics: {format_value(text)}")
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
        raise ValueError(f"not metrics: {name} is {format_value(value)}")
    return value
