"""Functions that emit one row object repeatedly, and modify it in between, in every form of output.

Row n of the output has ``n`` and, in ``seen``, the numbers up to n, if each row kept its values at emission.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from statebackend import (
    AsyncDataStream,
    AsyncFunction,
    BroadcastProcessFunction,
    BroadcastStateDescriptor,
    DataStream,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
)

SOURCE = "k string, at bigint"
SCHEMA = "n bigint, seen array<bigint>"
SIDE: OutputTag[Any] = OutputTag("side", SCHEMA)
RULES = BroadcastStateDescriptor("rules", str, int)


@attrs.define
class Record:
    n: int
    seen: list[int]


class ReusedDict:
    """Reuses one dict."""

    def __init__(self) -> None:
        self.row: Any = {"n": 0, "seen": []}

    def next(self) -> Any:
        self.row["n"] += 1
        self.row["seen"].append(self.row["n"])
        return self.row


class ReusedRecord(ReusedDict):
    """Reuses one object with attributes."""

    def __init__(self) -> None:
        self.row = Record(0, [])

    def next(self) -> Any:
        self.row.n += 1
        self.row.seen.append(self.row.n)
        return self.row


class ReusedList(ReusedDict):
    """A tuple for each row; only its list is the same object."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def next(self) -> Any:
        self.seen.append(len(self.seen) + 1)
        return len(self.seen), self.seen


REUSED: dict[str, Callable[[], ReusedDict]] = {"dict": ReusedDict, "record": ReusedRecord, "list": ReusedList}


class Yields(KeyedProcessFunction[Any, Any, Any]):
    """Yields two rows for each record."""

    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        yield self.reused.next()
        yield self.reused.next()


class Returns(Yields):
    """Returns a list with a row for each record."""

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        return [self.reused.next()]


class Outputs(Yields):
    """Two rows for each record, to the side output."""

    def process_element(self, value: Any, context: Any) -> Any:
        context.output(SIDE, self.reused.next())
        context.output(SIDE, self.reused.next())


class Timers(Yields):
    """A timer for each record, and two rows for each timer."""

    def process_element(self, value: Any, context: Any) -> Any:
        context.timer_service.register_event_time_timer(value.at)

    def on_timer(self, timestamp: int, context: Any) -> Iterable[Any]:
        yield self.reused.next()
        yield self.reused.next()


class TimersOutput(Timers):
    """As `Timers`, to the side output."""

    def on_timer(self, timestamp: int, context: Any) -> Any:
        context.output(SIDE, self.reused.next())


class Windows(ProcessWindowFunction[Any, Any, Any, Any]):
    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    def process(self, key: Any, context: Any, elements: list[Any]) -> Iterable[Any]:
        yield self.reused.next()
        yield self.reused.next()


class WindowsOutput(Windows):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
        context.output(SIDE, self.reused.next())


class Both(KeyedCoProcessFunction[Any, Any, Any, Any]):
    """Rows of two inputs."""

    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    def process_element1(self, value: Any, context: Any) -> Iterable[Any]:
        yield self.reused.next()

    def process_element2(self, value: Any, context: Any) -> Iterable[Any]:
        yield self.reused.next()


class Pairs(ProcessJoinFunction[Any, Any, Any, Any]):
    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    def process_element(self, left: Any, right: Any, context: Any) -> Iterable[Any]:
        yield self.reused.next()


class PairsOutput(Pairs):
    def process_element(self, left: Any, right: Any, context: Any) -> Any:
        context.output(SIDE, self.reused.next())


