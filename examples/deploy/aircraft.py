"""The functions and records of `aircraft_job.py`: a module of the user, which `spark-submit --py-files` ships."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs

from statebackend import KeyedProcessFunction, ValueStateDescriptor


@attrs.frozen
class Aircraft:
    """The state of one aircraft."""

    flights: int = 0
    last_airport: str | None = None


class Landing(NamedTuple):
    """One row of the output."""

    tailnum: str
    flights: int
    previous_airport: str | None
    airport: str


class FollowAircraft(KeyedProcessFunction[str, Any, Landing]):
    """Counts the flights of each aircraft and knows where it was before."""

    aircraft = ValueStateDescriptor("aircraft", Aircraft, default=Aircraft())

    def process_element(self, flight: Any, context: Any) -> Iterator[Landing]:
        """Take a flight into the state and emit a row."""
        before = self.aircraft.value()
        self.aircraft.update(Aircraft(before.flights + 1, flight.dest))
        yield Landing(flight.tailnum, before.flights + 1, before.last_airport, flight.dest)
