"""Computes what a graph must emit after each event, in plain Python without code of the product."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from verification.simulation.graphs.arithmetic import Row, folded, mixed, number_of, reduced, row_of
from verification.simulation.graphs.plan import MAIN, SIDE, GraphPlan, Node, Stream

__all__ = ["END", "GraphModel", "Output"]

START: Final = -(1 << 63)
END: Final = (1 << 63) - 1

Output = tuple[Stream, Row, int | None]
"""A stream, a row, and its timestamp."""


class GraphModel:
    """All nodes of a graph; each event returns the new content of all streams."""

    def __init__(self, plan: GraphPlan) -> None:
        self._nodes = [_MODEL[node.kind](node) for node in plan.nodes]
        self._readers: dict[Stream, list[tuple[int, int]]] = defaultdict(list)
        for index, node in enumerate(plan.nodes):
            for input_index, stream in enumerate(node.inputs):
                self._readers[stream].append((index, input_index))
        self._emitted: list[Output] = []

    def record(self, source: int, row: Row, time: int) -> list[Output]:
        """A source sends a record."""
        self._emit(source, [(MAIN, row, time)])
        return self._taken()

    def watermark(self, source: int, time: int) -> list[Output]:
        """A source sends a watermark; `END` ends the source."""
        self._advance(source, 0, time)
        return self._taken()

    def clock(self, time: int) -> list[Output]:
        """The processing time advances."""
        for index, node in enumerate(self._nodes):
            self._emit(index, node.on_clock(time))
        return self._taken()

    def _emit(
        self, index: int, emitted: Iterator[tuple[str, Row, int | None]] | Sequence[tuple[str, Row, int | None]]
    ) -> None:
        for tag, row, time in list(emitted):
            self._emitted.append(((index, tag), row, time))
            for reader, input_index in self._readers[index, tag]:
                self._emit(reader, self._nodes[reader].on_record(input_index, row, time))

    def _advance(self, index: int, input_index: int, time: int) -> None:
        node = self._nodes[index]
        node.watermarks[input_index] = max(node.watermarks[input_index], time)
        now = min(node.watermarks)
        if now <= node.now:
            return
        node.now = now
        self._emit(index, node.on_watermark())
        for tag in (MAIN, SIDE):
            for reader, reader_input in self._readers[index, tag]:
                self._advance(reader, reader_input, now)

    def _taken(self) -> list[Output]:
        emitted, self._emitted = self._emitted, []
        return emitted


Emitted = Iterator[tuple[str, Row, "int | None"]]


class _Node:
    """A node that passes its input on: a source or a union."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.watermarks = [START] * max(1, len(node.inputs))
        self.now = START
        self.processing_time = 0

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        yield MAIN, row, time

    def on_watermark(self) -> Emitted:
        yield from ()

    def on_clock(self, time: int) -> Emitted:
        self.processing_time = time
        yield from ()

    def key(self, row: Row) -> Any:
        key = tuple(row["kvt".index(name)] for name in self.node.key)
        return key if len(key) > 1 else key[0]

    def row(self, key: Any, number: int, length: int = 1) -> Row:
        return row_of(self.node.key, key, number, length)


class _Map(_Node):
    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        for _ in range(0 if row[1] == 3 else self.node["factor"]):
            yield MAIN, row, time


