"""Measures several contenders in alternation within one run.

The speed of a machine drifts: other processes run, clocks throttle, caches and compilers warm up. So every round runs
each contender once, and each round starts with another one, so that the order has no effect. Warm-up rounds run first
and are not counted. The result is the median, which one disturbed round does not change, and the spread between the
smallest and the largest value, which shows how reliable the median is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median

from attrs import field, frozen

from benchmarks.result import format_value


@frozen
class Measurement:
    """The measured values of a contender, one per round, in the contender's unit."""

    values: tuple[float, ...] = field()

    @values.validator
    def _is_not_empty(self, attribute: object, value: tuple[float, ...]) -> None:
        if not value:
            raise ValueError("a measurement needs at least one round")

    @property
    def median(self) -> float:
        """The median of the values."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """The difference between the largest and the smallest value as a share of the median; 0.1 means 10 %."""
        return (max(self.values) - min(self.values)) / self.median if self.median else 0.0

    def __str__(self) -> str:
        values = " ".join(format_value(value) for value in self.values)
        return f"median {format_value(self.median)}, spread {self.spread:.0%}, rounds {values}"


def measure_alternating(
    contenders: Mapping[str, Callable[[], float]], *, rounds: int = 3, warm_up_rounds: int = 0
) -> dict[str, Measurement]:
    """Run each contender once per round, and return the measurements by name.

    A contender does its work and returns a rate or a time; all contenders must return the same kind of value. An
    exception of a contender ends the run.

    Raises:
        ValueError: if `rounds` is less than 1 or `warm_up_rounds` is negative.
    """
    if rounds < 1 or warm_up_rounds < 0:
        raise ValueError(f"rounds must be at least 1 and warm_up_rounds at least 0, not {rounds} and {warm_up_rounds}")
    names = list(contenders)
    values: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warm_up_rounds + rounds):
        first = turn % len(names) if names else 0
        for name in names[first:] + names[:first]:
            value = contenders[name]()
            if turn >= warm_up_rounds:
                values[name].append(value)
    return {name: Measurement(tuple(reached)) for name, reached in values.items()}