class KeyedRules(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        yield self.reused.next()

    def process_broadcast_element(self, value: Any, context: Any) -> Iterable[Any]:
        yield self.reused.next()


class Rules(BroadcastProcessFunction[Any, Any, Any]):
    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    def process_element(self, value: Any, context: Any) -> Any:
        context.output(SIDE, self.reused.next())

    def process_broadcast_element(self, value: Any, context: Any) -> Any:
        context.output(SIDE, self.reused.next())


class Asks(AsyncFunction[Any, Any]):
    """One row for each request."""

    def __init__(self, reused: ReusedDict) -> None:
        self.reused = reused

    async def async_invoke(self, value: Any, context: Any) -> Any:
        return [self.reused.next()]


class AsksForMany(Asks):
    """Two rows for each request."""

    async def async_invoke(self, value: Any, context: Any) -> Any:
        yield self.reused.next()
        await asyncio.sleep(0)
        yield self.reused.next()


class TimesOut(Asks):
    """One row for each record, from timeouts."""

    async def async_invoke(self, value: Any, context: Any) -> Any:
        await asyncio.Event().wait()

    def timeout(self, value: Any, context: Any) -> Any:
        return [self.reused.next()]


class Processor:
    """A PySpark `StatefulProcessor`: rows by name, some from timers."""

    def __init__(self, list_of: ReusedList) -> None:
        self.reused = list_of

    def init(self, handle: Any) -> None:
        self.handle = handle

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        for row in rows:
            self.handle.registerTimer(row.at)
            yield self.reused.next()

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:  # noqa: N802, N803
        yield self.reused.next()

    def close(self) -> None: ...


def _side(stream: Any) -> DataStream:
    side: DataStream = stream.get_side_output(SIDE)
    return side


def _asked(stream: DataStream, function: AsyncFunction[Any, Any], timeout: str = "10 minutes") -> DataStream:
    return AsyncDataStream.unordered_wait(stream, function, timeout, uid="asks", schema=SCHEMA)


def _windowed(stream: DataStream, function: Any) -> Any:
    return stream.key_by("k").window(TumblingEventTimeWindows.of(1)).process(function, uid="windows", schema=SCHEMA)


def _joined(stream: DataStream, function: Any) -> Any:
    keyed = stream.key_by("k")
    return keyed.interval_join(keyed).between(0, 10).process(function, uid="pairs", schema=SCHEMA)


WAYS: dict[str, Callable[[DataStream, Any], DataStream]] = {
    "yield": lambda stream, one: stream.key_by("k").process(Yields(one), uid="yields", schema=SCHEMA),
    "return": lambda stream, one: stream.key_by("k").process(Returns(one), uid="returns", schema=SCHEMA),
    "side output": lambda stream, one: _side(stream.key_by("k").process(Outputs(one), uid="out", schema=SCHEMA)),
    "async": lambda stream, one: _asked(stream, Asks(one)),
    "async generator": lambda stream, one: _asked(stream, AsksForMany(one)),
    "async timeout": lambda stream, one: _asked(stream, TimesOut(one), "1 millisecond"),
    "two inputs": lambda stream, one: (
        stream.connect(stream).key_by("k", "k").process(Both(one), uid="both", schema=SCHEMA)
    ),
    "broadcast": lambda stream, one: (
        stream.key_by("k").connect(stream.broadcast(RULES)).process(KeyedRules(one), uid="rules", schema=SCHEMA)
    ),
    "broadcast without keys": lambda stream, one: _side(
        stream.connect(stream.broadcast(RULES)).process(Rules(one), uid="rules", schema=SCHEMA)
    ),
}
"""How rows come out of a stream with or without event time."""

WAYS_IN_EVENT_TIME: dict[str, Callable[[DataStream, Any], DataStream]] = {
    "timer": lambda stream, one: stream.key_by("k").process(Timers(one), uid="timers", schema=SCHEMA),
    "side output of timer": lambda stream, one: _side(
        stream.key_by("k").process(TimersOutput(one), uid="timers", schema=SCHEMA)
    ),
    "window": lambda stream, one: _windowed(stream, Windows(one)),
    "side output of window": lambda stream, one: _side(_windowed(stream, WindowsOutput(one))),
    "join": lambda stream, one: _joined(stream, Pairs(one)),
    "side output of join": lambda stream, one: _side(_joined(stream, PairsOutput(one))),
}
"""How rows come out of a stream with event time alone."""


def are_as_emitted(rows: Iterable[Any], least: int) -> bool:
    """Whether each row has the numbers at its emission; there must be at least ``least`` rows."""
    found = sorted((row["n"], list(row["seen"])) for row in rows)
    return len(found) >= least and found == [(n, list(range(1, n + 1))) for n in range(1, len(found) + 1)]
