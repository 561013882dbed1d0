"""Aircraft that have not flown for seven days: event-time timers.

Each departure sets a timer for seven days later. When it fires, all reports in time have arrived, in any order. If the
aircraft has not left again by then, it is reported as silent. So there is one alert for each gap, and late reports
aside, the alerts do not depend on how the stream is cut into epochs.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any, NamedTuple

from statebackend import (
    KeyedProcessFunction,
    MapStateDescriptor,
    OnTimerContext,
    ProcessContext,
)

SILENCE_MS = 7 * 24 * 3600 * 1000


class Silent(NamedTuple):
    """An aircraft, when it left last, and for which airport."""

    tailnum: str
    last_departure: datetime
    airport: str | None


class ReportSilence(KeyedProcessFunction[str, Any, Silent]):
    """Emits a silent aircraft, its last departure and destination."""

    # The departures of the last seven days: the destination by the time of departure.
    departures = MapStateDescriptor("departures", int, str)

    def process_element(self, flight: Any, context: ProcessContext[str]) -> None:
        assert context.timestamp is not None
        if context.timestamp + SILENCE_MS > context.timer_service.current_watermark():
            self.departures.put(context.timestamp, flight.dest)
            context.timer_service.register_event_time_timer(context.timestamp + SILENCE_MS)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterator[Silent]:
        departure_ms = timestamp - SILENCE_MS
        airport = self.departures.get(departure_ms)
        self.departures.remove(departure_ms)
        others_ms = self.departures.keys()
        if all(other_ms > timestamp for other_ms in others_ms):
            yield Silent(context.current_key, datetime.fromtimestamp(departure_ms / 1000, timezone.utc), airport)
