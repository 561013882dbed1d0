"""Version 1 of the job: for each aircraft its flights, delays, destinations and last legs.

A flight has *arrived* if its arrival delay is known. Cancelled and diverted flights have not arrived. Every scheduled
flight counts as a flight, but only an arrived one moves the aircraft.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from attrs import evolve, frozen

from examples.flights.flights_source import Flight, Int32
from statebackend import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessContext,
    ValueStateDescriptor,
)

UID = "aircraft"
LEGS_KEPT = 5


@frozen
class WorstDelay:
    """The longest arrival delay, the earliest of equal ones."""

    minutes: Int32
    dest: str


@frozen
class AircraftState:
    """The state of one aircraft."""

    flights: int = 0
    minutes_late: Int32 = 0
    last_airport: str | None = None
    last_carrier: str | None = None
    worst: WorstDelay | None = None


@frozen
class DestinationTotals:
    """One aircraft's arrivals at one airport."""

    flights: int = 0
    minutes: int = 0


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
    last_airport: str | None
    worst_minutes: int | None


class FollowAircraft(KeyedProcessFunction[str, Flight, AircraftTotals]):
    """Emits a row per flight, with the aircraft's totals up to and including it."""

    aircraft = ValueStateDescriptor("aircraft", AircraftState, default=AircraftState())
    destinations = MapStateDescriptor("destinations", str, DestinationTotals)
    legs = ListStateDescriptor("legs", Leg)

    def process_element(self, flight: Flight, context: ProcessContext[str]) -> Iterator[AircraftTotals]:
        state = self.aircraft.value()
        state = evolve(state, flights=state.flights + 1, last_carrier=flight.carrier)
        if flight.arr_delay is not None:
            state = self.arrived(state, flight, flight.arr_delay)
        self.aircraft.update(state)
        yield AircraftTotals(
            *(flight.tailnum, flight.departure, flight.origin, flight.carrier, flight.flight),
            *(state.flights, state.minutes_late, state.last_airport),
            state.worst.minutes if state.worst else None,
        )

    def arrived(self, state: AircraftState, flight: Flight, delay: int) -> AircraftState:
        """The aircraft after an arrival; notes leg and destination."""
        late = max(delay, 0)
        worst = state.worst
        if late > (worst.minutes if worst else 0):
            worst = WorstDelay(late, flight.dest)
        totals = self.destinations.get(flight.dest) or DestinationTotals()
        self.destinations.put(flight.dest, DestinationTotals(totals.flights + 1, totals.minutes + late))
        self.legs.update([*self.legs.get(), Leg(flight.origin, flight.dest, delay)][-LEGS_KEPT:])
        return evolve(state, minutes_late=state.minutes_late + late, last_airport=flight.dest, worst=worst)
