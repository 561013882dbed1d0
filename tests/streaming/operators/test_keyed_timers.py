"""Timers of functions over keyed streams: on one operator over each backend, and in jobs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    JobDefinitionError,
    JobRestoreError,
    KeyedProcessFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    ProcessWindowFunction,
    TimeDomain,
    TumblingEventTimeWindows,
    UserFunctionError,
    WatermarkStrategy,
    WindowContext,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.operators.keyed_process import KeyedProcessOperator
from statebackend.streaming.operators.keyed_timers import KeyedTimers
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.runtime.state_registration import registered_states
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness
from typeserializers import StringSerializer
from typeserializers.scalars.void import VoidNamespaceSerializer

BACKENDS = pytest.mark.parametrize(
    "state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"]
)


def opened(
    directory: Path, state_backend: Any, function: KeyedProcessFunction[Any, Any, Any], *restore: Any, side: Any = ()
) -> OperatorTestHarness:
    operator = KeyedProcessOperator(function, "operator")
    return OperatorTestHarness(BackendHarness(str(directory)), state_backend, operator, *restore, side_outputs=side)


SIDE = OutputTag[Any]("side")


class Remind(KeyedProcessFunction[str, Any, Any]):
    """A processing-time timer and an event-time timer for each record."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> None:
        context.timer_service.register_processing_time_timer(value)
        context.timer_service.register_event_time_timer(value)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        assert timestamp == context.timestamp
        context.output(SIDE, "before")
        yield context.time_domain, context.current_key, timestamp, context.epoch_id
        context.output(SIDE, "after")


@BACKENDS
def test_rows_of_event_time_timers_have_the_timer_time_and_others_none(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, state_backend, Remind(), side=[SIDE])
    run.records(("a", 10, None), ("b", 5, None))
    run.watermark(7)
    run.processing_time(10)
    run.operator.prepare_snapshot()
    fired = (
        (TimeDomain.EVENT_TIME, "b", 5, 5),
        (TimeDomain.PROCESSING_TIME, "b", 5, None),
        (TimeDomain.PROCESSING_TIME, "a", 10, None),
    )
    expected: list[Any] = []
    for domain, key, time, timestamp in fired:
        expected += [(SIDE, "before", timestamp), (None, (domain, key, time, 1), timestamp), (SIDE, "after", timestamp)]
    assert [(one.tag, one.row, one.timestamp_ms) for one in run.emitted] == expected


@BACKENDS
def test_timers_are_in_the_snapshot(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path / "first", state_backend, Remind())
    run.records(("a", 10, None), ("b", 5, None))
    run.watermark(7)
    handle = run.snapshot()
    restored = OperatorTestHarness(run.harness, state_backend, KeyedProcessOperator(Remind(), "operator"), handle)
    restored.watermark(20)
    restored.processing_time(6)
    restored.operator.prepare_snapshot()
    assert [row[:3] for row in restored.rows()] == [
        (TimeDomain.EVENT_TIME, "a", 10),
        (TimeDomain.PROCESSING_TIME, "b", 5),
    ]


class Failing(Remind):
    def __init__(self, result: Any) -> None:
        self.result = result

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Any:
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


@pytest.mark.parametrize(
    ("result", "reported"),
    [
        (ArithmeticError("boom"), "on_timer raised ArithmeticError: boom"),
        ("record", "on_timer returned 'record', which is one record"),
        (5, "on_timer returned 5, which is not an iterable"),
    ],
)
def test_an_error_names_operator_key_and_timer(result: Any, reported: str, tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Failing(result))
    run.records(("a", 10, None))
    with pytest.raises(
        UserFunctionError, match=f"operator 'operator', key 'a', timer of event time at 10: .*{reported}"
    ):
        run.watermark(10)
    with pytest.raises(UserFunctionError, match="key 'a', timer of processing time at 10"):
        run.processing_time(10)


@pytest.mark.parametrize("time", [0.5, "noon", 1 << 63, None])
@BACKENDS
def test_an_invalid_time_is_rejected_and_nothing_is_registered(time: Any, state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, state_backend, Remind())
    with pytest.raises(UserFunctionError, match="operator 'operator', key 'a', record"):
        run.records(("a", time, None))
    assert run.entries() == {}