class _Timed(_Node):
    """A node with timers: a set of (time, key)."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.timers: set[tuple[int, Any]] = set()

    def due(self, until: int) -> Iterator[tuple[int, Any]]:
        for timer in sorted(one for one in self.timers if one[0] <= until):
            self.timers.discard(timer)
            yield timer


class _Running(_Timed):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.states: dict[Any, Any] = {}

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        key, number = self.key(row), number_of(*row)
        kind, state = self.node["state"], self.states.get(key)
        if kind == "value":
            state = mixed(state or 0, number)
        elif kind == "list":
            state = [number] if row[1] == 6 else [*(state or ()), number]
        elif kind == "map":
            state = dict(state or {})
            if row[1] == 6:
                state.pop(number % 5, None)
            else:
                state[number % 5] = state.get(number % 5, 0) + number
        elif kind == "reducing":
            state = number if state is None else mixed(state, number)
        else:
            count, total = state or (0, 7)
            state = count + 1, mixed(total, number)
        self.states[key] = state
        digest = self._digest(key)
        if row[1] == 5:
            del self.states[key]
        if self.node["timer"]:
            assert time is not None
            self.timers.add((time + self.node["timer"], key))
        tag = SIDE if self.node["side"] and digest % 3 == 0 else MAIN
        yield tag, self.row(key, digest, digest % 3), time

    def on_watermark(self) -> Emitted:
        for time, key in self.due(self.now):
            yield MAIN, self.row(key, mixed(self._digest(key), time)), time

    def _digest(self, key: Any) -> int:
        kind, state = self.node["state"], self.states.get(key)
        if kind == "list":
            return folded(state or ())
        if kind == "map":
            return folded(part for item in sorted((state or {}).items()) for part in item)
        if kind == "aggregating":
            return mixed(*state) if state else 0
        return int(state or 0)


class _Collect(_Timed):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.numbers: dict[Any, list[int]] = defaultdict(list)

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        key, width = self.key(row), self.node["width"]
        self.numbers[key].append(number_of(*row))
        before = self.processing_time if self.node["clock"] else time
        assert before is not None
        at = before - before % width + width
        if self.node["clock"] or self.node["past"] or at > self.now:
            self.timers.add((at, key))
        yield from ()

    def on_watermark(self) -> Emitted:
        if not self.node["clock"]:
            yield from self._fired(self.now)

    def on_clock(self, time: int) -> Emitted:
        self.processing_time = time
        if self.node["clock"]:
            for tag, row, _ in self._fired(time):
                yield tag, row, None

    def _fired(self, until: int) -> Emitted:
        for time, key in self.due(until):
            numbers = self.numbers.pop(key, [])
            parts = [sum(numbers), time]
            for remainder in range(3):
                count = sum(number % 3 == remainder for number in numbers)
                parts += [remainder, count] if count else []
            yield MAIN, self.row(key, folded(parts)), time


@define(eq=False)
class _Window:
    """A window of a key."""

    key: Any
    start: int
    end: int
    rows: list[Row] = field(factory=list)
    count: int = 0
    fire_time: int | None = None
    fired: int = 0
    timers: set[int] = field(factory=set)

    @property
    def last(self) -> int:
        return min(self.end - 1, END)


class _Windows(_Node):
    """Windows with triggers, evictors, lateness, and sessions that merge."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.windows: list[_Window] = []
        self.is_event_time = node["shape"] not in ("global", "clock")
        self.lateness = node["lateness"] or 0

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        key = self.key(row)
        is_on_time = False
        for start, end in self._assigned(row, time):
            window = self._found(key, start, end)
            if self._is_over(window):
                self.windows.remove(window)
                continue
            is_on_time = True
            window.rows.append(row)
            if self._fires_on_record(window, time):
                yield from self._fire(window)
        if not is_on_time and self.node["side"] and time is not None and time + self.lateness <= self.now:
            yield SIDE, row, time

    def on_watermark(self) -> Emitted:
        if self.is_event_time:
            yield from self._on_time(self.now)

    def on_clock(self, time: int) -> Emitted:
        self.processing_time = time
        if self.node["shape"] == "clock":
            yield from self._on_time(time)

    def _on_time(self, until: int) -> Emitted:
        while True:
            due = [
                (min(one.timers), index)
                for index, one in enumerate(self.windows)
                if one.timers and min(one.timers) <= until
            ]
            if not due:
                break
            time, index = min(due)
            window = self.windows[index]
            window.timers.discard(time)
            if self._fires_at(window, time):
                yield from self._fire(window)
            if time >= min(window.last + self.lateness, END):
                self.windows.remove(window)

    def _assigned(self, row: Row, time: int | None) -> list[tuple[int, int]]:
        node, size = self.node, self.node["size"]
        if node["shape"] == "global":
            return [(START, END + 1)]
        at = self.processing_time if node["shape"] == "clock" else time
        assert at is not None
        if node["shape"] == "session":
            return [(at, at + node["gap"] + (row[1] if node["dynamic"] else 0))]
        slide, offset = node["slide"] or size, node["offset"] or 0
        offset = offset if offset < slide else 0
        last = at - (at - offset) % slide
        return [(start, start + size) for start in range(last, at - size, -slide)]

    def _found(self, key: Any, start: int, end: int) -> _Window:
        is_session = self.node["shape"] == "session"
        if is_session:
            met = [one for one in self.windows if one.key == key and one.start <= end and start <= one.end]
        else:
            met = [one for one in self.windows if (one.key, one.start, one.end) == (key, start, end)]
        if not met:
            self.windows.append(_Window(key, start, end))
            window = self.windows[-1]
        else:
            window = met[0]
            for other in met[1:]:
                self.windows.remove(other)
                window.rows += other.rows
                window.count += other.count
            window.start, window.end = min([start, *(one.start for one in met)]), max([end, *(one.end for one in met)])
        if self.node["shape"] == "global":
            return window
        if is_session:
            window.timers.clear()
            if not self.node["count"] and window.last > self.now:
                window.timers.add(window.last)
        window.timers.add(min(window.last + self.lateness, END))
        return window

    def _is_over(self, window: _Window) -> bool:
        return self.is_event_time and min(window.last + self.lateness, END) <= self.now

    def _fires_on_record(self, window: _Window, time: int | None) -> bool:
        node = self.node
        if node["count"]:
            window.count += 1
            if window.count < node["count"]:
                return False
            window.count = 0
            return True
        if node["shape"] == "clock":
            return False
        if window.last <= self.now:
            return True
        window.timers.add(window.last)
        if node["continuous"] and window.fire_time is None:
            assert time is not None
            # Towards zero, as in Flink.
            start = time - time % node["continuous"] if time >= 0 else time + -time % node["continuous"]
            self._register_next(window, start)
        return False

    def _fires_at(self, window: _Window, time: int) -> bool:
        if self.node["count"]:
            return False
        if time == window.last:
            return True
        if self.node["continuous"] and time == window.fire_time:
            self._register_next(window, time)
            return True
        return False

    def _register_next(self, window: _Window, time: int) -> None:
        window.fire_time = min(time + self.node["continuous"], window.last)
        window.timers.add(window.fire_time)

    def _fire(self, window: _Window) -> Emitted:
        if self.node["evictor"]:
            window.rows = window.rows[-self.node["evictor"] :]
        rows = list(window.rows)
        if self.node["purging"]:
            window.rows = []
        if not rows:
            return
        if self.node["function"] == "reduce":
            result = rows[0]
            for row in rows[1:]:
                result = reduced(result, row)
            yield MAIN, result, window.last
            return
        window.fired += self.node["shape"] != "session"
        content = folded([len(rows), sum(number_of(*row) for row in rows)])
        yield MAIN, self.row(window.key, folded([content, window.last % 1009, window.fired])), window.last


