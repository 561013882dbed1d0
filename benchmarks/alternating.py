"""Measures several contenders in one run, in turns.

A machine's speed drifts: other work comes and goes, clocks throttle, caches and compilers warm up.  Measured one
after the other, the contenders would each meet another machine.  So they take turns: every round runs each of
them once, and each round begins with another one, so that none always follows the same neighbour.  Rounds for warming
up come first and are thrown away.  What is reported is the median, which a disturbed round does not move, and the
spread between the extremes, which says how far it can be trusted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from attrs import field, frozen

from benchmarks.result import format_value


@frozen
class Measurement:
    """The values a contender reached, one for each round, in the contender's own unit."""

    values: tuple[float, ...] = field()

    @values.validator
    def _is_not_empty(self, attribute: object, value: tuple[float, ...]) -> None:
        if not value:
            raise ValueError("a measurement needs at least one round")

    @property
    def median(self) -> float:
        """The middle value; between the two middle ones when their number is even."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """The distance between the extremes as a share of the median; 0.1 means 10 %."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    def __str__(self) -> str:
        values = " ".join(format_value(value) for value in self.values)
        return f"median {format_value(self.median)}, spread {self.spread:.0%}, rounds {values}"


def measure_alternating(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int = 3, warm_up_rounds: int = 0
) -> dict[str, Measurement]:
    """Run each contender once in each round, and return what each reached, by name.

    A contender does its work and returns its value: a rate or a time, as long as all of them return the same
    kind.  Whatever a contender raises ends the run.  Raises `ValueError` when there is no round to measure.
    """
    if rounds < 1 or warm_up_rounds < 0:
        raise ValueError(
            f"measuring takes at least one round and no negative warm-up: got {rounds} and {warm_up_rounds}"
        )
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up_rounds + rounds):
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            value = contenders[name]()
            if turn >= warm_up_rounds:
                values[name].append(value)
    return {name: Measurement(tuple(reached)) for name, reached in values.items()}
