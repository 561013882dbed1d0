"""The programs of simulated jobs, as a user would write them, and a model of each in plain Python.

The result does not depend on the order of moves: counts of a key follow one source, pairs and totals are the same in
any order, and totals are emitted at the end of time.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import define, field

from statebackend import (
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.streaming.data_stream import DataStream
from verification.simulation.jobs.plan import Event, JobPlan, Shape
from verification.simulation.violation import require_that

__all__ = ["SCHEMA", "Observer", "Row", "build", "expected"]

SCHEMA: Final = "k bigint, id bigint, n bigint"
_WIDTH_MS: Final = 10
_END_MS: Final = 1 << 60
_RULES: Final = BroadcastStateDescriptor("rules", int, int)

Row = tuple[int, int, int]
"""Key, id and number, which is the position of a record within its key. The id of a timer is its negated time."""


@define(eq=False)
class Observer:
    """Connects functions with the simulation; all copies of a function share one."""

    on_step: Callable[[str], None]
    watermarks: dict[tuple[str, int], int] = field(factory=dict)

    def __deepcopy__(self, memo: object) -> Observer:
        return self

    def called(self, uid: str, subtask_index: int, watermark_ms: int) -> None:
        """Record a call at a watermark, which must not go back."""
        self.on_step(uid)
        before = self.watermarks.get((uid, subtask_index), watermark_ms)
        require_that(
            watermark_ms >= before,
            f"watermarks never go back: {uid}[{subtask_index}] was at {before}, is at {watermark_ms}",
        )
        self.watermarks[uid, subtask_index] = watermark_ms


class _Watched:
    """What all functions of this module do when they are opened and called."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer

    def opened(self, context: Any) -> None:
        self.place = context.operator_uid, context.subtask_index

    def called(self, context: Any) -> int:
        watermark_ms: int = context.timer_service.current_watermark()
        self.observer.called(*self.place, watermark_ms)
        return watermark_ms


class Numbered(_Watched, KeyedProcessFunction[int, Any, Row]):
    """Numbers the records of each key, and sets a timer at the end of each ten milliseconds with a record in time."""

    def open(self, context: Any) -> None:
        self.opened(context)
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, value: Any, context: Any) -> Iterator[Row]:
        watermark_ms = self.called(context)
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        if context.timestamp > watermark_ms:
            context.timer_service.register_event_time_timer(_window_end(context.timestamp))
        yield context.current_key, value.id, count

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[Row]:
        self.called(context)
        yield context.current_key, -timestamp_ms, self.count.value() or 0


class Total(_Watched, KeyedProcessFunction[int, Any, Row]):
    """Emits, at the end of time, the number of records of a key and the sum of their ids."""

    def open(self, context: Any) -> None:
        self.opened(context)
        self.ids = context.get_list_state(ListStateDescriptor("ids", int))

    def process_element(self, value: Any, context: Any) -> None:
        self.called(context)
        self.ids.add(value.id)
        context.timer_service.register_event_time_timer(_END_MS)

    def on_timer(self, timestamp_ms: int, context: Any) -> Iterator[Row]:
        self.called(context)
        ids = list(self.ids.get())
        yield context.current_key, sum(ids), len(ids)


class Paired(_Watched, KeyedCoProcessFunction[int, Any, Any, Row]):
    """Emits each pair of records of the two streams with the same key."""

    def open(self, context: Any) -> None:
        self.opened(context)
        self.sides = (
            context.get_list_state(ListStateDescriptor("left", int)),
            context.get_map_state(MapStateDescriptor("right", int, int)),
        )

    def process_element1(self, value: Any, context: Any) -> Iterator[Row]:
        self.called(context)
        self.sides[0].add(value.id)
        for other, count in sorted(self.sides[1].items()):
            yield context.current_key, value.id * 10_000 + other, count

    def process_element2(self, value: Any, context: Any) -> Iterator[Row]:
        self.called(context)
        self.sides[1].put(value.id, 1)
        for other in self.sides[0].get():
            yield context.current_key, other * 10_000 + value.id, 1


class Ruled(_Watched, KeyedBroadcastProcessFunction[int, Any, Any, Row]):
    """Pairs each record with each rule, whichever comes first."""

    def open(self, context: Any) -> None:
        self.opened(context)
        self.descriptor = ListStateDescriptor("ids", int)
        self.ids = context.get_list_state(self.descriptor)

    def process_element(self, value: Any, context: Any) -> Iterator[Row]:
        self.observer.on_step(self.place[0])
        self.ids.add(value.id)
        for rule, _ in sorted(context.get_broadcast_state(_RULES).items()):
            yield context.current_key, value.id * 10_000 + rule, 1

    def process_broadcast_element(self, value: Any, context: Any) -> Sequence[Row]:
        self.observer.on_step(self.place[0])
        context.get_broadcast_state(_RULES).put(value.id, 1)
        pairs: list[Row] = []

        def pair(key: int, ids: Any) -> None:
            pairs.extend((key, one * 10_000 + value.id, 1) for one in ids.get())

        context.apply_to_keyed_state(self.descriptor, pair)
        return sorted(pairs)


def build(plan: JobPlan, environment: LocalStreamEnvironment, observer: Observer, sinks: Sequence[Any]) -> None:
    """Write the program of a plan into an environment; its sinks are ``out`` and, for two outputs, ``more``."""
    sources = [environment.from_elements([], SCHEMA, uid=f"source-{index}") for index in range(len(plan.events))]
    _BUILD[plan.shape](sources, observer, sinks)


