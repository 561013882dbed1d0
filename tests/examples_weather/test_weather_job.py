"""The functions of the weather job in this process, on flights made for these tests."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from examples.data.weather_dataset import read_airlines
from examples.weather import version_1, version_2
from examples.weather.airline_names import BUSY_EVERY, AirlineServer
from examples.weather.job import Outputs, build
from examples.weather.reports import FLIGHT_SCHEMA, WEATHER_SCHEMA
from snapshots.compatibility import CompatibilityKind
from statebackend import UserFunctionError
from statebackend.local import LocalJob, LocalStreamEnvironment

pytestmark = pytest.mark.slow

START = datetime(2013, 1, 1, tzinfo=timezone.utc)
ONE_EPOCH = 2
"""Flights, and hours of weather, in one epoch."""


@pytest.fixture(scope="module")
def airlines() -> Iterator[AirlineServer]:
    server = AirlineServer(read_airlines())
    yield server
    server.close()


def at(hour: float) -> datetime:
    return START + timedelta(hours=hour)


def flight(hour: float, delay: int | None = 0, tailnum: str | None = None, dest: str = "BOS") -> tuple[Any, ...]:
    return "JFK", at(hour), "UA", 1, tailnum, dest, delay


def weather(hour: int, temp: float) -> tuple[Any, ...]:
    return "JFK", at(hour), temp, 1.0, 2.0, 3.0


def run(
    server: AirlineServer,
    flights: list[tuple[Any, ...]],
    observed: list[tuple[Any, ...]],
    program: ModuleType = version_2,
    job_dir: Path | None = None,
    **options: Any,
) -> tuple[LocalJob, Outputs]:
    outputs = Outputs([], [], [])
    env = LocalStreamEnvironment(job_dir=job_dir, epoch_size=ONE_EPOCH, parallelism=2)
    build(
        program,
        env.from_elements(flights, FLIGHT_SCHEMA, uid="flights"),
        env.from_elements(observed, WEATHER_SCHEMA, uid="observations"),
        server.url,
        outputs,
    )
    return env.execute("weather", **options), outputs


def hours(rows: list[Any], *columns: str) -> list[tuple[Any, ...]]:
    """The rows, with their times as hours."""
    return sorted((int((row.hour - START) / timedelta(hours=1)), *(row[name] for name in columns)) for row in rows)


CLEAR = [weather(hour, float(hour)) for hour in range(0, 60, 10)]


def test_an_hour_is_emitted_at_its_end_and_again_for_late_records_within_its_lateness(airlines: AirlineServer) -> None:
    flights = [flight(0, 5), flight(0.5, -3), flight(20), flight(20.5), flight(0.25, 7), flight(0.75, None)]
    _, outputs = run(airlines, flights, CLEAR)
    columns = ("flights", "cancelled", "minutes_late", "longest_delay", "temp")
    assert hours(outputs.delays, *columns) == [(0, 2, 0, 5, 5, 0.0), (0, 3, 0, 12, 7, 0.0), (0, 4, 1, 12, 7, 0.0)]
    assert outputs.late == []


def test_later_records_are_emitted_with_the_name_of_their_airline(airlines: AirlineServer) -> None:
    flights = [flight(0), flight(0.5), flight(50), flight(50), flight(0.25, 1), flight(10)]
    _, outputs = run(airlines, flights, CLEAR)
    # Async results have no order.
    assert sorted((row.departure, row.dep_delay, row.airline) for row in outputs.late) == [
        (at(0.25), 1, "United Air Lines Inc."),
        (at(10), 0, "United Air Lines Inc."),
    ]
    assert hours(outputs.delays, "flights") == [(0, 2)]


def test_delays_wait_for_later_weather_for_a_limited_time(airlines: AirlineServer) -> None:
    flights = [flight(0), flight(1), flight(20), flight(20), flight(60), flight(60), flight(60), flight(60)]
    # Hour 0 gets its weather before its delays are emitted, and hour 1 gets none. Both streams advance the watermark.
    observed = [weather(30, 3.0), weather(31, 3.0), weather(32, 3.0), weather(0, 7.0), weather(60, 3.0)]
    _, outputs = run(airlines, flights, observed)
    assert hours(outputs.delays, "flights", "temp") == [(0, 1, 7.0), (1, 1, None), (20, 2, None)]


def test_an_aircraft_is_silent_once_per_gap_in_any_order_of_reports(airlines: AirlineServer) -> None:
    week = 7 * 24
    plane = [flight(24 * day, tailnum="N1", dest=dest) for day, dest in ((0, "A"), (3, "B"), (11, "C"), (13, "D"))]
    others = [flight(4 * week), flight(4 * week)]
    silent = [("N1", at(24 * 3), "B"), ("N1", at(24 * 13), "D")]
    for flights in (plane, [plane[1], plane[0], plane[3], plane[2]]):
        _, outputs = run(airlines, [*flights, *others], CLEAR)
        assert [tuple(row) for row in outputs.silent] == silent
    cancelled = flight(24 * 9, None, tailnum="N1")
    _, outputs = run(airlines, [*plane, cancelled, *others], CLEAR)
    assert [tuple(row) for row in outputs.silent] == silent


def test_version_2_restores_open_windows_with_their_timers(airlines: AirlineServer, tmp_path: Path) -> None:
    job, outputs = run(airlines, [flight(0, 50, "N1"), flight(0.5, 9)], CLEAR[:1], version_1, tmp_path / "1")
    assert outputs.delays == []
    job.savepoint(tmp_path / "savepoint")
    flights = [flight(0.75, 20), flight(1, 4), flight(24 * 8), flight(24 * 8)]
    upgraded, outputs = run(
        airlines, flights, CLEAR[1:], version_2, tmp_path / "2", from_savepoint=tmp_path / "savepoint"
    )
    # Version 2 knows the longest delay only of the flights that it processed. Version 1 processed the first two.
    columns = ("flights", "minutes_late", "longest_delay", "temp")
    assert hours(outputs.delays, *columns) == [(0, 3, 79, 20, 0.0), (1, 1, 4, 4, None)]
    assert [tuple(row) for row in outputs.silent] == [("N1", at(0), "BOS")]
    [compatibility] = [one for one in upgraded.schema_reports["delays"].compatibilities if one.issues]
    assert compatibility.kind is CompatibilityKind.AFTER_MIGRATION
    assert {(issue.rule, issue.path) for issue in compatibility.issues} == {("field-added", ".longest_delay")}


def test_a_busy_server_is_retried(airlines: AirlineServer) -> None:
    asked, rejected = airlines.requests, airlines.rejected
    flights = [flight(0), flight(0), flight(100), flight(100), *(flight(hour) for hour in range(3 * BUSY_EVERY))]
    _, outputs = run(airlines, flights, CLEAR)
    assert len(outputs.late) == 3 * BUSY_EVERY
    assert airlines.rejected - rejected >= 3
    assert (airlines.requests - asked) - (airlines.rejected - rejected) == 3 * BUSY_EVERY


def test_an_unknown_carrier_fails_the_epoch_with_the_answer_of_the_server(airlines: AirlineServer) -> None:
    unknown = ("JFK", at(0), "??", 1, None, "BOS", 0)
    with pytest.raises(UserFunctionError, match=r"airlines/%3F%3F was answered with the status 404"):
        run(airlines, [flight(100), flight(100), unknown], CLEAR)
