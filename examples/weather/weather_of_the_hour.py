"""The delays of an hour with its weather: two streams that share one state by airport and hour.

Either may arrive first. The weather is stored for as long as the hour may change. Delays that arrive before it wait as
long, and are then emitted without weather, because the weather of some hours is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from attrs import astuple, frozen

from statebackend import (
    KeyedCoProcessFunction,
    ListState,
    ListStateDescriptor,
    OnTimerContext,
    ProcessContext,
    RuntimeContext,
    ValueState,
    ValueStateDescriptor,
)


@frozen
class Weather:
    """The weather of an hour at an airport."""

    temp: float | None = None
    wind_speed: float | None = None
    precip: float | None = None
    visib: float | None = None


class AddWeather(KeyedCoProcessFunction[tuple[str, Any], Any, Any, tuple[Any, ...]]):
    """Emits each row of delays with the weather of its hour.

    ``delays_type`` is the record that stores the columns after airport and hour. Delays wait for weather until
    ``wait_ms`` after the beginning of the hour.
    """

    def __init__(self, delays_type: type, wait_ms: int) -> None:
        self.delays_type = delays_type
        self.wait_ms = wait_ms

    def open(self, context: RuntimeContext) -> None:
        self.weather: ValueState[Weather] = context.get_state(ValueStateDescriptor("weather", Weather))
        self.waiting: ListState[Any] = context.get_list_state(ListStateDescriptor("waiting", self.delays_type))

    def process_element1(self, row: Any, context: ProcessContext[Any]) -> Iterator[tuple[Any, ...]]:
        _, _, *columns = row
        delays = self.delays_type(*columns)
        weather = self.weather.value()
        if weather is None:
            self.waiting.add(delays)
            self._set_timer(context)
        else:
            yield output_row(context.current_key, delays, weather)

    def process_element2(self, weather: Any, context: ProcessContext[Any]) -> Iterator[tuple[Any, ...]]:
        known = Weather(weather.temp, weather.wind_speed, weather.precip, weather.visib)
        self.weather.update(known)
        self._set_timer(context)
        for delays in self.waiting.get():
            yield output_row(context.current_key, delays, known)
        self.waiting.clear()

    def on_timer(self, timestamp: int, context: OnTimerContext[Any]) -> Iterator[tuple[Any, ...]]:
        for delays in self.waiting.get():
            yield output_row(context.current_key, delays, Weather())
        self.waiting.clear()
        self.weather.clear()

    def _set_timer(self, context: ProcessContext[Any]) -> None:
        _, hour = context.current_key
        context.timer_service.register_event_time_timer(int(hour.timestamp() * 1000) + self.wait_ms)


def output_row(key: tuple[str, Any], delays: Any, weather: Weather) -> tuple[Any, ...]:
    """Return a row of the output."""
    return *key, *astuple(delays), *astuple(weather)
