"""The window operator beyond the traces: errors, definitions, extremes, batches, rows of a schema."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from snapshots.errors import SerializationError
from statebackend import ValueStateDescriptor
from statebackend.state.errors import StateRegistrationError
from statebackend.streaming.errors import JobDefinitionError, MissingTimestampError, UserFunctionError
from statebackend.streaming.output_tag import OutputTag
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.windows.assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from statebackend.streaming.windows.evictors import CountEvictor, DeltaEvictor, TimeEvictor, TimestampedValue
from statebackend.streaming.windows.triggers import (
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    PurgingTrigger,
    TriggerContext,
)
from statebackend.streaming.windows.window_definition import WindowDefinition
from statebackend.streaming.windows.window_functions import ProcessWindowFunction
from statebackend.streaming.windows.windowed_stream import CoGroupWindowFunction, JoinWindowFunction, WindowedStreamPair
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
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer


class TestErrors:
    @pytest.mark.parametrize("assigner", [HOURLY, EventTimeSessionWindows.with_gap(3)], ids=["batch", "one by one"])
    def test_an_exception_of_a_function_names_operator_key_and_record(
        self, harness: BackendHarness, assigner: Any
    ) -> None:
        run = WindowRun(harness, HEAP, windows(assigner).aggregate(Sum()))
        with pytest.raises(UserFunctionError, match=r"'windows', key 'b', record 13: .*ZeroDivisionError: thirteen"):
            run.records(("a", 1, 1), ("b", 2, 2), ("b", 13, 3), ("b", 4, 4), ("a", 5, 5))

    def test_an_exception_at_a_timer_names_key_window_and_time(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().apply(lambda key, window, values: 1 // 0, element_type=int))
        run.records(("a", 1, 1))
        with pytest.raises(UserFunctionError, match=r"key 'a', window .*start=0, end=10.*timer at 9: .*ZeroDivision"):
            run.watermark(9)

    def test_an_exception_or_missing_result_of_a_trigger_names_the_record(self, harness: BackendHarness) -> None:
        class Odd(EventTimeTrigger):
            def on_element(self, element: Any, timestamp_ms: Any, window: Any, context: TriggerContext) -> Any:
                return 1 // element if element < 2 else None

        for value, reported in ((0, "ZeroDivisionError"), (2, "returned None, which is not a TriggerResult")):
            run = WindowRun(harness, HEAP, windows().trigger(Odd()).aggregate(Sum()))
            with pytest.raises(UserFunctionError, match=f"key 'a', record {value}: .*{reported}"):
                run.records(("a", value, 1))

    def test_a_record_without_a_timestamp_is_reported(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().aggregate(Sum()))
        reported = r"^operator 'windows', key 'a', record 5: the record has no timestamp.*.*processing-time windows$"
        with pytest.raises(MissingTimestampError, match=reported):
            run.records(("a", 1, 1), ("a", 5, None))

    def test_a_record_rejected_by_its_serializer_is_reported(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().process(Values(), element_type=int))
        with pytest.raises(UserFunctionError, match=r"'windows', key 'a', record 'x'"):
            run.records(("a", "x", 1))

    def test_a_key_with_a_null_part_is_reported(self, harness: BackendHarness) -> None:
        serializer = TupleSerializer((StringSerializer(), LongSerializer()))
        run = WindowRun(harness, HEAP, windows().aggregate(Sum()), key_serializer=serializer)
        with pytest.raises(UserFunctionError, match=r"key \('a', None\), record 5"):
            run.records((("a", None), 5, 1))

    def test_one_record_instead_of_many_is_rejected(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().apply(lambda key, window, values: {"k": key}, element_type=int))
        run.records(("a", 1, 1))
        with pytest.raises(UserFunctionError, match="one record and not an iterable"):
            run.watermark(9)

    def test_records_of_unknown_type_are_rejected_at_the_start(self, harness: BackendHarness) -> None:
        with pytest.raises(JobDefinitionError, match=r"'windows'.*element_type="):
            WindowRun(harness, HEAP, windows().process(Values()))

    def test_unregistered_state_is_reported(self, harness: BackendHarness) -> None:
        class Forgetful(Values):
            def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
                return [context.window_state().get_state(ValueStateDescriptor("x", int))]

        run = WindowRun(harness, HEAP, windows().process(Forgetful(), element_type=int))
        run.records(("a", 1, 1))
        with pytest.raises(UserFunctionError, match=r"state 'x' per window.*context.window_state"):
            run.watermark(9)


class TestDefinitions:
    def test_inconsistent_definitions_are_rejected(self) -> None:
        class Untyped(Sum):
            def create_accumulator(self):  # type: ignore[no-untyped-def]
                return 0

        delta = DeltaTrigger.of(1, lambda left, right: 0, int)
        for make, reported in (
            (lambda: windows(EventTimeSessionWindows.with_gap(1)).trigger(delta).aggregate(Sum()), "cannot merge"),
            (lambda: windows().aggregate(Untyped()), "accumulator_type="),
            (lambda: windows().aggregate(Sum), "make an instance"),
            (lambda: windows().reduce(3), "takes a function"),
            (lambda: windows().process(lambda: 1), "ProcessWindowFunction"),
            (lambda: windows(GlobalWindows.create()).allowed_lateness(1), "no record is late"),
            (lambda: windows().trigger(EventTimeTrigger), "make an instance"),
            (lambda: TumblingEventTimeWindows.of(0), "at least 1 ms"),
            (lambda: TumblingEventTimeWindows.of("1 hour", "1 hour"), "offset"),
            (lambda: SlidingEventTimeWindows.of(10, 0), "at least 1 ms"),
            (lambda: EventTimeSessionWindows.with_gap("0 seconds"), "at least 1 ms"),
            (lambda: CountTrigger.of(0), "of 1 or more"),
            (lambda: CountTrigger.of(True), "of 1 or more"),
            (lambda: CountEvictor.of(-1), "of 0 or more"),
            (lambda: CountEvictor.of(True), "of 0 or more"),
            (lambda: DeltaEvictor.of(1, "delta"), "a function of two records"),
            (lambda: DeltaTrigger.of(1, "delta", int), "a function of two records"),
        ):
            with pytest.raises(JobDefinitionError, match=reported):
                make()

    def test_evictors_evict_before_the_function_by_default(self) -> None:
        def delta(one: int, last: int) -> int:
            return last - one

        for evictor in (CountEvictor.of(1), TimeEvictor.of(1), DeltaEvictor.of(1, delta)):
            held = [TimestampedValue(1, 1), TimestampedValue(5, 5)]
            assert evictor.evict_before(held, None) == held[1:]
            assert evictor.evict_after(held, None) == held

    def test_an_accumulator_type_comes_from_the_function(self) -> None:
        assert windows().aggregate(Sum()).contents.accumulator_serializer == LongSerializer()


class TestExtremes:
    @BACKENDS
    @pytest.mark.parametrize(
        "assigner",
        [HOURLY, SlidingEventTimeWindows.of(10, 3), EventTimeSessionWindows.with_gap(10)],
        ids=["tumbling", "sliding", "sessions"],
    )
    def test_the_ends_of_time_have_windows(self, harness: BackendHarness, state_backend: Any, assigner: Any) -> None:
        times = [MIN_TIMESTAMP + 1, -1, 0, MAX_TIMESTAMP - 1, MAX_TIMESTAMP]
        run = play(
            harness,
            windows(assigner).aggregate(Sum()),
            [("a", 1 << at, time) for at, time in enumerate(times)],
            state_backend,
        )
        seen = 0
        for total in run.rows():
            seen |= total
        assert seen == 0b11111

    def test_thousands_of_sessions_merge(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows(EventTimeSessionWindows.with_gap(10)).aggregate(Sum()))
        run.records(*[("a", 1, at * 15) for at in range(3000)])
        run.records(*[("a", 1, at * 15 + 7) for at in range(3000)])
        run.watermark(MAX_TIMESTAMP)
        assert run.rows() == [6000]
        assert run.entries() == {}

    def test_thousands_of_stored_sessions_are_removed_one_by_one(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows(EventTimeSessionWindows.with_gap(10)).aggregate(Sum()))
        run.records(*[("a", 1, at * 15) for at in range(3000)])
        run = WindowRun(harness, HEAP, windows(EventTimeSessionWindows.with_gap(10)).aggregate(Sum()), run.snapshot())
        run.watermark(MAX_TIMESTAMP)
        assert run.rows() == [1] * 3000
        assert run.entries() == {}

    def test_an_endless_lateness_is_valid(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().allowed_lateness(MAX_TIMESTAMP).aggregate(Sum()))
        run.records(("a", 1, 1))
        run.watermark(1 << 60)
        run.records(("a", 2, 2))
        assert run.rows() == [1, 3]


class TestBatches:
    def test_a_window_of_a_key_has_one_timer_for_any_input(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().aggregate(Sum()))
        for _ in range(3):
            run.records(*[(key, 1, at) for key in "ab" for at in range(20)])
        assert run.timers.registrations == 4

    def test_late_records_keep_their_order_among_those_of_open_windows(self, harness: BackendHarness) -> None:
        definition = (
            windows(SlidingEventTimeWindows.of(10, 5)).allowed_lateness(100).process(Values(), element_type=int)
        )
        run = WindowRun(harness, HEAP, definition)
        run.watermark(9)
        run.records(("a", 1, 12), ("a", 2, 6), ("a", 3, 11), ("a", 4, 7))
        assert run.rows() == [("a", [2]), ("a", [2, 4])]
        run.watermark(14)
        assert run.rows()[2:] == [("a", [1, 2, 3, 4])]


class Pair(NamedTuple):
    """Custom fields."""

    k: str
    v: int


class TestRows:
    @BACKENDS
    @pytest.mark.parametrize(
        "made",
        [
            lambda left, right: (left.k, left.v + right.v),
            lambda left, right: {"v": left.v + right.v, "k": left.k},
            lambda left, right: Pair(left.k, left.v + right.v),
        ],
        ids=["tuple", "dict", "named tuple"],
    )
    def test_rows_are_reduced_to_anything_that_can_be_emitted(
        self, harness: BackendHarness, state_backend: Any, made: Any
    ) -> None:
        schema = parsed_schema("k string, v bigint", "x")
        run = WindowRun(harness, state_backend, windows().reduce(made), schema=schema)
        row = row_class(schema.names)
        run.records(*[("a", row(("a", value)), value) for value in (1, 2, 3)])
        run.records(("a", row(("a", 4)), 4))
        run.watermark(9)
        assert run.rows() == [("a", 10)]

    def test_a_record_of_other_columns_is_reported(self, harness: BackendHarness) -> None:
        schema = parsed_schema("k string, v bigint", "x")
        run = WindowRun(harness, HEAP, windows().reduce(lambda left, right: {"v": 1}), schema=schema)
        row = row_class(schema.names)
        with pytest.raises(UserFunctionError, match=r"not a record of the columns k, v"):
            run.records(("a", row(("a", 1)), 1), ("a", row(("a", 2)), 2))

    def test_evictors_keep_timestamps_of_rows(self, harness: BackendHarness) -> None:
        schema = parsed_schema("k string, v bigint", "x")
        for evictor in (TimeEvictor.of(3), DeltaEvictor.of(3, lambda one, last: last.v - one.v)):
            run = WindowRun(harness, HEAP, windows().evictor(evictor).process(Values()), schema=schema)
            row = row_class(schema.names)
            run.records(*[("a", row(("a", value)), value) for value in (1, 2, 5, 4)])
            run.watermark(9)
            [(_, elements)] = run.rows()
            assert [element.v for element in elements] == [5, 4] if evictor == TimeEvictor.of(3) else [2, 5, 4]


def test_state_per_window_is_cleared_by_the_function_and_separate_per_window(harness: BackendHarness) -> None:
    descriptors = ValueStateDescriptor("seen", int), ValueStateDescriptor("seen again", int)
    cleared: OutputTag[Any] = OutputTag("cleared")

    class Counting(ProcessWindowFunction[Any, Any, Any, Any]):
        def open(self, context: Any) -> None:
            self.states = [context.window_state.get_state(one) for one in descriptors]
            with pytest.raises(StateRegistrationError):
                context.window_state.get_state(ValueStateDescriptor("seen", str))

        def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
            for state in self.states:
                state.update((state.value() or 0) + len(elements))
            yield context.window.start, *(state.value() for state in self.states)

        def clear(self, context: Any) -> None:
            context.output(cleared, (context.window.start, *(state.value() for state in self.states)))
            for state in self.states:
                state.clear()

    definition = windows().trigger(PurgingTrigger.of(EventTimeTrigger())).allowed_lateness(5)
    run = WindowRun(harness, HEAP, definition.process(Counting(), element_type=int), side_outputs=[cleared])
    run.records(("a", 1, 1), ("a", 1, 11))
    run.watermark(10)
    run.records(("a", 1, 2))
    run.watermark(MAX_TIMESTAMP)
    assert run.rows() == [(0, 1, 1), (0, 2, 2), (10, 1, 1)]
    assert [one.row for one in run.emitted if one.tag == cleared] == [(0, 2, 2), (10, 1, 1)]
    assert run.entries() == {}


def test_a_window_function_may_emit_nothing(harness: BackendHarness) -> None:
    class Silent(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
            return [len(elements)] if len(elements) > 1 else None

    run = WindowRun(harness, HEAP, windows().process(Silent(), element_type=int))
    run.records(("a", 1, 1), ("b", 1, 2), ("b", 1, 3))
    run.watermark(MAX_TIMESTAMP)
    assert run.rows() == [2]
    assert run.entries() == {}


def test_a_wrong_accumulator_is_rejected_with_the_record(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows().aggregate(Sum(), accumulator_type=str))
    with pytest.raises(UserFunctionError, match=r"key 'a', record 1") as failure:
        run.records(("a", 1, 1))
    assert isinstance(failure.value.__cause__, SerializationError)


class TestTwoInputs:
    @BACKENDS
    def test_records_of_two_inputs_are_joined_in_windows_that_leave_nothing(
        self, harness: BackendHarness, state_backend: Any
    ) -> None:
        sessions = EventTimeSessionWindows.with_gap(10)
        pair = WindowedStreamPair.of(lambda definition, **_: definition, sessions, CoGroupWindowFunction)
        definition = pair.allowed_lateness(5).apply(
            lambda lefts, rights: [(sorted(lefts), sorted(rights))], left_type=int, right_type=str
        )
        run = WindowRun(harness, state_backend, definition)
        run.records(("a", 1, 0), ("a", 2, 30), ("b", 3, 0))
        run.records(("a", "x", 15), input_index=1)
        run.records(("a", "y", 22), input_index=1)
        run.records(("a", 4, 8))
        run.watermark(9)
        run.records(("b", "late", 1), input_index=1)
        run.watermark(MAX_TIMESTAMP)
        assert run.rows() == [([3], []), ([3], ["late"]), ([1, 2, 4], ["x", "y"])]
        assert run.entries() == {}

    def test_a_join_needs_a_function_and_the_types_of_both_inputs(self, harness: BackendHarness) -> None:
        pair = WindowedStreamPair.of(lambda definition, **_: definition, HOURLY, JoinWindowFunction)
        with pytest.raises(JobDefinitionError, match=r"apply\(\) takes a function of two"):
            pair.apply(3)  # type: ignore[arg-type]
        with pytest.raises(JobDefinitionError, match="no schema"):
            WindowRun(harness, HEAP, pair.apply(lambda left, right: left, left_type=int))

    def test_after_a_lateness_reduction_a_window_with_records_of_one_input_only_is_removed(
        self, harness: BackendHarness
    ) -> None:
        pair = WindowedStreamPair.of(lambda definition, **_: definition, HOURLY, CoGroupWindowFunction)

        def grouped(lateness: int) -> WindowDefinition:
            return pair.allowed_lateness(lateness).apply(
                lambda lefts, rights: [(lefts, rights)], left_type=int, right_type=int
            )

        run = WindowRun(harness, HEAP, grouped(50))
        run.records(("a", 1, 1))
        run.watermark(30)
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, grouped(0), handle, watermark=30)
        run.watermark(MAX_TIMESTAMP)
        assert run.entries() == {}


@pytest.mark.parametrize("gap", [0, -1, "-1 seconds"])
def test_a_missing_gap_of_a_record_is_reported_with_it(gap: Any, harness: BackendHarness) -> None:
    dynamic = windows(EventTimeSessionWindows.with_dynamic_gap(lambda value: gap)).aggregate(Sum())
    with pytest.raises(UserFunctionError, match=r"key 'a', record 1: .*must be at least 1 ms"):
        WindowRun(harness, HEAP, dynamic).records(("a", 1, 1))


@pytest.mark.parametrize("after", [False, True])
def test_evictors_ignore_an_empty_window(after: bool) -> None:
    [window] = HOURLY.assign_windows(1, 1)
    for evictor in (
        CountEvictor.of(0, after),
        TimeEvictor.of(5, after),
        DeltaEvictor.of(1, rise, after),
    ):
        assert list(evictor.evict_before([], window)) == list(evictor.evict_after([], window)) == []
