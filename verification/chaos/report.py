"""Formats the recovery times after strikes as a table: the targets, the counts, and the distribution of the times."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from verification.chaos.rounds import Recovery
from verification.chaos.strikes import Target

__all__ = ["distribution", "recovery_table"]

_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0)
_HEADS = ("least", "1/4", "median", "3/4", "9/10", "most")


def recovery_table(recoveries: Sequence[Recovery]) -> list[str]:
    """Return one line per target and one for all, with the times from a strike to the next complete epoch.

    Further lines show the times until Spark ran in a restarted driver, and the number of strikes after the last epoch.
    """
    seconds = {target.description: [one.seconds for one in recoveries if one.hit is target] for target in Target}
    seconds["all"] = [one.seconds for one in recoveries]
    seconds["of these, until Spark ran in a restarted driver"] = [one.starting_s for one in recoveries]
    known = {name: [one for one in some if one is not None] for name, some in seconds.items()}
    last = sum(one.seconds is None for one in recoveries)
    return [*distribution(known), *([f"{last} after the last epoch"] if last else [])]


def distribution(seconds_by_name: Mapping[str, Sequence[float]]) -> list[str]:
    """Return a header and one line for each name with values: the count, and quantiles of the seconds."""
    lines = [f"{'':<64}{'times':>8}" + "".join(f"{head:>8}" for head in _HEADS)]
    for name, seconds in seconds_by_name.items():
        if seconds:
            figures = "".join(f"{_quantile(sorted(seconds), share):>8.1f}" for share in _SHARES)
            lines.append(f"{name:<64}{len(seconds):>8}{figures}")
    return lines


def _quantile(seconds: Sequence[float], share: float) -> float:
    """Return the smallest value that at least a share of the sorted values does not exceed."""
    return seconds[max(0, math.ceil(share * len(seconds)) - 1)]
