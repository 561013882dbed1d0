"""Runs the contenders of one comparison in turns, and makes a result for each peer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping

from benchmarks.alternating import Measurement, measure_alternating
from benchmarks.backends.setting import Setting
from benchmarks.result import Result

OURS = "ours"

REQUIRED = "required"
"""The peer of a result whose bound is a figure and not another program."""


def compared(
    setting: Setting,
    name: str,
    unit: str,
    ours: Callable[[], float],
    peers: Mapping[str, Callable[[], float]],
    aim: float | None = None,
) -> Iterator[Result]:
    """Ours in turns with each peer, one result a peer, all with the same aim."""
    measured = medians(setting, {OURS: ours, **peers})
    for peer_name in peers:
        yield Result(name, measured[OURS], measured[peer_name], peer_name, unit, aim)


def medians(setting: Setting, contenders: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    """What each contender reached, after one round of warming up; the spreads go to standard error."""
    measured = measure_alternating(contenders, rounds=setting.rounds, warm_up_rounds=1)
    for name, measurement in measured.items():
        report(name, measurement)
    return {name: measurement.median for name, measurement in measured.items()}


def report(name: str, measurement: Measurement) -> None:
    """Says on standard error how far a measurement can be trusted."""
    print(f"  {name}: {measurement}", file=sys.stderr, flush=True)
