"""Output of an operator before a failure is emitted in order, for any function; as in Flink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from statebackend import (
    BroadcastProcessFunction,
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessJoinFunction,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    UserFunctionError,
)
from statebackend.streaming.data_stream import DataStream, ProcessedStream
from statebackend.testing.jobs import Emitted, HarnessJob, JobTestHarness, ScriptedSource

SIDE = OutputTag("side", "row string")
RULES = BroadcastStateDescriptor("rules", str, int)
SCHEMA = "row string"


def rows_then_failure(context: Any) -> Iterable[Any]:
    yield ("first",)
    context.output(SIDE, ("second",))
    yield ("third",)
    raise ArithmeticError("broken")


class One(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)


class Two(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, value: Any, context: Any) -> None: ...

    def process_element2(self, value: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)


class Keyed(KeyedBroadcastProcessFunction[Any, Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)

    def process_broadcast_element(self, value: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)


class Keyless(BroadcastProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)

    def process_broadcast_element(self, value: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)


class Pair(ProcessJoinFunction[Any, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: Any) -> Iterable[Any]:
        return rows_then_failure(context)


class Window(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: Any) -> Iterable[Any]:
        return rows_then_failure(context)


Build = Callable[[DataStream, DataStream], ProcessedStream]
Play = Callable[[ScriptedSource, ScriptedSource], None]


def windowed(first: DataStream) -> Any:
    return first.key_by("k").window(TumblingEventTimeWindows.of(10)).allowed_lateness(10)


def sent_late(first: ScriptedSource, second: ScriptedSource) -> None:
    """A closed window fires with each new record."""
    first.watermark(10)
    second.watermark(10)
    first.send(("a",), 5)


def passed(first: ScriptedSource, second: ScriptedSource) -> None:
    first.send(("a",), 5)
    second.watermark(10)
    first.watermark(10)


def joined(first: ScriptedSource, second: ScriptedSource) -> None:
    first.send(("a",), 5)
    second.send(("a",), 5)


CASES: dict[str, tuple[Build, Play]] = {
    "one input": (
        lambda first, second: first.key_by("k").process(One(), uid="u", schema=SCHEMA),
        lambda first, second: first.send(("a",), 5),
    ),
    "two inputs": (
        lambda first, second: first.connect(second).key_by("k").process(Two(), uid="u", schema=SCHEMA),
        lambda first, second: second.send(("a",), 5),
    ),
    "keyed, a record": (
        lambda first, second: (
            first.key_by("k").connect(second.broadcast(RULES)).process(Keyed(), uid="u", schema=SCHEMA)
        ),
        lambda first, second: first.send(("a",), 5),
    ),
    "keyed, a broadcast one": (
        lambda first, second: (
            first.key_by("k").connect(second.broadcast(RULES)).process(Keyed(), uid="u", schema=SCHEMA)
        ),
        lambda first, second: second.send(("a",), 5),
    ),
    "without keys": (
        lambda first, second: first.connect(second.broadcast(RULES)).process(Keyless(), uid="u", schema=SCHEMA),
        lambda first, second: first.send(("a",), 5),
    ),
    "interval join": (
        lambda first, second: (
            first.key_by("k").interval_join(second.key_by("k")).between(0, 1).process(Pair(), uid="u", schema=SCHEMA)
        ),
        joined,
    ),
    "window, at a record": (
        lambda first, second: windowed(first).process(Window(), uid="u", schema=SCHEMA),
        sent_late,
    ),
    "window, at a timer": (
        lambda first, second: windowed(first).process(Window(), uid="u", schema=SCHEMA),
        passed,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_output_before_a_failure_is_emitted_in_order(case: str) -> None:
    build, play = CASES[case]

    def job(job: HarnessJob) -> None:
        first, second = job.source("first", "k string"), job.source("second", "k string")
        made = build(first, second)
        job.output("main", made)
        job.output("side", made.get_side_output(SIDE))
        job.output("unused", second)

    with JobTestHarness(job) as harness:
        with pytest.raises(UserFunctionError, match="ArithmeticError: broken"):
            play(harness.source("first"), harness.source("second"))
        came_out = [one.record.row for one in harness.taken() if isinstance(one, Emitted) and one.output != "unused"]
        assert came_out == ["first", "second", "third"]
