"""The delays of an hour beside its weather: two streams that meet by airport and hour, in one state.

Which of the two comes first is not known. The weather is kept for as long as the hour may still change; delays that
come before it wait for it just as long, and go out without it then: the weather of some hours is not known.
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
    """Emits each row of delays with the weather of its hour behind it.

    ``delays_type`` is the record that the columns behind airport and hour are kept as. Weather is waited for until
    ``wait_ms`` after the hour has begun.
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
            yield told(context.current_key, delays, weather)

    def process_element2(self, weather: Any, context: ProcessContext[Any]) -> Iterator[tuple[Any, ...]]:
        known = Weather(weather.temp, weather.wind_speed, weather.precip, weather.visib)
        self.weather.update(known)
        self._set_timer(context)
        for delays in self.waiting.get():
            yield told(context.current_key, delays, known)
        self.waiting.clear()

    def on_timer(self, timestamp: int, context: OnTimerContext[Any]) -> Iterator[tuple[Any, ...]]:
        for delays in self.waiting.get():
            yield told(context.current_key, delays, Weather())
        self.waiting.clear()
        self.weather.clear()

    def _set_timer(self, context: ProcessContext[Any]) -> None:
        _, hour = context.current_key
        context.timer_service.register_event_time_timer(int(hour.timestamp() * 1000) + self.wait_ms)


def told(key: tuple[str, Any], delays: Any, weather: Weather) -> tuple[Any, ...]:
    """A row of the output."""
    return *key, *astuple(delays), *astuple(weather)
