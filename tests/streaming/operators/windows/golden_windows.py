"""The operators of the golden window traces, as described in their README."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import frozen

from statebackend import ReducingStateDescriptor, ValueStateDescriptor
from statebackend.state.states import AggregateFunction
from statebackend.streaming.data_stream import DataStream, KeyedStream, ProcessedStream
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from statebackend.streaming.windows.evictors import CountEvictor, DeltaEvictor, Evictor, TimeEvictor
from statebackend.streaming.windows.triggers import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from statebackend.streaming.windows.window_functions import ProcessWindowFunction, WindowContext, WindowRuntimeContext
from tests.streaming.operators.golden_traces import ROW_TYPE, row_of
from typeserializers.opaque import PickleSerializer
from typeserializers.times.timers import GLOBAL_WINDOW

ELEMENT = "key string, values array<bigint>"
"""A record of the traces. After a first stage, ``values`` are the folded values."""


class Element(NamedTuple):
    """A folded element, as a row of `ELEMENT`."""

    key: str
    values: list[int]


AGGREGATED = "count bigint, sum bigint, values array<bigint>"


def concatenated(left: Element, right: Element) -> Element:
    return Element(left.key, values_of(left) + values_of(right))


class Concatenate(AggregateFunction[Any, "list[int]", Any]):
    def create_accumulator(self) -> list[int]:
        return []

    def add(self, value: Any, accumulator: list[int]) -> list[int]:
        return [*accumulator, *values_of(value)]

    def get_result(self, accumulator: list[int]) -> Any:
        return {"count": len(accumulator), "sum": sum(accumulator), "values": accumulator}

    def merge(self, left: list[int], right: list[int]) -> list[int]:
        return left + right


FIRES = ValueStateDescriptor("fires", int)
GLOBAL_FIRES = ValueStateDescriptor("gfires", int)


class ShowWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    """Emits the content of a window, and counts its firings if configured."""

    def __init__(self, has_state: bool, clear_tag: OutputTag[Any] | None) -> None:
        self.has_state = has_state
        self.clear_tag = clear_tag

    def open(self, context: WindowRuntimeContext) -> None:
        if self.has_state:
            context.window_state.get_state(FIRES)
            context.get_state(GLOBAL_FIRES)

    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any]:
        shown = {
            "key": key,
            "window": shown_window(context.window),
            "values": [value for element in elements for value in values_of(element)],
            "wm": context.current_watermark(),
        }
        if self.has_state:
            for name, store, descriptor in (
                ("fires", context.window_state(), FIRES),
                ("gfires", context.global_state(), GLOBAL_FIRES),
            ):
                state = store.get_state(descriptor)
                state.update((state.value() or 0) + 1)
                shown[name] = state.value()
        yield row_of(shown)

    def clear(self, context: WindowContext[Any]) -> None:
        shown: dict[str, Any] = {"window": shown_window(context.window), "wm": context.current_watermark()}
        if self.has_state:
            state = context.window_state().get_state(FIRES)
            shown["fires"] = state.value()
            state.clear()
        if self.clear_tag is not None:
            context.output(self.clear_tag, row_of(shown))


def shown_window(window: Any) -> Any:
    return "global" if window is GLOBAL_WINDOW else [window.start, window.end]


def values_of(element: Any) -> list[int]:
    """The values of a record, of a folded element, or of a result of `Concatenate`."""
    values: list[int] = element.values if isinstance(element, Element) else element["values"]
    return values


EARLY_COUNT = ReducingStateDescriptor("early", lambda left, right: left + right, int)


@frozen
class EarlyCount(Trigger[Any, Any]):
    n: int

    @property
    def state_descriptors(self) -> Sequence[Any]:
        return (EARLY_COUNT,)

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= context.current_watermark():
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp)
        count = context.get_partitioned_state(EARLY_COUNT)
        count.add(1)
        if count.get() < self.n:
            return TriggerResult.CONTINUE
        count.clear()
        return TriggerResult.FIRE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE if timestamp_ms == window.max_timestamp else TriggerResult.CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.get_partitioned_state(EARLY_COUNT).clear()
        context.delete_event_time_timer(window.max_timestamp)


@frozen
class EarlyAt(Trigger[Any, Any]):
    offset: int

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> TriggerResult:
        if window.max_timestamp <= context.current_watermark():
            return TriggerResult.FIRE
        context.register_event_time_timer(window.max_timestamp)
        if window.start + self.offset > context.current_watermark():
            context.register_event_time_timer(window.start + self.offset)
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        is_due = timestamp_ms in (window.max_timestamp, window.start + self.offset)
        return TriggerResult.FIRE if is_due else TriggerResult.CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: TriggerContext) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window: Any, context: TriggerContext) -> None:
        for time in (window.max_timestamp, window.start + self.offset):
            if time > context.current_watermark():
                context.register_event_time_timer(time)

    def clear(self, window: Any, context: TriggerContext) -> None:
        context.delete_event_time_timer(window.max_timestamp)
        context.delete_event_time_timer(window.start + self.offset)


def value_of(element: Any) -> int:
    """The value of a record; the sum after a first stage."""
    return sum(values_of(element))


ASSIGNERS: Mapping[str, Callable[[Mapping[str, Any]], WindowAssigner[Any]]] = {
    "tumbling": lambda given: TumblingEventTimeWindows.of(given["size"], given["offset"]),
    "sliding": lambda given: SlidingEventTimeWindows.of(given["size"], given["slide"], given["offset"]),
    "session": lambda given: EventTimeSessionWindows.with_gap(given["gap"]),
    "session_dynamic": lambda given: EventTimeSessionWindows.with_dynamic_gap(value_of),
    "global": lambda given: GlobalWindows.create(),
}

TRIGGERS: Mapping[str, Callable[[Mapping[str, Any]], Trigger[Any, Any]]] = {
    "event_time": lambda given: EventTimeTrigger(),
    "count": lambda given: CountTrigger.of(given["n"]),
    "continuous": lambda given: ContinuousEventTimeTrigger.of(given["interval"]),
    "delta": lambda given: DeltaTrigger.of(
        given["threshold"], lambda last, new: value_of(new) - value_of(last), PickleSerializer(object)
    ),
    "purging": lambda given: PurgingTrigger.of(trigger_of(given["of"])),
    "early_count": lambda given: EarlyCount(given["n"]),
    "early_at": lambda given: EarlyAt(given["offset"]),
}

EVICTORS: Mapping[str, Callable[[Mapping[str, Any]], Evictor[Any, Any]]] = {
    "count": lambda given: CountEvictor.of(given["n"], given.get("after", False)),
    "time": lambda given: TimeEvictor.of(given["size"], given.get("after", False)),
    "delta": lambda given: DeltaEvictor.of(
        given["threshold"], lambda element, last: value_of(last) - value_of(element), given.get("after", False)
    ),
}


def trigger_of(given: Mapping[str, Any]) -> Trigger[Any, Any]:
    return TRIGGERS[given["type"]](given)


def join_of(first: DataStream, second: DataStream, given: Mapping[str, Any], uid: str) -> ProcessedStream:
    """A join or a co-group of a trace."""
    joined = first.join(second) if given["type"] == "window_join" else first.co_group(second)
    pair = joined.where("key").equal_to("key").window(ASSIGNERS[given["assigner"]["type"]](given["assigner"]))
    function = pair_of if given["type"] == "window_join" else group_of
    return pair.allowed_lateness(given.get("allowedLateness", 0)).apply(function, uid=uid, schema=ROW_TYPE)


def pair_of(left: Any, right: Any) -> Any:
    return row_of({"key": left.key, "left": left["values"][0], "right": right["values"][0]})


def group_of(lefts: list[Any], rights: list[Any]) -> Any:
    sides = {"left": [one["values"][0] for one in lefts], "right": [one["values"][0] for one in rights]}
    return [row_of(sides)]


def windows_of(keyed: KeyedStream, given: Mapping[str, Any], uid: str) -> ProcessedStream:
    """The windows of a trace."""
    stream = keyed.window(ASSIGNERS[given["assigner"]["type"]](given["assigner"]))
    if "trigger" in given:
        stream = stream.trigger(trigger_of(given["trigger"]))
    if "evictor" in given:
        stream = stream.evictor(EVICTORS[given["evictor"]["type"]](given["evictor"]))
    if "allowedLateness" in given:
        stream = stream.allowed_lateness(given["allowedLateness"])
    if "lateTag" in given:
        stream = stream.side_output_late_data(OutputTag(given["lateTag"], ELEMENT))
    function = given["function"]
    kind, _, second = function["type"].partition("_")
    clear = OutputTag[Any](function["clearSide"], ROW_TYPE) if "clearSide" in function else None
    show = ShowWindow(function.get("windowState", False), clear)
    if kind == "process":
        return stream.process(show, uid=uid, schema=ROW_TYPE)
    after = show if second else None
    if kind == "reduce":
        return stream.reduce(concatenated, after, uid=uid, schema=ROW_TYPE if second else ELEMENT)
    return stream.aggregate(Concatenate(), after, uid=uid, schema=ROW_TYPE if second else AGGREGATED)
