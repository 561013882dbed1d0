"""When a sweep starts a pass and when it pauses, with a test clock."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from statebackend.state.ttl import ExpirySweep
from statebackend.testing.backends.harness import ManualClock

TTL_MS = 1000
REST_MS = 250


class World:
    """A state of ten entries; a call visits two. Records passes and visits."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.context = SimpleNamespace(key="current", key_group=9, has_key=True)
        self.started: list[int] = []
        self.visited: list[Any] = []
        self.error: Exception | None = None
        state: Any = SimpleNamespace(
            lifetime=SimpleNamespace(clock=self.clock, ttl_ms=TTL_MS),
            key_context=SimpleNamespace(namespace="here", enter=self.enter),
            remove_expired=self.remove_expired,
        )
        self.state = state
        self.sweep = ExpirySweep(self.context, state, self.begin_pass, 2)

    def enter(self, namespace: str) -> None:
        self.state.key_context.namespace = namespace

    def begin_pass(self) -> Iterator[Any]:
        self.started.append(self.clock.now_ms)
        return iter([(group, f"key-{group}", f"namespace-{group}") for group in range(10)])

    def remove_expired(self) -> None:
        self.visited.append((self.context.key_group, self.context.key, self.state.key_context.namespace))
        if self.error is not None:
            raise self.error

    def at(self, now_ms: int, calls: int = 1) -> int:
        """Call the sweep at that time; returns the number of visited entries."""
        self.clock.now_ms = now_ms
        before = len(self.visited)
        for _ in range(calls):
            self.sweep()
        return len(self.visited) - before


def test_a_sweep_pauses_from_the_start_of_its_pass_for_a_quarter_of_the_ttl() -> None:
    world = World()
    assert world.at(0) == 2
    # However long a pass takes, the next one starts a quarter of the TTL after its start.
    assert world.at(100, calls=10) == 8
    assert (world.started, world.sweep.due_ms) == ([0], REST_MS)
    assert world.at(REST_MS - 1, calls=10) == 0
    assert world.at(REST_MS) == 2
    assert world.started == [0, REST_MS]


def test_a_pass_continues_after_the_clock_goes_back_and_then_pauses_longer() -> None:
    world = World()
    world.at(0, calls=10)
    assert world.at(REST_MS) == 2
    assert world.at(REST_MS - 200) == 2
    assert world.at(REST_MS - 200, calls=10) == 6
    assert world.started == [0, REST_MS]
    assert world.at(2 * REST_MS - 1, calls=10) == 0
    assert world.at(2 * REST_MS) == 2


def test_without_a_current_key_no_pass_starts() -> None:
    world = World()
    world.context.has_key = False
    assert world.at(0, calls=3) == 0
    assert world.started == []


def test_key_and_namespace_are_restored_even_if_a_removal_fails() -> None:
    world = World()
    world.error = ArithmeticError("as it must")
    try:
        world.at(0)
    except ArithmeticError:
        assert world.visited == [(0, "key-0", "namespace-0")]
    else:
        raise AssertionError("the error was lost")
    assert (world.context.key_group, world.context.key) == (9, "current")
    assert world.state.key_context.namespace == "here"


def test_a_ttl_shorter_than_its_passes_pauses_for_a_millisecond() -> None:
    world = World()
    world.state.lifetime.ttl_ms = 1
    world.sweep = ExpirySweep(world.context, world.state, world.begin_pass, 100)
    assert world.at(5) == 10
    assert world.at(5) == 0
    assert world.at(6) == 10
