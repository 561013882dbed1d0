"""Rejected functions, triggers and window definitions, with their errors."""

from __future__ import annotations

import pickle
from datetime import timedelta
from decimal import Decimal
from operator import sub
from typing import Any

import pytest

from statebackend import ListStateDescriptor, StateRegistrationError, ValueStateDescriptor
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.states import AggregateFunction
from statebackend.streaming.errors import JobDefinitionError, UserFunctionError
from statebackend.streaming.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from statebackend.streaming.windows.evictors import CountEvictor, DeltaEvictor, TimeEvictor
from statebackend.streaming.windows.triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    OnMergeContext,
    PurgingTrigger,
    TriggerContext,
)
from statebackend.streaming.windows.window_definition import CoGroupedContents, ListedContents, WindowDefinition
from statebackend.streaming.windows.window_functions import ProcessWindowFunction
from statebackend.streaming.windows.windowed_stream import JoinWindowFunction, WindowedStream, WindowedStreamPair
from statebackend.testing.backends.harness import BackendHarness
from tests.streaming.operators.windows.window_harness import WindowRun

HEAP = HeapStateBackend()
HOURLY = TumblingEventTimeWindows.of(10)
SESSIONS = EventTimeSessionWindows.with_gap(10)


def windows(assigner: Any = HOURLY) -> Any:
    return WindowedStream.of(lambda definition, **_: definition, assigner)