class _Multi(_Node):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.states: dict[Any, int] = defaultdict(int)

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        key = self.key(row)
        self.states[key] = mixed(self.states[key], (input_index + 1) * number_of(*row))
        yield MAIN, self.row(key, self.states[key]), time


class _Interval(_Node):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.waiting: tuple[list[tuple[Any, int, Row]], list[tuple[Any, int, Row]]] = ([], [])

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        assert time is not None
        if time < self.now != START:
            if self.node["side"]:
                yield SIDE, row, time
            return
        key = self.key(row)
        self.waiting[input_index].append((key, time, row))
        for other, other_time, other_row in self.waiting[1 - input_index]:
            mine, its = (time, row), (other_time, other_row)
            (left_time, left), (right_time, right) = (mine, its) if input_index == 0 else (its, mine)
            if other == key and self.node["lower"] <= right_time - left_time <= self.node["upper"]:
                number = folded([number_of(*left), number_of(*right), left_time, right_time])
                yield MAIN, self.row(key, number), max(left_time, right_time)

    def on_watermark(self) -> Emitted:
        # As in Flink, a record is removed at the watermark at which no later record can join it. A record with the
        # timestamp of the watermark is not late, but does not find the removed one.
        for waiting, reach in zip(self.waiting, (self.node["upper"], -self.node["lower"]), strict=True):
            waiting[:] = [one for one in waiting if one[1] + max(0, reach) > self.now]
        yield from ()


class _CoGroup(_Node):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.windows: dict[tuple[int, Any], tuple[list[Row], list[Row]]] = {}

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        assert time is not None
        end = time - time % self.node["size"] + self.node["size"]
        if end - 1 > self.now:
            self.windows.setdefault((end, self.key(row)), ([], []))[input_index].append(row)
        yield from ()

    def on_watermark(self) -> Emitted:
        for end, key in sorted(one for one in self.windows if one[0] - 1 <= self.now):
            left, right = ([number_of(*row) for row in rows] for rows in self.windows.pop((end, key)))
            if self.node["pairs"]:
                for one in left:
                    for other in right:
                        yield MAIN, self.row(key, folded([one, other])), end - 1
            else:
                number = folded([len(left), sum(left), len(right), sum(right)])
                yield MAIN, self.row(key, number), end - 1


class _Broadcast(_Node):
    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.rules: dict[int, int] = {}
        self.seen: dict[Any, int] = {}

    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        if input_index == 0:
            key, number = self.key(row), number_of(*row)
            self.seen[key] = self.seen.get(key, 0) + number
            yield MAIN, self.row(key, mixed(number, sum(self.rules.values()))), time
            return
        k, v, t, _ = row
        if v % 3 == 0:
            self.rules.pop(k, None)
        else:
            self.rules[k] = v + t
        for key in self.seen:
            self.seen[key] = mixed(self.seen[key], v)
            yield MAIN, self.row(key, self.seen[key]), time


class _Async(_Node):
    def on_record(self, input_index: int, row: Row, time: int | None) -> Emitted:
        assert time is not None
        yield MAIN, self.row(self.key(row), mixed(number_of(*row), time)), time


_MODEL: Final[Mapping[str, Callable[[Node], _Node]]] = {
    "source": _Node,
    "union": _Node,
    "map": _Map,
    "running": _Running,
    "collect": _Collect,
    "window": _Windows,
    "multi": _Multi,
    "interval": _Interval,
    "cogroup": _CoGroup,
    "broadcast": _Broadcast,
    "async": _Async,
}
