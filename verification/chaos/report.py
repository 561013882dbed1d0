"""How long a job took to go on after each strike: what was hit, how often, and how the times are distributed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verification.chaos.rounds import Recovery
from verification.chaos.strikes import Target

__all__ = ["distribution", "recovery_table"]

_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
_HEADS = ("least", "1/4", "median", "3/4", "9/10", "most")


def recovery_table(recoveries: Sequence[Recovery]) -> list[str]:
    """A line for each target, and one for all: in how many seconds they had their next epoch.

    Then how many of these a driver that was started again took until Spark ran in it, and how many strikes came when
    no epoch was left.
    """
    seconds = {target.told: [one.seconds for one in recoveries if one.hit is target] for target in Target}
    seconds["all"] = [one.seconds for one in recoveries]
    seconds["of these, until Spark ran in a driver that was started again"] = [one.starting_s for one in recoveries]
    known = {name: [one for one in some if one is not None] for name, some in seconds.items()}
    last = sum(one.seconds is None for one in recoveries)
    return [*distribution(known), *([f"{last} struck when no epoch was left"] if last else [])]


def distribution(seconds_by_name: Mapping[str, Sequence[float]]) -> list[str]:
    """A line for each name that has any: how many, and the seconds that such shares of them do not exceed."""
    lines = [f"{'':<64}{'times':>8}" + "".join(f"{head:>8}" for head in _HEADS)]
    for name, seconds in seconds_by_name.items():
        if seconds:
            figures = "".join(f"{_quantile(sorted(seconds), share):>8.1f}" for share in _SHARES)
            lines.append(f"{name:<64}{len(seconds):>8}{figures}")
    return lines


def _quantile(seconds: Sequence[float], share: float) -> float:
    """The least of those that so much of them do not exceed."""
    return seconds[max(0, math.ceil(share * len(seconds)) - 1)]
