"""Version 1 of the delays: the totals of each airport and hour.

A cancelled flight has no delay. An early flight counts as zero minutes late.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from attrs import evolve, frozen

from statebackend import AggregateFunction, ProcessWindowFunction, WindowContext


@frozen
class Delays:
    """The accumulator: the flights of one airport and hour so far."""

    flights: int = 0
    cancelled: int = 0
    minutes_late: int = 0


@frozen
class HourlyDelays:
    """What is emitted for an airport and hour."""

    airport: str
    hour: datetime
    flights: int
    cancelled: int
    minutes_late: int


@frozen
class DelaysInWeather(HourlyDelays):
    """The same, with the weather of the hour if it is known."""

    temp: float | None
    wind_speed: float | None
    precip: float | None
    visib: float | None


class AddUpDelays(AggregateFunction[Any, Delays, Delays]):
    """Folds each flight into its window as it is reported."""

    def create_accumulator(self) -> Delays:
        return Delays()

    def add(self, flight: Any, so_far: Delays) -> Delays:
        is_cancelled = flight.dep_delay is None
        return evolve(
            so_far,
            flights=so_far.flights + 1,
            cancelled=so_far.cancelled + is_cancelled,
            minutes_late=so_far.minutes_late + (0 if is_cancelled else max(flight.dep_delay, 0)),
        )

    def get_result(self, so_far: Delays) -> Delays:
        return so_far


class EmitDelays(ProcessWindowFunction[str, Delays, HourlyDelays, Any]):
    """Emits a row when a window fires: once after its end, and again for each flight that is reported later."""

    def process(self, airport: str, context: WindowContext[Any], elements: list[Delays]) -> Iterator[HourlyDelays]:
        (delays,) = elements
        yield HourlyDelays(airport, context.window.start_time, delays.flights, delays.cancelled, delays.minutes_late)
