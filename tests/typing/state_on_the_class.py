"""Typing of state descriptors in the body of a class.

Nothing here is run. Each function shows one thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import attrs

from statebackend import (
    AggregateFunction,
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    BroadcastStateDescriptor,
    DefaultedValueState,
    KeyedProcessFunction,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ProcessContext,
    ProcessWindowFunction,
    ReducingState,
    ReducingStateDescriptor,
    SplitListStateDescriptor,
    StateTtlConfig,
    UnionListStateDescriptor,
    ValueState,
    ValueStateDescriptor,
    WindowContext,
)
from typeserializers import TimeWindow

if TYPE_CHECKING:
    from typing_extensions import assert_type


@attrs.frozen
class Aircraft:
    flights: int = 0


class Mean(AggregateFunction[int, list[int], float]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: int, accumulator: list[int]) -> list[int]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[int]) -> float:
        return sum(accumulator) / len(accumulator)


class Follow(KeyedProcessFunction[str, int, str]):
    aircraft = ValueStateDescriptor("aircraft", Aircraft, default=Aircraft(), ttl=StateTtlConfig("7 days"))
    last = ValueStateDescriptor("last", int)
    legs = ListStateDescriptor("legs", Aircraft)
    airports = MapStateDescriptor("airports", str, int)
    total = ReducingStateDescriptor("total", int.__add__, int)
    mean = AggregatingStateDescriptor("mean", Mean(), list[int])
    handled = SplitListStateDescriptor("handled", int)
    shared = UnionListStateDescriptor("shared", int)
    rules = BroadcastStateDescriptor("rules", str, Aircraft)

    def process_element(self, value: int, context: ProcessContext[str]) -> Iterator[str]:
        assert_type(self.aircraft, DefaultedValueState[Aircraft])
        assert_type(self.aircraft.value(), Aircraft)
        assert_type(self.last, ValueState[int])
        assert_type(self.last.value(), "int | None")
        assert_type(self.legs, ListState[Aircraft])
        assert_type(self.airports, MapState[str, int])
        assert_type(self.total, ReducingState[int])
        assert_type(self.mean, AggregatingState[int, float])
        assert_type(self.handled, ListState[int])
        assert_type(self.shared, ListState[int])
        assert_type(self.rules, BroadcastState[str, Aircraft])
        self.aircraft.update(Aircraft(self.aircraft.value().flights + 1))
        self.aircraft.update(1)  # type: ignore[arg-type]
        yield "done"


class Windows(ProcessWindowFunction[str, int, str]):
    seen = ValueStateDescriptor("seen", int, default=0)
    fired = ListStateDescriptor("fired", str).per_window()

    def process(self, key: str, context: WindowContext[TimeWindow], elements: list[int]) -> Iterator[str]:
        assert_type(self.seen.value(), int)
        assert_type(self.fired.get(), list[str])
        yield key


def an_attribute_of_the_class_is_the_descriptor() -> None:
    assert_type(Follow.last, ValueStateDescriptor[int])
    assert_type(Windows.fired, ListStateDescriptor[str])


class NotAFunction:
    descriptor = ListStateDescriptor("legs", Aircraft)


def an_attribute_of_another_object_is_the_descriptor(other: NotAFunction) -> None:
    assert_type(other.descriptor, ListStateDescriptor[Aircraft])
