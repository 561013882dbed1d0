"""When windows fire with any trigger, and that their state is removed."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from statebackend import ValueStateDescriptor
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP
from statebackend.streaming.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    TumblingProcessingTimeWindows,
)
from statebackend.streaming.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    TriggerContext,
    TriggerResult,
)
from statebackend.testing.backends.harness import BackendHarness
from tests.streaming.operators.windows.window_harness import (
    BACKENDS,
    HEAP,
    HOURLY,
    Sum,
    Values,
    WindowRun,
    play,
    rise,
    windows,
)
from typeserializers.times.timers import GLOBAL_WINDOW


class TestProcessingTime:
    @BACKENDS
    def test_processing_time_windows_fire_and_are_removed(self, harness: BackendHarness, state_backend: Any) -> None:
        for assigner, expected in (
            (TumblingProcessingTimeWindows.of(10), [3, 4]),
            (ProcessingTimeSessionWindows.with_gap(10), [7]),
        ):
            run = WindowRun(harness, state_backend, windows(assigner).aggregate(Sum()))
            for now_ms, value in ((0, 1), (5, 2), (12, 4)):
                run.processing_time(now_ms)
                run.records(("a", value, None))
            run.processing_time(30)
            assert run.rows() == expected
            assert run.entries() == {}

    def test_a_continuous_trigger_fires_in_processing_time(self, harness: BackendHarness) -> None:
        trigger = ContinuousProcessingTimeTrigger.of(4)
        run = WindowRun(harness, HEAP, windows(TumblingProcessingTimeWindows.of(10)).trigger(trigger).aggregate(Sum()))
        for now_ms in range(12):
            run.processing_time(now_ms)
            if now_ms < 9:
                run.records(("a", 1, None))
        assert run.rows() == [4, 8, 9]
        assert run.entries() == {}

    def test_a_purging_trigger_purges_in_processing_time_too(self, harness: BackendHarness) -> None:
        trigger = PurgingTrigger.of(ContinuousProcessingTimeTrigger.of(4))
        run = WindowRun(harness, HEAP, windows(TumblingProcessingTimeWindows.of(10)).trigger(trigger).aggregate(Sum()))
        for now_ms in range(12):
            run.processing_time(now_ms)
            if now_ms < 9:
                run.records(("a", 1, None))
        assert run.rows() == [4, 4, 1]
        assert run.entries() == {}

    def test_merged_processing_time_sessions_fire_at_the_first_end(self, harness: BackendHarness) -> None:
        trigger = ContinuousProcessingTimeTrigger.of(4)
        assigner = ProcessingTimeSessionWindows.with_gap(10)
        run = WindowRun(harness, HEAP, windows(assigner).trigger(trigger).aggregate(Sum()))
        fired = []
        for now_ms in range(1, 20):
            run.processing_time(now_ms)
            fired += [(now_ms, row) for row in run.rows()]
            run.emitted.clear()
            if now_ms in (1, 3, 6):
                run.records(("a", 1, None))
        assert fired == [(4, 2), (8, 3), (12, 3), (15, 3)]
        assert run.entries() == {}


def test_a_custom_trigger_has_state_per_window_and_timers(harness: BackendHarness) -> None:
    descriptor = ValueStateDescriptor("first", int)

    @attrs.frozen
    class FirstAgain(Trigger[Any, Any]):
        """Fires when the first value of a window is repeated."""

        @property
        def state_descriptors(self) -> Any:
            return (descriptor,)

        def on_element(self, element: Any, timestamp_ms: Any, window: Any, context: TriggerContext) -> TriggerResult:
            first = context.get_partitioned_state(descriptor)
            if first.value() is None:
                first.update(element)
                return TriggerResult.CONTINUE
            return TriggerResult.FIRE_AND_PURGE if first.value() == element else TriggerResult.PURGE

        def on_event_time(self, timestamp_ms: Any, window: Any, context: TriggerContext) -> TriggerResult:
            return TriggerResult.CONTINUE

        def on_processing_time(self, timestamp_ms: Any, window: Any, context: TriggerContext) -> TriggerResult:
            return TriggerResult.CONTINUE

        def clear(self, window: Any, context: TriggerContext) -> None:
            context.get_partitioned_state(descriptor).clear()

    definition = windows().trigger(FirstAgain()).process(Values(), element_type=int)
    run = play(harness, definition, [("a", 1, 1), ("a", 2, 2), ("a", 1, 3), ("a", 1, 11), ("a", 1, 12)])
    assert run.rows() == [("a", [1]), ("a", [1, 1])]


def test_a_processing_time_timer_removes_no_event_time_window(harness: BackendHarness) -> None:
    by_the_clock = windows().trigger(ContinuousProcessingTimeTrigger.of(5)).aggregate(Sum())
    run = WindowRun(harness, HEAP, by_the_clock)
    run.records(("a", 1, 1))
    [window] = HOURLY.assign_windows(1, 1)
    # Processing time passes the end of the window, but event time does not. The trigger fires again when processing
    # time advances.
    for run.context.now_ms in (5, 9):
        run.operator.on_processing_time_timer(run.context.now_ms, "a", run.harness.key_group("a"), window)
        run.timers.delete_processing_time_timer(window, run.context.now_ms)
    assert run.rows() == [1, 1]
    assert run.timers.next_processing_time_timer() == 10
    run.processing_time(20)
    run.records(("a", 2, 2))
    run.processing_time(1_000_000_000_000)
    assert run.rows() == [1, 1, 1, 3]
    run.watermark(MAX_TIMESTAMP)
    assert "window-contents" not in run.entries()


def test_after_the_end_of_time_every_record_is_late(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows().aggregate(Sum()))
    run.watermark(MAX_TIMESTAMP)
    run.records(("a", 1, MAX_TIMESTAMP), ("a", 2, MAX_TIMESTAMP - 20))
    assert run.operator.late_records == {None: 2}
    assert run.entries() == {}


EVERY_TRIGGER = pytest.mark.parametrize(
    "trigger",
    [
        EventTimeTrigger(),
        ProcessingTimeTrigger(),
        CountTrigger.of(5),
        ContinuousEventTimeTrigger.of(3),
        ContinuousProcessingTimeTrigger.of(3),
        DeltaTrigger.of(100, rise, int),
        PurgingTrigger.of(CountTrigger.of(2)),
    ],
    ids=lambda one: type(one).__name__,
)


@EVERY_TRIGGER
def test_no_state_outlives_a_window_with_any_trigger(trigger: Any, harness: BackendHarness) -> None:
    play(harness, windows().trigger(trigger).aggregate(Sum()), [("a", 1, 1), ("a", 2, 2), ("b", 3, 3)])


@EVERY_TRIGGER
def test_no_state_outlives_merged_sessions_with_any_trigger(trigger: Any, harness: BackendHarness) -> None:
    sessions = windows(EventTimeSessionWindows.with_gap(10)).trigger(trigger)
    if not trigger.can_merge():
        with pytest.raises(JobDefinitionError, match="cannot merge"):
            sessions.aggregate(Sum())
        return
    run = WindowRun(harness, HEAP, sessions.aggregate(Sum()))
    run.records(("a", 1, 0), ("a", 2, 12), ("a", 4, 6))
    run.watermark(MAX_TIMESTAMP)
    # Processing-time timers of merged-away windows find no window. They are removed when they are due.
    run.processing_time(100)
    assert run.entries() == {}


def test_a_purging_trigger_merges_only_if_its_inner_one_does() -> None:
    sessions = windows(EventTimeSessionWindows.with_gap(10))
    with pytest.raises(JobDefinitionError, match="cannot merge"):
        sessions.trigger(PurgingTrigger.of(DeltaTrigger.of(1, rise, int))).aggregate(Sum())


def test_a_window_without_an_end_fires_at_the_end_of_time_and_not_again(harness: BackendHarness) -> None:
    endless = windows(GlobalWindows.create()).trigger(ContinuousEventTimeTrigger.of(5)).aggregate(Sum())
    run = WindowRun(harness, HEAP, endless)
    run.records(("a", 1, 1))
    run.timers.advance_watermark(MAX_TIMESTAMP, lambda *_: None)
    run.operator.on_event_time_timer(5, "a", run.harness.key_group("a"), GLOBAL_WINDOW)
    run.operator.prepare_snapshot()
    assert run.rows() == [1]
    assert run.timers.next_event_time_timer() is None


def test_a_window_kept_forever_has_no_cleanup_timer(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows().allowed_lateness(MAX_TIMESTAMP).aggregate(Sum()))
    run.records(("a", 1, 1))
    assert run.entries() == {"window-contents": 1, "timers": 1}
