"""Version 2 of the delays: the accumulator knows the longest delay, too.

Windows that are open at the upgrade keep what version 1 has added up, and their timers. In them the longest delay is
that of the flights that version 2 sees: nothing can know the others any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from attrs import evolve, frozen

from statebackend import AggregateFunction, ProcessWindowFunction, WindowContext

DELAYS_SCHEMA = """
    airport string, hour timestamp, flights bigint, cancelled bigint, minutes_late bigint, longest_delay bigint
"""


@frozen
class Delays:
    """The accumulator: the flights of one airport and hour so far."""

    flights: int = 0
    cancelled: int = 0
    minutes_late: int = 0
    longest_delay: int = 0


class AddUpDelays(AggregateFunction[Any, Delays, Delays]):
    """Folds each flight into its window as it is reported."""

    def create_accumulator(self) -> Delays:
        return Delays()

    def add(self, flight: Any, so_far: Delays) -> Delays:
        is_cancelled = flight.dep_delay is None
        minutes_late = 0 if is_cancelled else max(flight.dep_delay, 0)
        return evolve(
            so_far,
            flights=so_far.flights + 1,
            cancelled=so_far.cancelled + is_cancelled,
            minutes_late=so_far.minutes_late + minutes_late,
            longest_delay=max(so_far.longest_delay, minutes_late),
        )

    def get_result(self, so_far: Delays) -> Delays:
        return so_far


class TellDelays(ProcessWindowFunction[str, Delays, tuple[Any, ...], Any]):
    """Emits a row when a window fires: once behind its end, and again for each flight that is reported after that."""

    def process(self, airport: str, context: WindowContext[Any], elements: list[Delays]) -> Iterator[tuple[Any, ...]]:
        (delays,) = elements
        hour = datetime.fromtimestamp(context.window.start / 1000, timezone.utc)
        yield airport, hour, delays.flights, delays.cancelled, delays.minutes_late, delays.longest_delay
