"""A job whose operators have several timed inputs, for both environments: timers, rules, count windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from statebackend import (
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WatermarkStrategy,
)
from statebackend.streaming.data_stream import DataStream
from typeserializers import TypeSerializer

SCHEMA = "k string, t bigint, v bigint"
NAMES = ("left", "right", "rules")
MET = "k string, what string"
COUNTED = "k string, start bigint, `end` bigint, n bigint"
RULES = BroadcastStateDescriptor("rules", str, int)
BOUND = 5


class Meet(KeyedCoProcessFunction[str, Any, Any, Any]):
    """Stores the last value of a key from either side, and emits it ten milliseconds of event time later."""

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        self.serializer = serializer

    def open(self, context: Any) -> None:
        self.last = context.get_state(ValueStateDescriptor("last", self.serializer))

    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        return self._met("left", value, context)

    def process_element2(self, value: Any, context: Any) -> Iterator[Any]:
        return self._met("right", value, context)

    def _met(self, side: str, value: Any, context: Any) -> Iterator[Any]:
        yield value.k, f"{side} {value.v} behind {self.last.value()}"
        self.last.update(type(self.serializer.create_instance())(value.v))
        context.timer_service.register_event_time_timer(value.t + 10)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield context.current_key, f"last {self.last.value()} at {timestamp}"


class Rule(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    """Emits the rules that hold for each record, and emits them again seven milliseconds later."""

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        context.timer_service.register_event_time_timer(value.t + 7)
        yield value.k, f"{value.v} by {shown(context)}"

    def process_broadcast_element(self, value: Any, context: Any) -> None:
        context.get_broadcast_state(RULES).put(value.k, value.v)

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield context.current_key, f"at {timestamp} by {shown(context)}"


def shown(context: Any) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(context.get_broadcast_state(RULES).items()))


def build(streams: Mapping[str, DataStream], sinks: Mapping[str, Any], serializer: TypeSerializer[Any]) -> None:
    """Build the job over three streams of `SCHEMA`. ``met``, ``ruled`` and ``counted`` are the sinks of its outputs."""
    timed = {
        name: stream.assign_timestamps_and_watermarks(
            WatermarkStrategy.for_bounded_out_of_orderness(BOUND).with_timestamps("t")
        )
        for name, stream in streams.items()
    }
    left, right = (timed[name].key_by("k") for name in ("left", "right"))
    met = left.connect(right).process(
        Meet(serializer), uid="met", schema=MET, first_order_by=["t", "v"], second_order_by=["t", "v"]
    )
    ruled = left.connect(timed["rules"].broadcast(RULES, order_by=["t", "v"])).process(
        Rule(), uid="ruled", schema=MET, order_by=["t", "v"]
    )
    counted = timed["left"].key_by("k").window(TumblingEventTimeWindows.of(10)).count(uid="counted", schema=COUNTED)
    for name, stream in (("met", met), ("ruled", ruled), ("counted", counted)):
        stream.sink_to(sinks[name], uid=name)
