"""Flink's windows in dicts: the output of a golden scenario by the rules of its `WindowOperator`.

It shares no code with the product. Rules are written literally: windows are pairs of their start and end, triggers are
tables of functions, timers are a set with a linear search. It emits entries in the form of the traces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

MIN_TIME: Final = -(1 << 63)
MAX_TIME: Final = (1 << 63) - 1

Given = Mapping[str, Any]
Window = tuple[int, int]
GLOBAL: Final[Window] = (MIN_TIME, MAX_TIME + 1)


def last_of(window: Window) -> int:
    return window[1] - 1


@define
class Place:
    """A key and a window, as a trigger sees them: its own state, the watermark, and timers."""

    model: WindowModel
    key: str
    window: Window

    @property
    def watermark(self) -> int:
        return self.model.watermark

    @property
    def is_over(self) -> bool:
        return last_of(self.window) <= self.watermark

    def at_end(self) -> None:
        self.register(last_of(self.window))

    def register(self, time: int) -> None:
        self.model.timers.setdefault((time, self.key, self.window))

    def delete(self, time: int) -> None:
        self.model.timers.pop((time, self.key, self.window), None)

    def get(self) -> Any:
        return self.model.trigger_state.get((self.key, self.window))

    def put(self, value: Any) -> None:
        self.model.trigger_state[self.key, self.window] = value

    def take(self) -> Any:
        return self.model.trigger_state.pop((self.key, self.window), None)


class Trigger:
    """Default trigger methods; each returns whether the window fires."""

    def __init__(self, given: Given) -> None:
        self.given = given

    def element(self, place: Place, time: int, value: int) -> bool:
        return False

    def timer(self, place: Place, time: int) -> bool:
        return time == last_of(place.window)

    def merge(self, place: Place, merged: Sequence[Place]) -> None:
        """Does nothing."""

    def clear(self, place: Place) -> None:
        place.take()
        place.delete(last_of(place.window))


class Never(Trigger):
    def timer(self, place: Place, time: int) -> bool:
        return False


class AtTheEnd(Trigger):
    def element(self, place: Place, time: int, value: int) -> bool:
        if not place.is_over:
            place.at_end()
        return place.is_over

    def merge(self, place: Place, merged: Sequence[Place]) -> None:
        if not place.is_over:
            place.at_end()


class Count(Never):
    def element(self, place: Place, time: int, value: int) -> bool:
        count = (place.take() or 0) + 1
        if count < self.given["n"]:
            place.put(count)
        return bool(count >= self.given["n"])

    def merge(self, place: Place, merged: Sequence[Place]) -> None:
        counts = [count for one in merged if (count := one.take()) is not None]
        if counts:
            place.put(sum(counts))

    def clear(self, place: Place) -> None:
        place.take()


class Continuous(Trigger):
    def element(self, place: Place, time: int, value: int) -> bool:
        if place.is_over:
            return True
        place.at_end()
        if place.get() is None:
            # As Java's remainder: towards zero.
            self._next(place, time - int(math.copysign(abs(time) % self.given["interval"], time)))
        return False

    def timer(self, place: Place, time: int) -> bool:
        if time == last_of(place.window):
            return True
        if place.get() != time:
            return False
        place.take()
        self._next(place, time)
        return True

    def merge(self, place: Place, merged: Sequence[Place]) -> None:
        times = [time for one in merged if (time := one.take()) is not None]
        if times:
            place.put(min(times))
            place.register(min(times))

    def clear(self, place: Place) -> None:
        if (time := place.take()) is not None:
            place.delete(time)

    def _next(self, place: Place, time: int) -> None:
        time = min(time + self.given["interval"], last_of(place.window))
        place.put(time)
        place.register(time)


class Delta(Never):
    def element(self, place: Place, time: int, value: int) -> bool:
        last = place.get()
        if last is not None and value - last <= self.given["threshold"]:
            return False
        place.put(value)
        return last is not None

    def clear(self, place: Place) -> None:
        place.take()


class EarlyCount(Trigger):
    def element(self, place: Place, time: int, value: int) -> bool:
        if place.is_over:
            return True
        place.at_end()
        return Count(self.given).element(place, time, value)


class EarlyAt(Trigger):
    def element(self, place: Place, time: int, value: int) -> bool:
        if place.is_over:
            return True
        place.at_end()
        if self._early(place) > place.watermark:
            place.register(self._early(place))
        return False

    def timer(self, place: Place, time: int) -> bool:
        return time in (last_of(place.window), self._early(place))

    def merge(self, place: Place, merged: Sequence[Place]) -> None:
        for time in (last_of(place.window), self._early(place)):
            if time > place.watermark:
                place.register(time)

    def clear(self, place: Place) -> None:
        super().clear(place)
        place.delete(self._early(place))

    def _early(self, place: Place) -> int:
        return place.window[0] + int(self.given["offset"])


TRIGGERS: Final[Mapping[str, Callable[[Given], Trigger]]] = {
    "never": Never,
    "event_time": AtTheEnd,
    "count": Count,
    "continuous": Continuous,
    "delta": Delta,
    "early_count": EarlyCount,
    "early_at": EarlyAt,
}

Held = tuple[int, int]
"""A record of a window: its value and its time."""

EVICTED: Final[Mapping[str, Callable[[Given, Sequence[Held]], list[Held]]]] = {
    "count": lambda given, held: list(held[max(0, len(held) - given["n"]) :]),
    "time": lambda given, held: [one for one in held if one[1] > max(time for _, time in held) - given["size"]],
    "delta": lambda given, held: [one for one in held if held[-1][0] - one[0] < given["threshold"]],
}


@define
class WindowModel:
    """The model of a window operator; ``operator`` is that of a scenario."""

    operator: Given
    watermark: int = MIN_TIME
    timers: dict[tuple[int, str, Window], None] = field(factory=dict)
    """In the order of their registration."""
    trigger_state: dict[tuple[str, Window], Any] = field(factory=dict)
    held: dict[tuple[str, Window], list[Held]] = field(factory=dict)
    open_sessions: set[tuple[str, Window]] = field(factory=set)
    fires: dict[tuple[str, Window], int] = field(factory=dict)
    all_fires: dict[str, int] = field(factory=dict)
    entries: list[dict[str, Any]] = field(factory=list)
    at: int = 0
    is_idle: bool = False

    def play(self, events: Sequence[Given]) -> list[dict[str, Any]]:
        for self.at, event in enumerate(events):
            if "record" in event:
                record = event["record"]
                self._record(record["key"], record["ts"], record["value"])
            elif "idle" in event or "active" in event:
                self._set_idle(is_idle="idle" in event)
            elif not self.is_idle:
                # An idle source sends no watermark, not even the one at its end.
                self._advance(event.get("watermark", MAX_TIME))
        return self.entries

    def _set_idle(self, is_idle: bool) -> None:
        if is_idle != self.is_idle:
            self.is_idle = is_idle
            self.entries.append({"at": self.at, "status": "idle" if is_idle else "active"})

    @property
    def _kind(self) -> str:
        return str(self.operator["assigner"]["type"])

    @property
    def _is_event_time(self) -> bool:
        return self._kind != "global"

    @property
    def _merges(self) -> bool:
        return self._kind.startswith("session")

    @property
    def _lateness(self) -> int:
        return int(self.operator.get("allowedLateness", 0))

    def _trigger(self) -> tuple[Trigger, bool]:
        """The trigger, and whether it purges."""
        given = self.operator.get("trigger", {"type": "event_time" if self._is_event_time else "never"})
        purges = given["type"] == "purging"
        given = given["of"] if purges else given
        return TRIGGERS[given["type"]](given), purges

    def _windows(self, time: int, value: int) -> list[Window]:
        given = self.operator["assigner"]
        if self._kind == "global":
            return [GLOBAL]
        if self._merges:
            return [(time, time + given.get("gap", value))]
        slide = given.get("slide", given["size"])
        first = time - (time - given["offset"]) % slide
        return [(start, start + given["size"]) for start in range(first, time - given["size"], -slide)]

    def _cleanup_time(self, window: Window) -> int:
        return min(last_of(window) + self._lateness * self._is_event_time, MAX_TIME)

    def _record(self, key: str, time: int, value: int) -> None:
        trigger, purges = self._trigger()
        is_late = True
        for window in self._windows(time, value):
            if self._merges:
                window = self._merged(key, window, trigger)
            if self._is_event_time and self._cleanup_time(window) <= self.watermark:
                self.open_sessions.discard((key, window))
                continue
            is_late = False
            self.held.setdefault((key, window), []).append((value, time))
            place = Place(self, key, window)
            self._follow(trigger.element(place, time, value), purges, place, None)
            if self._cleanup_time(window) != MAX_TIME:
                place.register(self._cleanup_time(window))
        if is_late and self._is_event_time and time + self._lateness <= self.watermark and "lateTag" in self.operator:
            self._emit({"key": key, "value": value}, time, None, self.operator["lateTag"])

    def _merged(self, key: str, window: Window, trigger: Trigger) -> Window:
        found = sorted(
            one for of, one in self.open_sessions if of == key and one[0] <= window[1] and one[1] >= window[0]
        )
        whole = min([window[0], *(one[0] for one in found)]), max([window[1], *(one[1] for one in found)])
        self.open_sessions.add((key, whole))
        parts = [Place(self, key, one) for one in found]
        if not found or found == [whole]:
            return whole
        trigger.merge(Place(self, key, whole), parts)
        held: list[Held] = []
        for part in parts:
            held += self.held.pop((key, part.window), [])
            self.open_sessions.discard((key, part.window))
            trigger.clear(part)
            part.delete(self._cleanup_time(part.window))
        self.open_sessions.add((key, whole))
        if held:
            self.held[key, whole] = held
        return whole

    def _advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        self.watermark = watermark
        trigger, purges = self._trigger()
        while due := [timer for timer in self.timers if timer[0] <= watermark]:
            time, key, window = timer = min(due, key=lambda timer: timer[0])
            del self.timers[timer]
            if self._merges and (key, window) not in self.open_sessions:
                continue
            place = Place(self, key, window)
            self._follow(trigger.timer(place, time), purges, place, time)
            if self._is_event_time and time == self._cleanup_time(window):
                self._clean_up(place, trigger, time)
        self.entries.append({"at": self.at, "watermark": watermark})

    def _clean_up(self, place: Place, trigger: Trigger, time: int) -> None:
        self.held.pop((place.key, place.window), None)
        trigger.clear(place)
        self.open_sessions.discard((place.key, place.window))
        shown: dict[str, Any] = {"window": list(place.window), "wm": self.watermark}
        fires = self.fires.pop((place.key, place.window), None)
        if self.operator["function"].get("windowState"):
            shown["fires"] = fires
        if "clearSide" in self.operator["function"]:
            self._emit(shown, last_of(place.window), time, self.operator["function"]["clearSide"])

    def _follow(self, fires: bool, purges: bool, place: Place, timer: int | None) -> None:
        held = self.held.get((place.key, place.window))
        if fires and held:
            self._fire(place, held, timer)
        if fires and purges:
            self.held.pop((place.key, place.window), None)

    def _fire(self, place: Place, held: Sequence[Held], timer: int | None) -> None:
        given = self.operator.get("evictor")
        evicted = EVICTED[given["type"]] if given is not None else None
        if evicted is not None and not given.get("after"):
            held = evicted(given, held)
        self._show(place, [value for value, _ in held], timer)
        if evicted is not None and given.get("after"):
            held = evicted(given, held)
        self.held[place.key, place.window] = list(held)

    def _show(self, place: Place, values: list[int], timer: int | None) -> None:
        kind = self.operator["function"]["type"]
        shown: dict[str, Any] = {"key": place.key, "values": values}
        if kind == "aggregate":
            shown = {"count": len(values), "sum": sum(values), "values": values}
        elif kind != "reduce":
            shown |= {"window": "global" if place.window == GLOBAL else list(place.window), "wm": self.watermark}
            if self.operator["function"].get("windowState"):
                self.fires[place.key, place.window] = self.fires.get((place.key, place.window), 0) + 1
                self.all_fires[place.key] = self.all_fires.get(place.key, 0) + 1
                shown |= {"fires": self.fires[place.key, place.window], "gfires": self.all_fires[place.key]}
        self._emit(shown, last_of(place.window), timer, None)

    def _emit(self, shown: dict[str, Any], time: int, timer: int | None, side: str | None) -> None:
        entry: dict[str, Any] = {"at": self.at, "out": shown, "ts": time, "wm": self.watermark}
        if side is not None:
            entry["side"] = side
        if timer is not None:
            # Timers of one time may emit in any order, if their keys or windows differ.
            entry["tie"] = timer
        self.entries.append(entry)
