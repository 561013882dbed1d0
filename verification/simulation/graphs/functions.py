"""The user functions of random graphs, written with the public API only."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from datetime import time, timedelta
from typing import Any, Final, NamedTuple

from statebackend import (
    AggregateFunction,
    AggregatingStateDescriptor,
    AsyncFunction,
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedMultipleInputFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from verification.simulation.graphs.arithmetic import folded, mixed, number_of, reduced, row_of
from verification.simulation.graphs.plan import Node

__all__ = [
    "LATE_RIGHT_TAG",
    "RULES",
    "SCHEMA",
    "SIDE_TAG",
    "SOURCE_SCHEMA",
    "Asked",
    "Collect",
    "Connected",
    "Element",
    "Pair",
    "Ruled",
    "Running",
    "Several",
    "ShowWindow",
    "Totals",
    "co_grouped",
    "joined",
    "mapped",
    "reduced_rows",
    "with_times",
]

SOURCE_SCHEMA: Final = "k bigint, v bigint, t bigint, l array<bigint>"
SCHEMA: Final = f"{SOURCE_SCHEMA}, d interval day to second, c time(6)"
"""The last two columns follow from ``v``; the model does not have them."""
SIDE_TAG: Final[OutputTag[Any]] = OutputTag("side", SCHEMA)
LATE_RIGHT_TAG: Final[OutputTag[Any]] = OutputTag("late-right", SCHEMA)
RULES: Final = BroadcastStateDescriptor("rules", int, int)
_SEEN: Final = ValueStateDescriptor("seen", int, default=0)


def _row(columns: Sequence[str], key: Any, number: int, length: int = 1) -> tuple[Any, ...]:
    return with_times(row_of(columns, key, number, length))


def with_times(row: Any) -> tuple[Any, ...]:
    """Return a row of a source, or of the model, with all columns."""
    k, v, t, l = row  # noqa: E741
    return k, v, t, list(l), *_times_of(v)


def _times_of(v: int) -> tuple[timedelta, time]:
    return timedelta(days=-v, microseconds=v), time(v, 59, v, 999_990 + v)


def _number(row: Any) -> int:
    assert (row.d, row.c) == _times_of(row.v), f"a time or an interval was changed: {row}"
    return number_of(row.k, row.v, row.t, row.l)


class _Pairs(AggregateFunction[Any, "tuple[int, int]", int]):
    """Counts numbers, and folds them in order."""

    def create_accumulator(self) -> tuple[int, int]:
        return 0, 7

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + 1, mixed(accumulator[1], value)

    def get_result(self, accumulator: tuple[int, int]) -> int:
        return mixed(*accumulator)

    def merge(self, left: tuple[int, int], right: tuple[int, int]) -> tuple[int, int]:
        raise AssertionError("nothing merges here")


class Running(KeyedProcessFunction[Any, Any, Any]):
    """Emits, for each record, the new value of one state of its key."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def open(self, context: Any) -> None:
        kind = self.node["state"]
        if kind == "value":
            self.state = context.get_state(ValueStateDescriptor("value", int))
        elif kind == "list":
            self.state = context.get_list_state(ListStateDescriptor("list", int))
        elif kind == "map":
            self.state = context.get_map_state(MapStateDescriptor("map", int, int))
        elif kind == "reducing":
            self.state = context.get_reducing_state(ReducingStateDescriptor("reducing", mixed, int))
        else:
            self.state = context.get_aggregating_state(
                AggregatingStateDescriptor("aggregating", _Pairs(), tuple[int, int])
            )
        self.row: dict[str, Any] = {}

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        number = _number(value)
        if self.node["changes"]:
            value.l.append(99)
        digest = self._folded(value.v, number)
        if self.node["timer"]:
            context.timer_service.register_event_time_timer(context.timestamp + self.node["timer"])
        row: Any = _row(self.node.key, context.current_key, digest, digest % 3)
        if self.node["reuses"]:
            self.row.update(zip("kvtldc", row, strict=True))
            row = self.row
        if self.node["side"] and digest % 3 == 0:
            context.output(SIDE_TAG, row)
        else:
            yield row

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield _row(self.node.key, context.current_key, mixed(self._digest(), timestamp))

    def _folded(self, value: int, number: int) -> int:
        kind, state = self.node["state"], self.state
        if kind == "value":
            state.update(mixed(state.value() or 0, number))
        elif kind == "list":
            state.update([number]) if value == 6 else state.add(number)
        elif kind == "map":
            state.remove(number % 5) if value == 6 else state.put(number % 5, (state.get(number % 5) or 0) + number)
        else:
            state.add(number)
        digest = self._digest()
        if value == 5:
            state.clear()
        return digest

    def _digest(self) -> int:
        kind, state = self.node["state"], self.state
        if kind == "value":
            return int(state.value() or 0)
        if kind == "list":
            return folded(state.get() or ())
        if kind == "map":
            return folded(part for item in sorted(state.items()) for part in item)
        return int(state.get() or 0)