class Forgetful(AggregateFunction[int, int, int]):
    """Returns no accumulator for 13."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return None if value == 13 else accumulator + value  # type: ignore[return-value]

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class Lists(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
        return [elements]


@pytest.mark.parametrize("assigner", [HOURLY, SESSIONS], ids=["fixed", "merging"])
def test_a_function_that_folds_to_none_is_reported_with_the_record(harness: BackendHarness, assigner: Any) -> None:
    def reduce(left: int, right: int) -> int:
        return None if right == 13 else left + right  # type: ignore[return-value]

    reduced = windows(assigner).reduce(reduce, element_type=int)
    for definition, reported in (
        (reduced, "the reduce function returned None; it must return the new accumulator"),
        (windows(assigner).aggregate(Forgetful()), "of the aggregate function returned None; it must return the acc"),
    ):
        run = WindowRun(harness, HEAP, definition)
        run.records(("a", 1, 1), ("a", 2, 2))
        with pytest.raises(UserFunctionError, match=rf"'windows', key 'a', record 13: .*{reported}"):
            run.records(("a", 13, 3))


class MergingState(EventTimeTrigger):
    """Has state that cannot be merged, and merges it."""

    descriptor: Any = ValueStateDescriptor("seen", int)

    @property
    def state_descriptors(self) -> Any:
        return (self.descriptor,)

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        super().on_merge(window, context)
        context.merge_partitioned_state(self.descriptor)


class MergingLists(MergingState):
    descriptor = ListStateDescriptor("seen", int)


class Unmerging(EventTimeTrigger):
    """Claims to merge, without implementing it."""

    def on_merge(self, window: Any, context: OnMergeContext) -> None:
        super(EventTimeTrigger, self).on_merge(window, context)


def test_trigger_state_is_merged_only_if_its_kind_allows_it(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows(SESSIONS).trigger(MergingState()).process(Lists(), element_type=int))
    run.records(("a", 1, 1), ("a", 1, 20))
    reported = "the state 'seen' of a trigger is a value state, which cannot be merged; list, reducing and aggregating"
    with pytest.raises(UserFunctionError, match=reported) as failure:
        run.records(("a", 1, 11))
    assert isinstance(failure.value.__cause__, StateRegistrationError)
    run = WindowRun(harness, HEAP, windows(SESSIONS).trigger(MergingLists()).process(Lists(), element_type=int))
    run.records(("a", 1, 1), ("a", 1, 20), ("a", 1, 11))
    run.watermark(100)
    assert [sorted(row) for row in run.rows()] == [[1, 1, 1]]


def test_a_trigger_that_claims_to_merge_without_implementing_it_is_reported(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows(SESSIONS).trigger(Unmerging()).process(Lists(), element_type=int))
    run.records(("a", 1, 1), ("a", 1, 20))
    with pytest.raises(UserFunctionError, match=r"key 'a'.*NotImplementedError: Unmerging cannot merge windows"):
        run.records(("a", 1, 11))


def test_an_event_time_trigger_reports_a_record_without_timestamp(harness: BackendHarness) -> None:
    trigger = ContinuousEventTimeTrigger.of(5)
    run = WindowRun(harness, HEAP, windows(GlobalWindows.create()).trigger(trigger).process(Lists(), element_type=int))
    with pytest.raises(UserFunctionError, match=r"key 'a', record 7: .*needs a timestamp, and the record has none"):
        run.records(("a", 7, None))


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        (
            lambda context: context.global_state().get_state(ValueStateDescriptor("other", int)),
            r"operator '.*': the state 'other' is not registered; register it in open\(\)",
        ),
        (lambda context: context.output("late", 1), "output.* takes an OutputTag and a record, not 'late'"),
    ],
    ids=["state", "output"],
)
def test_unavailable_context_members_of_a_window_function_are_an_error(
    harness: BackendHarness, call: Any, reported: str
) -> None:
    class Asking(Lists):
        def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
            call(context)
            return [elements]

    run = WindowRun(harness, HEAP, windows().process(Asking(), element_type=int))
    run.records(("a", 1, 1))
    with pytest.raises(UserFunctionError, match=rf"key 'a', window .*: {reported}"):
        run.watermark(9)


class WithATimerOfItsOwn(ContinuousProcessingTimeTrigger):
    """Has a timer in each window that does not fire it."""

    def on_element(self, element: Any, timestamp_ms: int | None, window: Any, context: TriggerContext) -> Any:
        context.register_processing_time_timer(window.start + 3)
        return super().on_element(element, timestamp_ms, window, context)


def test_a_continuous_trigger_fires_at_its_own_timers_only(harness: BackendHarness) -> None:
    trigger = WithATimerOfItsOwn(4)
    assigner = TumblingProcessingTimeWindows.of(10)
    run = WindowRun(harness, HEAP, windows(assigner).trigger(trigger).process(Lists(), element_type=int))
    fired: dict[int, list[Any]] = {}
    for now_ms in range(12):
        run.processing_time(now_ms)
        fired[now_ms] = run.rows()[sum(map(len, fired.values())) :]
        if now_ms < 9:
            run.records(("a", now_ms, None))
    assert [now_ms for now_ms, rows in fired.items() if rows] == [4, 8, 9]
    assert run.entries() == {}


def test_a_time_evictor_ignores_records_without_times(harness: BackendHarness) -> None:
    evicted = windows(GlobalWindows.create()).trigger(CountTrigger.of(3)).evictor(TimeEvictor.of(5))
    run = WindowRun(harness, HEAP, evicted.process(Lists(), element_type=int))
    run.records(("a", 1, None), ("a", 2, 100), ("a", 3, None))
    assert run.rows() == [[1, 2, 3]]
    run = WindowRun(harness, HEAP, evicted.process(Lists(), element_type=int))
    run.records(("b", 1, 94), ("b", 2, 95), ("b", 3, 100))
    assert run.rows() == [[3]]


def pair_of_windows(assigner: Any = HOURLY) -> Any:
    return WindowedStreamPair.of(lambda definition, **_: definition, assigner, JoinWindowFunction)


def test_a_count_of_a_global_window_needs_a_function() -> None:
    with pytest.raises(JobDefinitionError, match=r"a global window has no start and no end; use aggregate\(n=count"):
        windows(GlobalWindows.create()).count()
    windows(GlobalWindows.create()).count(lambda key, window, n: [(key, n)])


def test_invalid_parts_of_windows_are_rejected_by_the_constructor() -> None:
    for make, reported in (
        (lambda: PurgingTrigger.of(5), "takes a trigger, not 5"),
        (lambda: PurgingTrigger.of(EventTimeTrigger), "takes a trigger, not "),
        (lambda: EventTimeSessionWindows.with_dynamic_gap("1 hour"), "takes a function of a record, not '1 hour'"),
        (lambda: ProcessingTimeSessionWindows.with_dynamic_gap(5), "takes a function of a record, not 5"),
        (lambda: windows().apply("sum"), "takes a function of key, window and records, not 'sum'"),
        (lambda: WindowDefinition(assigner=HOURLY, trigger=EventTimeTrigger(), contents=ListedContents()), "every rec"),
        (lambda: WindowDefinition(assigner=HOURLY, trigger=EventTimeTrigger(), contents=CoGroupedContents()), "every"),
        (
            lambda: WindowDefinition(
                assigner=HOURLY,
                trigger=EventTimeTrigger(),
                contents=CoGroupedContents(),
                window_function=Lists(),
                evictor=CountEvictor.of(1),
            ),
            "windows of two inputs do not support evictors",
        ),
    ):
        with pytest.raises(JobDefinitionError, match=reported):
            make()


@pytest.mark.parametrize("of", [windows, pair_of_windows])
def test_windows_of_one_stream_and_of_two_accept_the_same_triggers_and_lateness(of: Any) -> None:
    with pytest.raises(JobDefinitionError, match=r"trigger\(\) takes a Trigger, not the class EventTimeTrigger"):
        of().trigger(EventTimeTrigger)
    clock = TumblingProcessingTimeWindows.of(10)
    with pytest.raises(JobDefinitionError, match="no record is late for windows of TumblingProc"):
        of(clock).allowed_lateness(1)
    with pytest.raises(JobDefinitionError, match=r"allowed_lateness\(\) is -1; it must be at least 0 ms"):
        of().allowed_lateness(-1)
    of(clock).allowed_lateness(0)


@pytest.mark.parametrize(
    ("create", "reported"),
    [
        (lambda: TumblingEventTimeWindows("1 hour"), r"create it with TumblingEventTimeWindows\.of\(\)"),
        (lambda: SlidingEventTimeWindows("1 hour", "1 minute"), r"create it with SlidingEventTimeWindows\.of\(\)"),
        (lambda: EventTimeSessionWindows(10), r"create it with EventTimeSessionWindows\.with_gap\(\)"),
        (
            lambda: ContinuousEventTimeTrigger("1 hour"),  # type: ignore[arg-type]
            r"interval_ms is '1 hour'; use ContinuousEventTimeTrigger\.of\(",
        ),
        (lambda: PurgingTrigger(5), r"PurgingTrigger\.of\(\) takes a trigger, not 5"),  # type: ignore[arg-type]
        (lambda: CountEvictor(-1), r"CountEvictor\.of\(\) takes a number of records of 0 or more, not -1"),
        (lambda: TimeEvictor("1 s"), r"size_ms is '1 s'; use TimeEvictor\.of\("),  # type: ignore[arg-type]
        (lambda: DeltaEvictor.of(float("nan"), sub), r"DeltaEvictor\.of\(\) takes a number as threshold, not nan"),
        (lambda: DeltaTrigger.of("5", sub, int), r"DeltaTrigger\.of\(\) takes a number"),  # type: ignore[arg-type]
        (lambda: DeltaEvictor(5, 5), r"takes a function of two records, not 5"),  # type: ignore[arg-type]
    ],
)
def test_a_mistake_in_creating_windows_is_reported_at_once(create: Any, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        create()


def test_the_threshold_of_a_delta_may_be_of_any_type_of_its_differences() -> None:
    for threshold in (2, 2.5, Decimal("2.5"), timedelta(seconds=2)):
        evictor: DeltaEvictor = DeltaEvictor.of(threshold, sub)  # type: ignore[arg-type]
        assert pickle.loads(pickle.dumps(evictor)) == evictor
    for windows in (SlidingEventTimeWindows.of(10, 5), EventTimeSessionWindows.with_gap(10)):
        assert pickle.loads(pickle.dumps(windows)) == windows
