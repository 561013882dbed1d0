"""Version 3 of the job, a mistake: it cannot restore the state of earlier versions.

The delay has become a text, and the map's record has a new field without a default for old records. The program is
valid for a new job, so only the stored state reveals the mistake.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import field, frozen

from examples.flights.flights_source import Flight
from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ValueStateDescriptor,
)
from typeserializers import former_names

UID = "aircraft"


@frozen
class WorstDelay:
    """The longest delay at an arrival, such as "2 h 5 min"."""

    minutes: str
    dest: str
    carrier: str | None = None


@frozen
class AircraftState:
    """The state of one aircraft."""

    flights: int = 0
    cancelled: int = 0
    minutes_late: int = 0
    airport: str | None = field(default=None, metadata=former_names("last_airport"))
    worst: WorstDelay | None = None


@frozen
class DestinationTotals:
    """One aircraft's arrivals at one airport."""

    flights: int
    minutes: int
    diverted: int


@frozen
class Leg:
    """One flight that arrived."""

    origin: str
    dest: str
    arrival_delay: int


@frozen
class AircraftTotals:
    """What is emitted for a flight."""

    tailnum: str
    flights: int


class FollowAircraft(KeyedProcessFunction[str, Flight, AircraftTotals]):
    """Counts flights; it never runs."""

    aircraft = ValueStateDescriptor("aircraft", AircraftState, default=AircraftState())
    destinations = MapStateDescriptor("destinations", str, DestinationTotals)
    legs = ListStateDescriptor("legs", Leg)

    def process_element(self, flight: Flight, context: ProcessContext[str]) -> Iterator[AircraftTotals]:
        state = self.aircraft.value()
        self.aircraft.update(AircraftState(state.flights + 1))
        yield AircraftTotals(flight.tailnum, state.flights + 1)