@pytest.mark.parametrize("is_event_time", [True, False])
def test_deleting_a_timer_affects_no_other(tmp_path: Path, is_event_time: bool) -> None:
    backend = BackendHarness(str(tmp_path)).open(HeapStateBackend(), key_serializer=StringSerializer())
    event, processing = timer_queue_descriptors("timers", StringSerializer(), VoidNamespaceSerializer())
    current = TimerKey()
    queues = backend.get_priority_queue(event), backend.get_priority_queue(processing)
    service: Any = InternalTimerService(*queues, current, lambda: 100)
    timers: Any = KeyedTimers(service, lambda: None)
    current.key, current.key_group = "a", 0
    kind = "event_time" if is_event_time else "processing_time"
    for time in (5, 7):
        getattr(timers, f"register_{kind}_timer")(time)
    getattr(timers, f"delete_{kind}_timer")(5)
    fired: list[int] = []

    def fire(timestamp_ms: int, *_: Any) -> None:
        fired.append(timestamp_ms)

    service.advance_processing_time(fire)
    assert fired == ([] if is_event_time else [7])
    service.advance_watermark(100, fire)
    assert fired == [7]


class Asking(KeyedProcessFunction[str, Any, Any]):
    """Does not override on_timer."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        timers = context.timer_service
        if value == "register":
            timers.register_event_time_timer(1)
        if value == "register processing":
            timers.register_processing_time_timer(1)
        timers.delete_event_time_timer(1)
        timers.delete_processing_time_timer(1)
        yield timers.current_watermark(), context.timestamp


def test_a_function_without_on_timer_may_read_the_time_and_has_no_queues(tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Asking())
    assert run.context.timers is None
    assert registered_states(Asking(), "operator", 1).timers == {}
    batch = ["value"], ["a"], [run.harness.key_group("a")]
    run.context.timers = type("Watermark", (), {"current_watermark": lambda self: 0})()
    for timestamps, watermark in ((None, 5), ([3], 6)):
        run.operator.process_batch(0, ObjectBatch(*batch, timestamps))
        run.operator.on_watermark(watermark)
    emitted = [(one.row, one.timestamp_ms) for one in run.emitted]
    assert emitted == [((MIN_TIMESTAMP, None), None), ((5, 3), 3)]


@pytest.mark.parametrize("what", ["register", "register processing"])
def test_a_function_without_on_timer_cannot_register_a_timer(what: str, tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Asking())
    with pytest.raises(JobDefinitionError, match=r"'operator': Asking registers a timer.*override on_timer\(self"):
        run.records(("a", what, None))


class RemindInJob(KeyedProcessFunction[str, int, Any]):
    def process_element(self, value: int, context: ProcessContext[str]) -> None:
        context.timer_service.register_processing_time_timer(value)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> list[Any]:
        return [(context.current_key, timestamp)]


def run_job(
    function: KeyedProcessFunction[Any, Any, Any], elements: list[int], now_ms: int, **given: Any
) -> tuple[Any, list[Any]]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=1, clock=lambda: now_ms)
    stream = environment.from_elements(elements).key_by(lambda element: f"k{element % 2}")
    stream.process(function, uid="operator", schema="key string, time bigint").sink_to(results)
    return environment.execute(**given), [tuple(row) for row in results]


def test_timers_are_in_a_savepoint_and_a_function_without_on_timer_is_rejected(tmp_path: Path) -> None:
    job, results = run_job(RemindInJob(), [10, 15], now_ms=0)
    assert results == []
    savepoint = str(tmp_path / "savepoint")
    job.savepoint(savepoint)
    assert run_job(RemindInJob(), [100], now_ms=20, from_savepoint=savepoint)[1] == [("k0", 10), ("k1", 15)]
    with pytest.raises(JobRestoreError, match="'processing-time timers'"):
        run_job(Asking(), [100], now_ms=20, from_savepoint=savepoint)


def test_a_function_that_gains_on_timer_continues_from_a_savepoint_without_timers(tmp_path: Path) -> None:
    class TellNothing(KeyedProcessFunction[str, int, Any]):
        def process_element(self, value: int, context: ProcessContext[str]) -> None:
            pass

    job, _ = run_job(TellNothing(), [10], now_ms=0)
    savepoint = str(tmp_path / "savepoint")
    job.savepoint(savepoint)
    assert run_job(RemindInJob(), [7, 8], now_ms=20, from_savepoint=savepoint)[1] == [("k1", 7)]


class Echo(KeyedProcessFunction[str, Any, Any]):
    """Emits each record again, ten milliseconds later in event time."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> None:
        assert context.timestamp == value.t
        context.timer_service.register_event_time_timer(value.t + 10)

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        yield context.current_key, timestamp