def expected(plan: JobPlan) -> Sequence[Counter[Row]]:
    """Return the expected output of each sink if every record counts once."""
    return _MODEL[plan.shape](plan)


def _build_chain(sources: Sequence[DataStream], observer: Observer, sinks: Sequence[Any]) -> DataStream:
    numbered = sources[0].key_by("k").process(Numbered(observer), uid="numbered", schema=SCHEMA)
    numbered.sink_to(sinks[0], uid="out")
    return numbered


def _build_long_chain(sources: Sequence[DataStream], observer: Observer, sinks: Sequence[Any]) -> None:
    numbered = sources[0].key_by("k").process(Numbered(observer), uid="numbered", schema=SCHEMA)
    numbered.key_by("n").process(Total(observer), uid="total", schema=SCHEMA).sink_to(sinks[0], uid="out")


def _build_two_sinks(sources: Sequence[DataStream], observer: Observer, sinks: Sequence[Any]) -> None:
    numbered = _build_chain(sources, observer, sinks)
    numbered.key_by("n").process(Total(observer), uid="total", schema=SCHEMA).sink_to(sinks[1], uid="more")


def _build_join(sources: Sequence[DataStream], observer: Observer, sinks: Sequence[Any]) -> None:
    both = sources[0].key_by("k").connect(sources[1].key_by("k"))
    both.process(Paired(observer), uid="paired", schema=SCHEMA).sink_to(sinks[0], uid="out")


def _build_join_after(sources: Sequence[DataStream], observer: Observer, sinks: Sequence[Any]) -> None:
    numbered = sources[0].key_by("k").process(Numbered(observer), uid="numbered", schema=SCHEMA)
    both = numbered.key_by("k").connect(sources[1].key_by("k"))
    both.process(Paired(observer), uid="paired", schema=SCHEMA).sink_to(sinks[0], uid="out")


def _build_broadcast(sources: Sequence[DataStream], observer: Observer, sinks: Sequence[Any]) -> None:
    both = sources[0].key_by("k").connect(sources[1].broadcast(_RULES))
    both.process(Ruled(observer), uid="ruled", schema=SCHEMA).sink_to(sinks[0], uid="out")


def _numbered(events: Sequence[Event]) -> list[Row]:
    """Return the rows that `Numbered` emits for a source, in the order of the events."""
    rows: list[Row] = []
    counts: Counter[int] = Counter()
    timers: dict[int, set[int]] = defaultdict(set)
    watermark_ms = -(1 << 63)
    for event in events:
        if event.key is not None and event.time is not None:
            counts[event.key] += 1
            rows.append((event.key, event.id, counts[event.key]))
            if event.time > watermark_ms:
                timers[event.key].add(_window_end(event.time))
            continue
        watermark_ms = (1 << 63) - 1 if event.time is None else event.time
        for key, times in timers.items():
            rows += [(key, -time_ms, counts[key]) for time_ms in sorted(times) if time_ms <= watermark_ms]
            timers[key] = {time_ms for time_ms in times if time_ms > watermark_ms}
    return rows


def _total(rows: Sequence[Row]) -> Counter[Row]:
    ids: dict[int, list[int]] = defaultdict(list)
    for _, record_id, number in rows:
        ids[number].append(record_id)
    return Counter((key, sum(of_key), len(of_key)) for key, of_key in ids.items())


def _paired(left: Sequence[Row], right: Sequence[Row]) -> Counter[Row]:
    return Counter((key, one * 10_000 + other, 1) for key, one, _ in left for its, other, _ in right if key == its)


def _records(events: Sequence[Event]) -> list[Row]:
    return [(event.key, event.id, 0) for event in events if event.key is not None]


def _model_broadcast(plan: JobPlan) -> Sequence[Counter[Row]]:
    records, rules = _records(plan.events[0]), _records(plan.events[1])
    return [Counter((key, one * 10_000 + rule, 1) for key, one, _ in records for _, rule, _ in rules)]


_BUILD: Final[Mapping[Shape, Callable[[Sequence[DataStream], Observer, Sequence[Any]], object]]] = {
    Shape.CHAIN: _build_chain,
    Shape.LONG_CHAIN: _build_long_chain,
    Shape.TWO_SINKS: _build_two_sinks,
    Shape.JOIN: _build_join,
    Shape.JOIN_AFTER: _build_join_after,
    Shape.BROADCAST: _build_broadcast,
}
_MODEL: Final[Mapping[Shape, Callable[[JobPlan], Sequence[Counter[Row]]]]] = {
    Shape.CHAIN: lambda plan: [Counter(_numbered(plan.events[0]))],
    Shape.LONG_CHAIN: lambda plan: [_total(_numbered(plan.events[0]))],
    Shape.TWO_SINKS: lambda plan: [Counter(_numbered(plan.events[0])), _total(_numbered(plan.events[0]))],
    Shape.JOIN: lambda plan: [_paired(_records(plan.events[0]), _records(plan.events[1]))],
    Shape.JOIN_AFTER: lambda plan: [_paired(_numbered(plan.events[0]), _records(plan.events[1]))],
    Shape.BROADCAST: _model_broadcast,
}


def _window_end(time_ms: int) -> int:
    return time_ms - time_ms % _WIDTH_MS + _WIDTH_MS
