"""The job as a graph, the same for every version and every environment.

    flights --+--> hourly windows by airport --+--> with the weather of the hour ---> delays
              |              |                 |
              |              |      weather ---+
              |              |
              |              +-- too late --> with the name of the airline ---> late
              |
              +--> by aircraft, with timers ---> silent

Windows and timers use event time: the scheduled departure of a flight.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Final

from attrs import frozen

from examples.weather import version_1, version_2
from examples.weather.airline_names import ASK_AGAIN, NameAirline
from examples.weather.reports import FLIGHT_ORDER, FLIGHT_SCHEMA
from examples.weather.silence import ReportSilence
from examples.weather.weather_of_the_hour import AddWeather
from statebackend import AsyncDataStream, DataStream, OutputTag, TumblingEventTimeWindows, WatermarkStrategy

JOB_NAME: Final = "weather"

VERSIONS: Final[dict[int, ModuleType]] = {1: version_1, 2: version_2}

OUT_OF_ORDER: Final = "3 hours"
"""How far reports may be out of order: the watermark is this much behind the latest departure."""
LATENESS: Final = "1 day"
"""How long an hour may still change after the watermark has passed it."""
LATENESS_MS: Final = 24 * 3600 * 1000
HOUR_MS: Final = 3600 * 1000

LATE: Final[OutputTag[Any]] = OutputTag("late", FLIGHT_SCHEMA)


@frozen
class Outputs:
    """The sinks."""

    delays: Any
    late: Any
    silent: Any


def build(
    program: ModuleType,
    flights: DataStream,
    weather: DataStream,
    airlines_url: str,
    outputs: Outputs,
) -> None:
    """Build the graph of a version of the job."""
    timed = flights.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(OUT_OF_ORDER).with_timestamps("departure")
    )
    observed = weather.assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamps("time_hour")
    )
    delays = (
        timed.key_by("origin")
        .window(TumblingEventTimeWindows.of("1 hour"), order_by=FLIGHT_ORDER)
        .allowed_lateness(LATENESS)
        .side_output_late_data(LATE)
        .aggregate(program.AddUpDelays(), program.EmitDelays(), uid="delays")
    )
    with_weather = (
        delays.key_by("airport", "hour")
        .connect(observed.key_by("origin", "time_hour"))
        .process(
            AddWeather(program.Delays, HOUR_MS + LATENESS_MS),
            uid="weather",
            schema=program.DelaysInWeather,
        )
    )
    with_weather.sink_to(outputs.delays, uid="delays")

    late = AsyncDataStream.unordered_wait(
        delays.get_side_output(LATE).key_by("carrier"),
        NameAirline(airlines_url),
        "30 seconds",
        capacity=20,
        retry=ASK_AGAIN,
        uid="airlines",
        schema=f"{FLIGHT_SCHEMA}, airline string",
    )
    late.sink_to(outputs.late, uid="late")

    silent = (
        timed.filter(lambda flight: flight.tailnum is not None and flight.dep_delay is not None)
        .key_by("tailnum")
        .process(ReportSilence(), uid="silence", order_by=FLIGHT_ORDER)
    )
    silent.sink_to(outputs.silent, uid="silent")
