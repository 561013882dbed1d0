"""Runs the contenders of one comparison in alternation, and returns one result per peer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

from benchmarks.alternating import Measurement, measure_alternating
from benchmarks.backends.setting import Setting
from benchmarks.result import Result

OURS = "ours"

REQUIRED = "required"
"""The peer name of a result that is compared with a required value instead of another program."""


def compared(
    setting: Setting,
    name: str,
    unit: str,
    ours: Callable[[], float],
    peers: Mapping[str, Callable[[], float]],
    aim: float | None = None,
) -> Iterator[Result]:
    """Measure ours and all peers in alternation, and yield one result per peer with the same aim."""
    measured = medians(setting, {OURS: ours, **peers})
    for peer_name in peers:
        yield Result(name, measured[OURS], measured[peer_name], peer_name, unit, aim)


def medians(setting: Setting, contenders: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """Return the median of each contender after one warm-up round, and print the spreads to standard error."""
    measured = measure_alternating(contenders, rounds=setting.rounds, warm_up_rounds=1)
    for name, measurement in measured.items():
        report(name, measurement)
    return {name: measurement.median for name, measurement in measured.items()}


def report(name: str, measurement: Measurement) -> None:
    """Print the median, the spread and the rounds of a measurement to standard error."""
    print(f"  {name}: {measurement}", file=sys.stderr, flush=True)
