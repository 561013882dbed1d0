"""Inputs without timestamps that block timers, and the warning at the start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
)
from statebackend.local import LocalStreamEnvironment

LOGGER = "statebackend.streaming.runtime.settings"
ROWS = [("a", 1), ("b", 2)]
SCHEMA = "k string, t bigint"
RULES = BroadcastStateDescriptor("rules", str, int)


class Pass(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value


class Timed(Pass):
    def on_timer(self, timestamp: int, context: Any) -> None: ...


class Both(KeyedCoProcessFunction[str, Any, Any, Any]):
    def process_element1(self, value: Any, context: Any) -> None: ...

    def process_element2(self, value: Any, context: Any) -> None: ...


class TimedBoth(Both):
    def on_timer(self, timestamp: int, context: Any) -> None: ...


class TimedRules(KeyedBroadcastProcessFunction[str, Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value

    def process_broadcast_element(self, value: Any, context: Any) -> None: ...

    def on_timer(self, timestamp: int, context: Any) -> None: ...


class Job:
    """An environment with a stream that has timestamps and one without."""

    def __init__(self) -> None:
        self.env = LocalStreamEnvironment()
        strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
        self.timed = self.env.from_elements(ROWS, SCHEMA, uid="timed").assign_timestamps_and_watermarks(strategy)
        self.untimed = self.env.from_elements(ROWS, SCHEMA, uid="untimed")

    def warnings(self, stream: Any, caplog: pytest.LogCaptureFixture) -> list[str]:
        """The warnings of a start."""
        stream.sink_to([])
        with caplog.at_level(logging.WARNING, LOGGER):
            self.env.execute("the job")
        return [one.getMessage() for one in caplog.records if one.name == LOGGER]


def test_a_source_without_timestamps_that_blocks_timers_is_reported_once_with_operator_and_input(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job()
    both = job.timed.connect(job.untimed).key_by("k").process(TimedBoth(), uid="both", schema=SCHEMA)
    [reported] = job.warnings(both, caplog)
    assert reported.startswith(
        "job 'the job': operator 'both', its second input: there are no watermarks from source 'untimed', so no"
    )
    assert "after source 'untimed' too, with .with_idleness(...)" in reported


def test_rules_without_timestamps_and_indirect_inputs_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = Job()
    connected = job.timed.key_by("k").connect(job.untimed.broadcast(RULES))
    ruled = connected.process(TimedRules(), uid="ruled", schema=SCHEMA)
    behind = ruled.key_by("k").process(Timed(), uid="behind", schema=SCHEMA)
    assert [reported.split(":")[1] for reported in job.warnings(behind, caplog)] == [
        " operator 'ruled', its second input",
        " operator 'behind'",
    ]


def test_windows_over_a_union_with_a_source_without_timestamps_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    no_records = job.untimed.flat_map(lambda row: [])
    windows = job.timed.union(no_records).key_by("k").window(TumblingEventTimeWindows.of(10))
    [reported] = job.warnings(windows.count(uid="windows", schema="k string, start bigint, n bigint"), caplog)
    assert reported.startswith("job 'the job': operator 'windows': there are no watermarks from source 'untimed'")


def test_a_source_that_makes_no_watermarks_must_become_idle(caplog: pytest.LogCaptureFixture) -> None:
    for idleness, warnings in ((None, 1), ("1 ms", 0)):
        job, strategy = Job(), WatermarkStrategy.no_watermarks()
        strategy = strategy if idleness is None else strategy.with_idleness(idleness)
        rules = job.untimed.assign_timestamps_and_watermarks(strategy).broadcast(RULES)
        ruled = job.timed.key_by("k").connect(rules).process(TimedRules(), uid="ruled", schema=SCHEMA)
        assert len(job.warnings(ruled, caplog)) == warnings
        caplog.clear()


@pytest.mark.parametrize("case", ["no timers", "no event time", "all have timestamps"])
def test_inputs_that_block_no_timers_are_not_reported(case: str, caplog: pytest.LogCaptureFixture) -> None:
    job = Job()
    if case == "no timers":
        stream = job.timed.connect(job.untimed).key_by("k").process(Both(), uid="both", schema=SCHEMA)
    elif case == "no event time":
        job.timed.sink_to([], uid="other")
        stream = job.untimed.key_by("k").process(Timed(), uid="timers", schema=SCHEMA)
    else:
        job.untimed.sink_to([], uid="other")
        stream = job.timed.key_by("k").process(Timed(), uid="timers", schema=SCHEMA)
    assert job.warnings(stream, caplog) == []


def test_rules_without_a_time_hold_back_no_window_once_they_are_idle() -> None:
    times = iter(range(0, 1000, 10))
    env = LocalStreamEnvironment(epoch_size=1, clock=lambda: next(times))
    rules = env.from_elements([("a",)], "k string", uid="rules")
    rules = rules.assign_timestamps_and_watermarks(WatermarkStrategy.no_watermarks().with_idleness("1 ms"))
    timed: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    elements = env.from_elements([("a", t) for t in (1, 11, 21)], SCHEMA, uid="timed")
    both = elements.assign_timestamps_and_watermarks(timed).key_by("k").connect(rules.broadcast(RULES))
    ruled = both.process(TimedRules(), uid="ruled", schema=SCHEMA)
    counts: list[Any] = []
    windows = ruled.key_by("k").window(TumblingEventTimeWindows.of(10))
    windows.count(uid="windows", schema="k string, start bigint, until bigint, n bigint").sink_to(counts)
    env.execute()
    assert [row.start for row in counts] == [0, 10]
