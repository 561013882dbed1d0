"""Typing of functions with several inputs.

Nothing here is run. Each class shows one thing.
"""

from __future__ import annotations

from collections.abc import Iterable

from statebackend import (
    BroadcastOnTimerContext,
    BroadcastStateDescriptor,
    JoinContext,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedReadOnlyContext,
    OnTimerContext,
    ProcessContext,
    ProcessJoinFunction,
)

RULES: BroadcastStateDescriptor[str, int] = BroadcastStateDescriptor("rules", str, int)


class Both(KeyedCoProcessFunction[str, int, bytes, float]):
    def process_element1(self, value: int, context: ProcessContext[str]) -> Iterable[float]:
        yield value / 2

    def process_element2(self, value: bytes, context: ProcessContext[str]) -> list[float]:
        return [float(value)]

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> None:
        return None


class TheWrongSide(KeyedCoProcessFunction[str, int, bytes, float]):
    def process_element1(self, value: bytes, context: ProcessContext[str]) -> None:  # type: ignore[override]
        return None

    def process_element2(self, value: bytes, context: ProcessContext[str]) -> Iterable[str]:  # type: ignore[override]
        yield "text"


class Limits(KeyedBroadcastProcessFunction[str, int, "tuple[str, int]", int]):
    def process_element(self, value: int, context: KeyedReadOnlyContext[str]) -> Iterable[int]:
        limit = context.get_broadcast_state(RULES).get("limit")
        yield value if limit is None else min(value, limit)
        context.get_broadcast_state(RULES).put("limit", 1)  # type: ignore[attr-defined]

    def process_broadcast_element(self, value: tuple[str, int], context: KeyedBroadcastContext) -> None:
        context.get_broadcast_state(RULES).put(*value)

    def on_timer(self, timestamp: int, context: BroadcastOnTimerContext[str]) -> Iterable[int]:
        yield len(list(context.get_broadcast_state(RULES).items()))


class Near(ProcessJoinFunction[str, int, float, "tuple[int, int]"]):
    def process_element(self, left: int, right: float, context: JoinContext[str]) -> Iterable[tuple[int, int]]:
        yield left + int(right), context.right_timestamp - context.left_timestamp
