"""A job with the forms of the guide: generic base classes, durations, rows in state, aggregates, no state."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any, Generic, NamedTuple, TypeVar

from attrs import frozen
from typing_extensions import assert_type

from statebackend import (
    AggregateFunction,
    DataStream,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OnTimerContext,
    ProcessContext,
    ProcessWindowFunction,
    Row,
    StateTtlConfig,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WindowContext,
    count,
)
from statebackend.connectors import FileSink
from statebackend.local import LocalStreamEnvironment
from typeserializers import TimeWindow

T = TypeVar("T")


@frozen
class Box(Generic[T]):
    value: T


@frozen
class Price(Box[float]):
    shop: str


class Total(NamedTuple):
    shop: str
    total: float


class PerShop(KeyedProcessFunction[str, T, Total], Generic[T]):
    """A base class with an open input type."""

    seen = MapStateDescriptor("seen", str, int, ttl=StateTtlConfig("7 days"))
    times = ListStateDescriptor("times", datetime.datetime, ttl=StateTtlConfig(datetime.timedelta(hours=1)))
    last = ValueStateDescriptor("last", Row)

    def value_of(self, value: T) -> float:
        raise NotImplementedError

    def process_element(self, value: T, context: ProcessContext[str]) -> Iterator[Total]:
        assert_type(self.times.get(), list[datetime.datetime])
        timers = context.timer_service
        for due in ("30 minutes", datetime.timedelta(minutes=1), datetime.datetime.now(datetime.timezone.utc), 5):
            timers.register_processing_time_timer(due)
        yield Total(context.current_key, self.value_of(value))

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterator[Total]:
        yield Total(context.current_key, timestamp)


class PricesPerShop(PerShop[Price]):
    def value_of(self, value: Price) -> float:
        return assert_type(value.value, float)


class Largest(AggregateFunction[Price, float, float]):
    def create_accumulator(self) -> float:
        return 0.0

    def add(self, value: Price, accumulator: float) -> float:
        return max(value.value, accumulator)

    def get_result(self, accumulator: float) -> float:
        return accumulator


class Started(ProcessWindowFunction[str, float, Total, TimeWindow]):
    def process(self, key: str, context: WindowContext[TimeWindow], elements: list[float]) -> Iterator[Total]:
        yield Total(key, assert_type(context.window.start_time, datetime.datetime).timestamp() + elements[0])


def largest_of(shop: str, window: Any, largest: float) -> list[Total]:
    return [Total(shop, largest)]


def build(env: LocalStreamEnvironment, prices: list[Price], directory: str) -> None:
    records = assert_type(env.from_elements(prices, Price).as_records(Price), DataStream[Price])
    by_shop = records.key_by("shop")
    by_shop.process(PricesPerShop(), uid="totals").sink_to([], uid="totals")
    by_shop.aggregate(n=count(), uid="counted").sink_to([], uid="counted")
    windows = by_shop.window(TumblingEventTimeWindows.of(datetime.timedelta(hours=1)))
    windows.aggregate(Largest(), largest_of, uid="largest").sink_to([], uid="largest")
    windows.aggregate(Largest(), Started(), uid="started").sink_to([], uid="started")
    # Without state.
    records.filter(lambda price: price.value > 1).flat_map(lambda price: [price], schema=Price).sink_to(
        FileSink(directory, "json"), uid="files"
    )
