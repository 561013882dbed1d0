"""How long a job took to go on after each strike, as a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from chaos.rounds import Recovery
from chaos.strikes import Target

__all__ = ["recovery_table"]


def recovery_table(recoveries: Sequence[Recovery]) -> list[str]:
    """A line for each target, and one for all: how many, and the least, median and most seconds to the next epoch."""
    lines = [f"{'hit':<58}{'strikes':>8}{'least s':>9}{'median s':>9}{'most s':>9}"]
    by_target = [(target.value, [one.seconds for one in recoveries if one.hit is target]) for target in Target]
    for name, seconds in [*by_target, ("all", [one.seconds for one in recoveries])]:
        if seconds:
            figures = (min(seconds), statistics.median(seconds), max(seconds))
            lines.append(f"{name:<58}{len(seconds):>8}" + "".join(f"{figure:>9.1f}" for figure in figures))
    return lines