class Collect(KeyedProcessFunction[Any, Any, Any]):
    """Sums the records of each key until a timer, in any order."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def open(self, context: Any) -> None:
        self.numbers = context.get_list_state(ListStateDescriptor("numbers", int))
        self.counts = context.get_map_state(MapStateDescriptor("counts", int, int))

    def process_element(self, value: Any, context: Any) -> None:
        number, width, timers = _number(value), self.node["width"], context.timer_service
        self.numbers.add(number)
        self.counts.put(number % 3, (self.counts.get(number % 3) or 0) + 1)
        if self.node["clock"]:
            now = timers.current_processing_time()
            timers.register_processing_time_timer(now - now % width + width)
            return
        at = context.timestamp - context.timestamp % width + width
        if self.node["past"] or at > timers.current_watermark():
            timers.register_event_time_timer(at)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        parts = [sum(self.numbers.get() or ()), timestamp]
        parts += [part for item in sorted(self.counts.items()) for part in item]
        self.numbers.clear()
        self.counts.clear()
        yield _row(self.node.key, context.current_key, folded(parts))


class Totals(AggregateFunction[Any, "list[int]", int]):
    """Count and sum of the records of a window, in any order."""

    def create_accumulator(self) -> list[int]:
        return [0, 0]

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return [accumulator[0] + 1, accumulator[1] + _number(value)]

    def get_result(self, accumulator: list[int]) -> int:
        return folded(accumulator)

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return [left[0] + right[0], left[1] + right[1]]


class ShowWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits a number for the content of a window, its end, and how often it has fired."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def open(self, context: Any) -> None:
        if self.node["shape"] != "session":
            self.fired = context.window_state.get_state(ValueStateDescriptor("fired", int, default=0))

    def process(self, key: Any, context: Any, elements: list[Any]) -> Iterator[Any]:
        fired = 0
        if self.node["shape"] != "session":
            fired = context.window_state().get_state(ValueStateDescriptor("fired", int, default=0)).value() + 1
            context.window_state().get_state(ValueStateDescriptor("fired", int, default=0)).update(fired)
        if self.node["function"] == "aggregate":
            content = elements[0]
        else:
            content = folded([len(elements), sum(map(_number, elements))])
        yield _row(self.node.key, key, folded([content, context.window.max_timestamp % 1009, fired]))

    def clear(self, context: Any) -> None:
        if self.node["shape"] != "session":
            context.window_state().get_state(ValueStateDescriptor("fired", int, default=0)).clear()


def reduced_rows(left: Any, right: Any) -> Any:
    """Merge two records of a window into one."""
    return with_times(reduced(left[:4], right[:4]))


class Connected(KeyedCoProcessFunction[Any, Any, Any, Any]):
    """Folds the records of two inputs into one state, in order."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def open(self, context: Any) -> None:
        self.state = context.get_state(_SEEN)

    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        yield self._folded(1, value, context)

    def process_element2(self, value: Any, context: Any) -> Iterator[Any]:
        yield self._folded(2, value, context)

    def _folded(self, factor: int, value: Any, context: Any) -> Any:
        self.state.update(mixed(self.state.value(), factor * _number(value)))
        return _row(self.node.key, context.current_key, self.state.value())


class Several(KeyedMultipleInputFunction[Any, Any]):
    """Does the same for any number of inputs."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def open(self, context: Any) -> None:
        self.state = context.get_state(_SEEN)

    def process_element(self, input_index: int, value: Any, context: Any) -> Iterator[Any]:
        self.state.update(mixed(self.state.value(), (input_index + 1) * _number(value)))
        yield _row(self.node.key, context.current_key, self.state.value())


class Pair(ProcessJoinFunction[Any, Any, Any, Any]):
    """Emits a number for each pair."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def process_element(self, left: Any, right: Any, context: Any) -> Iterator[Any]:
        parts = [_number(left), _number(right), context.left_timestamp, context.right_timestamp]
        yield _row(self.node.key, context.current_key, folded(parts))


def co_grouped(node: Node) -> Any:
    """Return a number for the records of two streams in a window."""

    def co_group(left: list[Any], right: list[Any]) -> list[Any]:
        parts = [len(left), sum(map(_number, left)), len(right), sum(map(_number, right))]
        return [_row(node.key, _key_of(node, (left or right)[0]), folded(parts))]

    return co_group


def joined(node: Node) -> Any:
    """Return a number for a pair of records in a window."""
    return lambda left, right: _row(node.key, _key_of(node, left), folded([_number(left), _number(right)]))


def _key_of(node: Node, row: Any) -> Any:
    key = tuple(getattr(row, name) for name in node.key)
    return key if len(key) > 1 else key[0]


class Ruled(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    """Adds all rules to each record; a rule also changes the state of every key."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def open(self, context: Any) -> None:
        self.seen = context.get_state(_SEEN)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        number = _number(value)
        self.seen.update(self.seen.value() + number)
        rules = sum(amount for _, amount in context.get_broadcast_state(RULES).items())
        yield _row(self.node.key, context.current_key, mixed(number, rules))

    def process_broadcast_element(self, value: Any, context: Any) -> Iterator[Any]:
        rules = context.get_broadcast_state(RULES)
        if value.v % 3 == 0:
            rules.remove(value.k)
        else:
            rules.put(value.k, value.v + value.t)
        rows = []

        def visit(key: Any, state: Any) -> None:
            state.update(mixed(state.value(), value.v))
            rows.append(_row(self.node.key, key, state.value()))

        context.apply_to_keyed_state(_SEEN, visit)
        yield from rows


class Asked(AsyncFunction[Any, Any]):
    """Answers each record at once."""

    def __init__(self, node: Node) -> None:
        self.node = node

    async def async_invoke(self, value: Any, context: Any) -> Any:
        key = _key_of(self.node, value)
        return [_row(self.node.key, key, mixed(_number(value), context.timestamp))]


class Element(NamedTuple):
    """A row as an object of a class."""

    k: int
    v: int
    t: int
    l: list[int]  # noqa: E741
    d: timedelta
    c: time


def mapped(node: Node) -> Any:
    """A stateless step: drops some records, and repeats the others."""

    def map_row(row: Any) -> list[Any]:
        return [] if row.v == 3 else [copy.deepcopy(row) for _ in range(node["factor"])]

    return map_row
