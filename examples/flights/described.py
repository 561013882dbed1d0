"""The state of each version of the job, described without Spark and without data.

statebackend lock --job examples.flights.described:version_1
statebackend check --lock state.lock --job examples.flights.described:version_2
"""

from __future__ import annotations

from types import ModuleType

from examples.flights.flights_source import KEY, ORDER, Flight
from examples.flights.job import VERSIONS
from statebackend.local import LocalStreamEnvironment


def version_1() -> LocalStreamEnvironment:
    """The first version."""
    return _described(VERSIONS[1])


def version_2() -> LocalStreamEnvironment:
    """The second version."""
    return _described(VERSIONS[2])


def version_3() -> LocalStreamEnvironment:
    """The third version."""
    return _described(VERSIONS[3])


def _described(program: ModuleType) -> LocalStreamEnvironment:
    env = LocalStreamEnvironment()
    (
        env.from_elements([], Flight)
        .key_by(KEY)
        .process(program.FollowAircraft(), uid=program.UID, order_by=ORDER)
        .sink_to([])
    )
    return env
