"""A histogram of latencies with fixed buckets, so that any two can be merged.

Bucket boundaries are the numbers of nanoseconds with four significant bits: 0, 1, ... 15, 16, 18, 20, ... 30, 32, 36,
... A latency is thus known to within an eighth, whatever its magnitude, and a histogram has at most a few dozen buckets
that are not empty. The idea is that of HdrHistogram (Gil Tene).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from snapshots.value_text import shown

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
        """Counts one latency; a negative one, of a clock that went back, counts as 0."""
        latency_ns = min(max(latency_ns, 0), LONGEST_NS)
        bucket = _bucket_of(latency_ns)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.total_ns += latency_ns
        self.maximum_ns = max(self.maximum_ns, latency_ns)

    def merged_with(self, other: LatencyHistogram) -> LatencyHistogram:
        """A histogram of the latencies of both."""
        merged = LatencyHistogram()
        merged._counts = dict(self._counts)
        for bucket, count in other._counts.items():
            merged._counts[bucket] = merged._counts.get(bucket, 0) + count
        merged.count = self.count + other.count
        merged.total_ns = self.total_ns + other.total_ns
        merged.maximum_ns = max(self.maximum_ns, other.maximum_ns)
        return merged

    def copy(self) -> LatencyHistogram:
        """What was recorded so far."""
        return self.merged_with(LatencyHistogram())

    def since(self, earlier: LatencyHistogram) -> LatencyHistogram:
        """What was recorded behind an earlier state of this histogram; of the maximum it is not known when it was."""
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
        """The least latency that at least ``percent`` % of the recorded ones do not exceed, rounded up to its bucket.

        At most an eighth above the exact one, and never above the maximum; 0 if nothing was recorded. Raises
        `ValueError` for a percentage that is not above 0 and at most 100.
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
        """The histogram of such a value; raises `ValueError` for anything else."""
        histogram = cls()
        try:
            total, maximum, pairs = value
            counts: Mapping[int, int] = dict(pairs)
        except (TypeError, ValueError) as error:
            raise ValueError(f"no latency histogram: {shown(value)}") from error
        last = _bucket_of(LONGEST_NS)
        if not all(
            type(bucket) is int and type(count) is int and 0 <= bucket <= last and count > 0
            for bucket, count in counts.items()
        ) or any(type(number) is not int or number < 0 for number in (total, maximum)):
            raise ValueError(f"no latency histogram: {shown(value)}")
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
