"""Version 2 of the job: the state has changed, and restores what version 1 has stored.

    AircraftState      last_airport is now airport           renamed, declared by former_names
                       cancelled                             added, 0 for old records
                       minutes_late                          widened from 32 to 64 bits
                       last_carrier                          removed
    WorstDelay         minutes widened, carrier added        the nested record
    DestinationTotals  on_time                               added to the map's record
    Leg                                                      unchanged

The new totals count from the upgrade on, because version 1 did not count flights on time.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from attrs import evolve, field, frozen

from examples.flights.flights_source import Flight, Int32
from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ValueStateDescriptor,
)
from typeserializers import former_names

UID = "aircraft"
LEGS_KEPT = 5


@frozen
class WorstDelay:
    """The longest arrival delay, the earliest of equal ones; the carrier is unknown before version 2."""

    minutes: int
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

    flights: int = 0
    minutes: int = 0
    on_time: int = 0


@frozen
class Leg:
    """One flight that arrived."""

    origin: str
    dest: str
    arrival_delay: int


@frozen
class AircraftTotals:
    """What is emitted for a flight: the flight, and the aircraft's totals with it."""

    tailnum: str
    departure: datetime
    origin: str
    carrier: str
    flight: Int32
    flights: int
    minutes_late: int
    airport: str | None
    worst_minutes: int | None
    worst_carrier: str | None
    cancelled: int


class FollowAircraft(KeyedProcessFunction[str, Flight, AircraftTotals]):
    """Emits a row per flight, with the aircraft's totals up to and including it."""

    aircraft = ValueStateDescriptor("aircraft", AircraftState, default=AircraftState())
    destinations = MapStateDescriptor("destinations", str, DestinationTotals)
    legs = ListStateDescriptor("legs", Leg)

    def process_element(self, flight: Flight, context: ProcessContext[str]) -> Iterator[AircraftTotals]:
        state = self.aircraft.value()
        is_cancelled = flight.dep_time is None
        state = evolve(state, flights=state.flights + 1, cancelled=state.cancelled + is_cancelled)
        if flight.arr_delay is not None:
            state = self.arrived(state, flight, flight.arr_delay)
        self.aircraft.update(state)
        worst = state.worst
        yield AircraftTotals(
            *(flight.tailnum, flight.departure, flight.origin, flight.carrier, flight.flight),
            *(state.flights, state.minutes_late, state.airport),
            worst_minutes=worst.minutes if worst else None,
            worst_carrier=worst.carrier if worst else None,
            cancelled=state.cancelled,
        )

    def arrived(self, state: AircraftState, flight: Flight, delay: int) -> AircraftState:
        """The aircraft after an arrival; notes leg and destination."""
        late = max(delay, 0)
        worst = state.worst
        if late > (worst.minutes if worst else 0):
            worst = WorstDelay(late, flight.dest, flight.carrier)
        totals = self.destinations.get(flight.dest) or DestinationTotals()
        self.destinations.put(
            flight.dest,
            DestinationTotals(totals.flights + 1, totals.minutes + late, totals.on_time + (delay <= 0)),
        )
        self.legs.update([*self.legs.get(), Leg(flight.origin, flight.dest, delay)][-LEGS_KEPT:])
        return evolve(state, minutes_late=state.minutes_late + late, airport=flight.dest, worst=worst)
