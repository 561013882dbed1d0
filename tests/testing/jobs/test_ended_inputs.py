"""Inputs that end while some are idle: time waits for all inputs, and the end of an idle one activates nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from statebackend import KeyedCoProcessFunction, KeyedProcessFunction, TumblingEventTimeWindows
from statebackend.testing.jobs import Emitted, EmittedStatus, EmittedWatermark, JobTestHarness

SCHEMA = "k string, v bigint"
END = 2**63 - 1


class Seen(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield value["k"], value["v"]


class SeenOfTwo(KeyedCoProcessFunction[Any, Any, Any, Any]):
    def process_element1(self, value: Any, context: Any) -> Iterator[Any]:
        yield value["k"], value["v"]

    process_element2 = process_element1


class Timers(KeyedProcessFunction[Any, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        context.timer_service.register_event_time_timer(value["v"])
        return iter(())

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield context.current_key, timestamp


def union(job: Any) -> None:
    streams = [job.source(name, SCHEMA) for name in "ab"]
    seen = streams[0].union(streams[1]).key_by("k").process(Seen(), uid="seen", schema=SCHEMA)
    job.output("out", seen)


def two_inputs(job: Any) -> None:
    a, b = (job.source(name, SCHEMA) for name in "ab")
    job.output("out", a.connect(b).key_by("k", "k").process(SeenOfTwo(), uid="seen", schema=SCHEMA))


def two_inputs_of_operators(job: Any) -> None:
    a, b = (job.source(n, SCHEMA).key_by("k").process(Seen(), uid=f"{n}1", schema=SCHEMA) for n in "ab")
    job.output("out", a.connect(b).key_by("k", "k").process(SeenOfTwo(), uid="seen", schema=SCHEMA))


def window_join(job: Any) -> None:
    a, b = (job.source(name, SCHEMA) for name in "ab")
    windows = a.join(b).where("k").equal_to("k").window(TumblingEventTimeWindows.of(10))
    joined = windows.apply(lambda x, y: (x["k"], x["v"], y["v"]), uid="joined", schema="k string, x bigint, y bigint")
    job.output("out", joined)


def three_inputs(job: Any) -> None:
    a, b, c = (job.source(name, SCHEMA) for name in "abc")
    both = a.union(b).key_by("k").process(Seen(), uid="seen", schema=SCHEMA)
    job.output("out", both.connect(c).key_by("k", "k").process(SeenOfTwo(), uid="last", schema=SCHEMA))


def two_inputs_of_timers(job: Any) -> None:
    a, b = (job.source(n, SCHEMA).key_by("k").process(Timers(), uid=f"{n}1", schema=SCHEMA) for n in "ab")
    job.output("out", a.union(b).key_by("k").process(Timers(), uid="last", schema=SCHEMA))


JOBS = pytest.mark.parametrize("build", [union, two_inputs, two_inputs_of_operators])
ORDERS = pytest.mark.parametrize(("ended", "idle"), ["ab", "ba"])


def described(harness: JobTestHarness) -> list[Any]:
    """Watermarks as numbers, statuses by name, and record values."""
    texts = {EmittedWatermark: lambda one: one.timestamp_ms, EmittedStatus: lambda one: one.status.value}
    return [tuple(one.record) if isinstance(one, Emitted) else texts[type(one)](one) for one in harness.taken()]


def watermarks(harness: JobTestHarness) -> list[int]:
    return [one.timestamp_ms for one in harness.taken() if isinstance(one, EmittedWatermark)]


@JOBS
@ORDERS
@pytest.mark.parametrize("is_idle_first", [True, False])
def test_time_does_not_end_while_an_input_is_idle(
    build: Callable[[Any], None], ended: str, idle: str, is_idle_first: bool
) -> None:
    with JobTestHarness(build) as harness:
        first, second = harness.source(ended), harness.source(idle)
        first.watermark(20)
        second.watermark(10)
        assert watermarks(harness) == [10]
        steps = [second.idle, first.end] if is_idle_first else [first.end, second.idle]
        for step in steps:
            step()
        assert END not in watermarks(harness)
        second.active()
        second.watermark(30)
        assert watermarks(harness) == [30]
        second.end()
        assert watermarks(harness) == [END]


@JOBS
@ORDERS
def test_time_ends_with_the_last_input_even_if_it_is_idle(build: Callable[[Any], None], ended: str, idle: str) -> None:
    with JobTestHarness(build) as harness:
        harness.source(idle).idle()
        harness.source(ended).end()
        harness.source(idle).end()
        assert watermarks(harness) == [END]


@JOBS
@ORDERS
@pytest.mark.parametrize("parallelism", [1, 2])
def test_an_input_that_ends_while_idle_counts_as_ended_and_makes_nothing_active(
    build: Callable[[Any], None], ended: str, idle: str, parallelism: int
) -> None:
    with JobTestHarness(build, parallelism=parallelism) as harness:
        first, second = harness.source(ended), harness.source(idle)
        first.watermark(20)
        second.watermark(10)
        second.idle()
        assert described(harness) == [10, 20]
        second.end()
        assert described(harness) == []
        first.watermark(30)
        assert described(harness) == [30]
        first.end()
        assert described(harness) == [END]


@JOBS
@ORDERS
@pytest.mark.parametrize("parallelism", [1, 2])
def test_inputs_that_all_end_while_idle_do_not_advance_time(
    build: Callable[[Any], None], ended: str, idle: str, parallelism: int
) -> None:
    with JobTestHarness(build, parallelism=parallelism) as harness:
        first, second = harness.source(ended), harness.source(idle)
        first.watermark(20)
        second.watermark(10)
        for step in (second.idle, second.end, first.idle, first.end):
            step()
        assert described(harness) == [10, 20, "idle"]


@JOBS
@ORDERS
def test_the_last_end_is_the_end_of_time_even_if_all_others_were_idle(
    build: Callable[[Any], None], ended: str, idle: str
) -> None:
    with JobTestHarness(build) as harness:
        first, second = harness.source(ended), harness.source(idle)
        first.end()
        second.idle()
        assert described(harness) == ["idle"]
        second.end()
        assert described(harness) == ["active", END]


def test_an_operator_that_ends_while_idle_counts_as_ended_for_its_readers() -> None:
    with JobTestHarness(two_inputs_of_timers) as harness:
        a, b = map(harness.source, "ab")
        for source in (a, b):
            source.send(("x", 5), timestamp_ms=1)
        a.idle()
        a.end()
        assert described(harness) == []
        b.end()
        # As in Flink, the timer of the input that ended while idle never fires.
        assert described(harness) == [("x", 5), END]


@ORDERS
def test_a_join_keeps_its_windows_for_an_idle_input(ended: str, idle: str) -> None:
    with JobTestHarness(window_join) as harness:
        harness.source(ended).send(("x", 1), timestamp_ms=5)
        harness.source(ended).end()
        harness.source(idle).idle()
        harness.source(idle).active()
        harness.source(idle).send(("x", 2), timestamp_ms=7)
        harness.source(idle).end()
        pair = (1, 2) if ended == "a" else (2, 1)
        assert [tuple(row) for row in harness.taken_records("out")] == [("x", *pair)]


def test_an_operator_that_waits_for_idle_inputs_only_is_idle() -> None:
    with JobTestHarness(three_inputs) as harness:
        a, b, c = map(harness.source, "abc")
        for source in (a, b, c):
            source.watermark(10)
        a.end()
        b.idle()
        c.watermark(50)
        assert watermarks(harness) == [10, 50]
        b.active()
        b.watermark(60)
        c.watermark(70)
        assert watermarks(harness) == [60]


@JOBS
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_restored_job_continues_with_one_ended_and_one_idle_input(
    build: Callable[[Any], None], parallelism: int, tmp_path: Path
) -> None:
    with JobTestHarness(build, parallelism=2) as harness:
        a, b = map(harness.source, "ab")
        a.watermark(20)
        b.watermark(10)
        a.end()
        b.idle()
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(build, parallelism=parallelism, from_snapshot=snapshot) as harness:
        a, b = map(harness.source, "ab")
        a.end()
        assert END not in watermarks(harness)
        b.active()
        b.watermark(30)
        assert watermarks(harness) == [30]
        b.end()
        assert watermarks(harness) == [END]


@JOBS
def test_a_restored_job_reads_more_of_an_ended_input(build: Callable[[Any], None], tmp_path: Path) -> None:
    with JobTestHarness(build) as harness:
        a, b = map(harness.source, "ab")
        a.watermark(20)
        b.watermark(10)
        a.end()
        b.idle()
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(build, from_snapshot=snapshot) as harness:
        a, b = map(harness.source, "ab")
        b.active()
        b.watermark(30)
        a.watermark(40)
        assert watermarks(harness) == [30]
        a.watermark(50)
        b.watermark(60)
        assert watermarks(harness) == [50]


@JOBS
def test_a_restored_job_reads_more_of_an_input_that_ended_while_idle(
    build: Callable[[Any], None], tmp_path: Path
) -> None:
    with JobTestHarness(build) as harness:
        a, b = map(harness.source, "ab")
        a.watermark(10)
        b.watermark(10)
        a.idle()
        a.end()
        snapshot = harness.snapshot(tmp_path / "snapshot")
    with JobTestHarness(build, from_snapshot=snapshot) as harness:
        a, b = map(harness.source, "ab")
        a.active()
        a.watermark(20)
        b.end()
        assert watermarks(harness) == [20]
        a.end()
        assert watermarks(harness) == [END]