class CountInWindow(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: WindowContext[Any], elements: list[Any]) -> Iterable[Any]:
        yield key, context.window.start, [row.t for row in elements]


def test_event_time_timer_output_enters_downstream_windows_and_is_not_late() -> None:
    echoes: list[Any] = []
    windows: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=1)
    records = environment.from_elements([("a", 1), ("b", 4), ("a", 12), ("b", 40)], "k string, t bigint")
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("t")
    timed = records.assign_timestamps_and_watermarks(strategy).key_by("k")
    echo = timed.process(Echo(), uid="echo", schema="k string, t bigint")
    echo.sink_to(echoes, uid="echoes")
    counted = echo.key_by("k").window(TumblingEventTimeWindows.of(10))
    counted.process(CountInWindow(), uid="windows", schema="k string, start bigint, times array<bigint>").sink_to(
        windows, uid="counts"
    )
    environment.execute(drain=True)
    assert [tuple(row) for row in echoes] == [("a", 11), ("b", 14), ("a", 22), ("b", 50)]
    assert sorted(tuple(row) for row in windows) == [
        ("a", 10, [11]),
        ("a", 20, [22]),
        ("b", 10, [14]),
        ("b", 50, [50]),
    ]


class Telling(KeyedProcessFunction[str, Any, Any]):
    """Emits the epoch of every call; fails at an event-time timer at 13."""

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterable[Any]:
        context.timer_service.register_processing_time_timer(value)
        context.timer_service.register_event_time_timer(value)
        yield "record", context.epoch_id

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        if timestamp == 13:
            raise ArithmeticError("boom")
        yield context.time_domain.value, context.epoch_id


def test_every_call_gets_the_started_epoch(tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Telling())
    run.operator.prepare_snapshot()
    run.operator.begin_epoch(2)
    groups = [run.harness.key_group("a")]
    run.operator.process_batch(0, ObjectBatch([5], ["a"], groups, None))
    run.records(("a", 5, 5))
    run.watermark(5)
    run.processing_time(5)
    domains = TimeDomain.EVENT_TIME.value, TimeDomain.PROCESSING_TIME.value
    assert run.rows() == [(what, 2) for what in ("record", "record", *domains)]


def test_processing_time_timer_output_is_emitted_at_once(tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Telling())
    run.records(("a", 5, 5))
    run.processing_time(5)
    assert run.rows() == [("record", 1), (TimeDomain.PROCESSING_TIME.value, 1)]


@pytest.mark.parametrize("follows", ["records", "snapshot"])
def test_timer_output_precedes_all_that_follows(follows: str, tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Telling())
    run.operator.on_event_time_timer(5, "a", run.harness.key_group("a"), None)
    if follows == "snapshot":
        run.operator.prepare_snapshot()
    else:
        run.operator.process_batch(0, ObjectBatch([7], ["a"], [run.harness.key_group("a")], None))
    assert run.rows()[0] == (TimeDomain.EVENT_TIME.value, 1)


def test_output_of_timers_before_a_failing_one_is_kept(tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), Telling())
    run.records(("a", 5, 5), ("a", 13, 5))
    with pytest.raises(UserFunctionError, match="timer of event time at 13"):
        run.watermark(20)
    assert run.rows()[2:] == [(TimeDomain.EVENT_TIME.value, 1)]
