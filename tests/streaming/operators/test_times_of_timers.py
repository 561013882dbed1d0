"""The times of timers: milliseconds, datetimes with a zone, and delays; and the times of windows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from statebackend import (
    KeyedProcessFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    UserFunctionError,
)
from statebackend.testing.jobs import HarnessJob, JobTestHarness
from typeserializers import TimeWindow

SECOND = datetime(1970, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
INDIA = timezone(timedelta(hours=5, minutes=30))


class Sets(KeyedProcessFunction[str, Any, Any]):
    """Sets the timer of ``time``, or deletes the one of ``deleted``."""

    def __init__(self, register: Callable[[Any], Any]) -> None:
        self.register = register

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.register(context.timer_service)
        yield "registered", 0

    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        yield context.time_domain.value, timestamp


def rejected(build: Callable[[HarnessJob], None], message: str, timestamp_ms: int | None = 0) -> None:
    """Check that a record fails the job with this message."""
    with JobTestHarness(build) as harness, pytest.raises(UserFunctionError, match=message):
        harness.source("in").send(("a",), timestamp_ms=timestamp_ms)


def job_of(register: Callable[[Any], Any]) -> Callable[[HarnessJob], None]:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", "k string").key_by("k")
        job.output("out", stream.process(Sets(register), uid="op", schema="what string, time bigint"))

    return build


def harness_of(register: Callable[[Any], Any]) -> JobTestHarness:
    return JobTestHarness(job_of(register))


def taken(harness: JobTestHarness) -> list[Any]:
    return [tuple(row) for row in harness.taken_records("out")]


TIMES = [
    1000,
    SECOND,
    SECOND.astimezone(INDIA),
    SECOND - timedelta(microseconds=1),
    SECOND - timedelta(microseconds=999),
]


@pytest.mark.parametrize("time", TIMES)
def test_a_timer_takes_milliseconds_and_datetimes_with_a_zone(time: Any) -> None:
    with harness_of(lambda timers: timers.register_event_time_timer(time)) as harness:
        harness.source("in").send(("a",), timestamp_ms=0)
        harness.source("in").watermark(999)
        assert taken(harness) == [("registered", 0)]
        harness.source("in").watermark(1000)
        assert taken(harness) == [("event time", 1000)]
    with harness_of(lambda timers: timers.register_processing_time_timer(time)) as harness:
        harness.source("in").send(("a",))
        harness.advance_processing_time(999)
        assert taken(harness) == [("registered", 0)]
        harness.advance_processing_time(1000)
        assert taken(harness) == [("processing time", 1000)]


@pytest.mark.parametrize("time", TIMES)
def test_a_timer_is_deleted_with_the_same_forms_of_time(time: Any) -> None:
    def set_and_delete(timers: Any) -> None:
        timers.register_event_time_timer(1000)
        timers.register_processing_time_timer(1000)
        timers.delete_event_time_timer(time)
        timers.delete_processing_time_timer(time)

    with harness_of(set_and_delete) as harness:
        harness.source("in").send(("a",), timestamp_ms=0)
        harness.source("in").watermark(2000)
        harness.advance_processing_time(2000)
        assert taken(harness) == [("registered", 0)]


@pytest.mark.parametrize("delay", ["1.5 seconds", timedelta(seconds=1.5)])
def test_a_delay_counts_from_the_record_in_event_time_and_from_now_in_processing_time(delay: Any) -> None:
    with harness_of(lambda timers: timers.register_event_time_timer(delay)) as harness:
        harness.source("in").send(("a",), timestamp_ms=200)
        harness.source("in").watermark(1700)
        assert taken(harness) == [("registered", 0), ("event time", 1700)]
    with harness_of(lambda timers: timers.register_processing_time_timer(delay)) as harness:
        harness.advance_processing_time(500)
        harness.source("in").send(("a",), timestamp_ms=200)
        harness.advance_processing_time(2000)
        assert taken(harness) == [("registered", 0), ("processing time", 2000)]


class Again(Sets):
    def on_timer(self, timestamp: int, context: Any) -> Iterator[Any]:
        if timestamp < 3000:
            context.timer_service.register_event_time_timer("1 second")
            yield "again", timestamp


def test_a_delay_in_on_timer_counts_from_the_timer() -> None:
    def build(job: HarnessJob) -> None:
        function = Again(lambda timers: timers.register_event_time_timer(1000))
        stream = job.source("in", "k string").key_by("k")
        job.output("out", stream.process(function, uid="op", schema="what string, time bigint"))

    with JobTestHarness(build) as harness:
        harness.source("in").send(("a",), timestamp_ms=0)
        harness.source("in").watermark(2500)
        harness.source("in").end()
        assert taken(harness) == [("registered", 0), ("again", 1000), ("again", 2000)]


@pytest.mark.parametrize(
    ("time", "message"),
    [
        (
            True,
            "a timer cannot write this value: True is not a time; pass milliseconds since 1970 or a datetime with a",
        ),
        (1.0, "1.0 is not a time"),
        (None, "None is not a time"),
        (datetime(1970, 1, 2), "has no time zone; pass a datetime with one"),
        ("1 month", "months and years differ in length"),
        ("-1 second", "it must be at least 0 ms"),
        (1 << 63, "9223372036854775808"),
    ],
)
@pytest.mark.parametrize("method", ["register_event_time_timer", "register_processing_time_timer"])
def test_other_forms_of_time_are_rejected(method: str, time: Any, message: str) -> None:
    rejected(job_of(lambda timers: getattr(timers, method)(time)), message)


@pytest.mark.parametrize("time", [True, datetime(1970, 1, 2), "1 second", timedelta(seconds=1)])
def test_a_timer_is_not_deleted_with_other_forms_of_time(time: Any) -> None:
    for method in ("delete_event_time_timer", "delete_processing_time_timer"):
        rejected(
            job_of(operator.methodcaller(method, time)), "no time zone" if type(time) is datetime else "is not a time"
        )


def test_a_delay_of_event_time_needs_a_timestamp() -> None:
    message = "the delay '1 second' starts at a timestamp, and this call has none"
    rejected(job_of(lambda timers: timers.register_event_time_timer("1 second")), message, None)


class At(Trigger[Any, TimeWindow]):
    """Fires at a time."""

    def __init__(self, time: Any) -> None:
        self.time = time

    def on_element(self, element: Any, timestamp_ms: Any, window: Any, context: Any) -> TriggerResult:
        context.register_event_time_timer(self.time)
        return TriggerResult.CONTINUE

    def on_event_time(self, timestamp_ms: int, window: Any, context: Any) -> TriggerResult:
        return TriggerResult.FIRE if timestamp_ms == 500 else TriggerResult.CONTINUE

    def on_processing_time(self, timestamp_ms: int, window: Any, context: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def clear(self, window: Any, context: Any) -> None:
        context.delete_event_time_timer(self.time)


class Times(ProcessWindowFunction[str, Any, Any, TimeWindow]):
    def process(self, key: str, context: Any, elements: list[Any]) -> Iterator[Any]:
        yield context.window.start_time, context.window.end_time


def windows(assigner: Any, trigger: Any = None) -> Callable[[HarnessJob], None]:
    def build(job: HarnessJob) -> None:
        stream = job.source("in", "k string").key_by("k").window(assigner)
        stream = stream if trigger is None else stream.trigger(trigger)
        job.output("out", stream.process(Times(), uid="op", schema="start timestamp, end timestamp"))

    return build


def test_a_trigger_accepts_datetimes_too() -> None:
    half = SECOND - timedelta(milliseconds=500)
    with JobTestHarness(windows(TumblingEventTimeWindows.of("1 second"), At(half))) as harness:
        harness.source("in").send(("a",), timestamp_ms=0)
        harness.source("in").watermark(500)
        assert taken(harness) == [(SECOND - timedelta(seconds=1), SECOND)]
    rejected(windows(TumblingEventTimeWindows.of("1 second"), At(datetime(1970, 1, 2))), "has no time zone")


def test_a_window_has_its_times_in_utc() -> None:
    with JobTestHarness(windows(SlidingEventTimeWindows.of(timedelta(seconds=2), "1 second"))) as harness:
        harness.source("in").send(("a",), timestamp_ms=500)
        harness.source("in").end()
        assert taken(harness) == [(SECOND - timedelta(seconds=n), SECOND + timedelta(seconds=2 - n)) for n in (2, 1)]
    assert TimeWindow(-1, 0).start_time == datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=timezone.utc)
    with pytest.raises(OverflowError):
        _ = TimeWindow(0, (1 << 63) - 1).end_time
