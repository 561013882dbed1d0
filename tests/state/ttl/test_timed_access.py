"""The generated accessors give the same results with the clock of a job as with any other clock."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    TtlStateVisibility,
    TtlUpdateType,
    ValueStateDescriptor,
)
from statebackend.state.clock import StoppedClock
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness, ManualClock


class Largest(AggregateFunction[int, int, str]):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return max(value, accumulator)

    def get_result(self, accumulator: int) -> str:
        return f"<{accumulator}>"

    def merge(self, left: int, right: int) -> int:
        return max(left, right)


CONFIGS = [
    StateTtlConfig(100, update_type=update_type, visibility=visibility, incremental_cleanup=None)
    for update_type in TtlUpdateType
    for visibility in TtlStateVisibility
]


def transcript(directory: Path, name: str, clock: Any, ttl: StateTtlConfig) -> list[Any]:
    """The results of accesses to every kind of state while time passes, goes back, and passes again."""
    harness = BackendHarness(str(directory))
    harness.clock = clock
    backend = harness.open(state_backend(name))
    harness.at(backend, 1)
    value: Any = backend.get_state(ValueStateDescriptor("value", int, 7, ttl=ttl))
    elements: Any = backend.get_state(ListStateDescriptor("list", int, ttl=ttl))
    entries: Any = backend.get_state(MapStateDescriptor("map", str, int, ttl=ttl))
    total: Any = backend.get_state(ReducingStateDescriptor("sum", lambda left, right: left + right, int, ttl=ttl))
    largest: Any = backend.get_state(AggregatingStateDescriptor("largest", Largest(), int, ttl=ttl))
    seen: list[Any] = []
    for step, now_ms in enumerate((0, 40, 120, 130, 90, 229, 230, 400, 450)):
        clock.now_ms = now_ms
        seen += [value.value(), elements.get(), total.get(), largest.get()]
        seen += [entries.get("a"), entries.contains(str(step % 3)), entries.get("null")]
        if step % 3 != 2:
            value.update(step)
            elements.add(step)
            entries.put("a", step)
            entries.put("null", None)
            entries.put(str(step % 3), step)
            total.add(step)
            largest.add(step)
        if step == 4:
            elements.update([*elements.get(), 50])
            with pytest.raises(SerializationError, match=r"state 'map'.*\{'a'\}"):
                entries.put("a", "text")
            with pytest.raises(SerializationError, match=r"state 'list'.*\[1\]: None"):
                elements.update([1, None])
    harness.close()
    return seen


@pytest.mark.parametrize("ttl", CONFIGS, ids=lambda ttl: f"{ttl.update_type.value}, {ttl.visibility.value}")
def test_every_backend_and_clock_gives_the_same_results(tmp_path: Path, ttl: StateTtlConfig) -> None:
    made = [
        transcript(tmp_path / f"{name}-{number}", name, clock, ttl)
        for name in ("heap", "rocksdb")
        for number, clock in enumerate((ManualClock(), StoppedClock(0)))
    ]
    assert made[1:] == [made[0]] * 3
    assert made[0][7:11] == [0, [0], 0, "<0>"]


def test_the_clock_of_a_job_tells_its_followers_a_new_time_and_is_copied_without_them() -> None:
    clock, seen = StoppedClock(5), list[int]()
    clock.follow(seen.append)
    copied = pickle.loads(pickle.dumps(clock))
    clock.now_ms = 3
    assert seen == [5, 3]
    copied.now_ms = 8
    assert (seen, clock(), copied(), copied.now_ms) == ([5, 3], 3, 8, 8)
