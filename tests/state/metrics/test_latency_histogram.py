"""Latency histograms: exact to an eighth, mergeable, never below a recorded value."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.state.metrics import LatencyHistogram, StateMetricsConfig

LATENCIES = st.lists(st.integers(0, 10**13) | st.integers(0, 300), max_size=50)


def histogram_of(latencies: list[int]) -> LatencyHistogram:
    histogram = LatencyHistogram()
    for latency in latencies:
        histogram.record(latency)
    return histogram


@given(LATENCIES.filter(bool), st.floats(0.1, 100))
def test_a_percentile_is_exact_or_up_to_an_eighth_above(latencies: list[int], percent: float) -> None:
    histogram = histogram_of(latencies)
    wanted = len(latencies) * percent / 100
    exact = next(latency for rank, latency in enumerate(sorted(latencies), 1) if rank >= wanted)
    found = histogram.percentile_ns(percent)
    assert exact <= found <= exact * 9 / 8
    assert histogram.percentile_ns(100) == histogram.maximum_ns == max(latencies)
    assert histogram.mean_ns == sum(latencies) / len(latencies)


@given(LATENCIES, LATENCIES)
def test_merged_histograms_equal_one_of_all_values(first: list[int], second: list[int]) -> None:
    one, other = histogram_of(first), histogram_of(second)
    assert one.merged_with(other) == histogram_of(first + second) == other.merged_with(one)
    assert (one, other) == (histogram_of(first), histogram_of(second))


@given(LATENCIES)
def test_a_histogram_round_trips_through_json(latencies: list[int]) -> None:
    histogram = histogram_of(latencies)
    again = LatencyHistogram.from_json(json.loads(json.dumps(histogram.to_json())))
    assert again == histogram
    assert again.count == len(latencies)


def test_an_empty_histogram_and_extreme_latencies() -> None:
    empty = LatencyHistogram()
    assert (empty.percentile_ns(50), empty.mean_ns, empty.count) == (0, 0.0, 0)
    odd = histogram_of([-5, 2**80])
    assert odd.count == 2
    assert odd.percentile_ns(50) == 0
    assert LatencyHistogram.from_json(odd.to_json()) == odd


@pytest.mark.parametrize("percent", [0, -1, 100.1])
def test_a_percentage_out_of_range_is_rejected(percent: float) -> None:
    with pytest.raises(ValueError, match="percent"):
        LatencyHistogram().percentile_ns(percent)


@pytest.mark.parametrize(
    "value", [None, 5, [], [1, 2], [1, 2, 3], [1, 2, [[1, 0]]], [1, 2, [[-1, 1]]], [-1, 2, []], [1, 2, [[10**9, 1]]]]
)
def test_an_invalid_histogram_is_rejected(value: object) -> None:
    with pytest.raises(ValueError, match="not a latency histogram"):
        LatencyHistogram.from_json(value)


def test_a_sample_interval_below_one_is_rejected() -> None:
    for interval in (0, -1):
        with pytest.raises(ValueError, match="latency_sample_interval"):
            StateMetricsConfig(latency_sample_interval=interval)
