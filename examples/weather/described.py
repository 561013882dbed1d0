"""The state of each version of the job, described without Spark, data or a server."""

from __future__ import annotations

from examples.weather.job import VERSIONS, Outputs, build
from examples.weather.reports import FLIGHT_SCHEMA, WEATHER_SCHEMA
from statebackend.local import LocalStreamEnvironment


def version_1() -> LocalStreamEnvironment:
    """The first version."""
    return _described(1)


def version_2() -> LocalStreamEnvironment:
    """The second version."""
    return _described(2)


def _described(version: int) -> LocalStreamEnvironment:
    env = LocalStreamEnvironment()
    build(
        VERSIONS[version],
        env.from_elements([], FLIGHT_SCHEMA, uid="flights"),
        env.from_elements([], WEATHER_SCHEMA, uid="observations"),
        "http://nobody.invalid",
        Outputs([], [], []),
    )
    return env
