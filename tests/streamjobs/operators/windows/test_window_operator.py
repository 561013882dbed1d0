"""The operator of windows beyond what traces show: errors, upgrades, extremes, processing time, rows of a schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest

from snapshots.errors import SerializationError
from statebackend import ValueStateDescriptor
from statebackend.api.aggregate_function import AggregateFunction
from statebackend.api.errors import StateRegistrationError
from statebackend.heap import HeapStateBackend
from statebackend.rocksdb import RocksDBStateBackend
from streamjobs.api.output_tag import OutputTag
from streamjobs.api.windows.evictors import CountEvictor, DeltaEvictor, TimeEvictor, TimestampedValue
from streamjobs.api.windows.standard_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    DeltaTrigger,
    EventTimeTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from streamjobs.api.windows.triggers import Trigger, TriggerContext, TriggerResult
from streamjobs.api.windows.window_assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from streamjobs.api.windows.window_definition import WindowDefinition
from streamjobs.api.windows.window_functions import ProcessWindowFunction
from streamjobs.api.windows.window_joins import CoGroupWindowFunction, JoinWindowFunction, WindowedStreamPair
from streamjobs.api.windows.windowed_stream import WindowedStream
from streamjobs.errors import JobDefinitionError, MissingTimestampError, UserFunctionError
from streamjobs.rows.declared_schema import parsed_schema
from streamjobs.rows.row import row_class
from streamjobs.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from testkit.backends.harness import BackendHarness
from tests.streamjobs.operators.windows.window_harness import WindowRun
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.times.windows import GLOBAL_WINDOW

BACKENDS = pytest.mark.parametrize(
    "state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"]
)
HEAP = HeapStateBackend()

HOURLY = TumblingEventTimeWindows.of(10)


def windows(assigner: Any = HOURLY) -> Any:
    return WindowedStream.of(lambda definition, **_: definition, assigner)


@pytest.fixture
def harness(tmp_path: Path) -> BackendHarness:
    return BackendHarness(str(tmp_path))


class Sum(AggregateFunction[int, int, int]):
    """A sum that thirteen breaks."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        if value == 13:
            raise ZeroDivisionError("thirteen")
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, left: int, right: int) -> int:
        return left + right


class Values(ProcessWindowFunction[Any, Any, Any, Any]):
    def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
        return [(key, elements)]


def play(
    harness: BackendHarness, definition: WindowDefinition, records: list[Any], state_backend: Any = HEAP
) -> WindowRun:
    run = WindowRun(harness, state_backend, definition)
    for record in records:
        run.records(record)
    run.watermark(MAX_TIMESTAMP)
    assert run.entries() == {}
    return run


class TestErrors:
    @pytest.mark.parametrize("assigner", [HOURLY, EventTimeSessionWindows.with_gap(3)], ids=["batch", "one by one"])
    def test_a_function_that_raises_is_told_with_operator_key_and_record(
        self, harness: BackendHarness, assigner: Any
    ) -> None:
        run = WindowRun(harness, HEAP, windows(assigner).aggregate(Sum()))
        with pytest.raises(UserFunctionError, match=r"'windows', key 'b', record 13: .*ZeroDivisionError: thirteen"):
            run.records(("a", 1, 1), ("b", 2, 2), ("b", 13, 3), ("b", 4, 4), ("a", 5, 5))

    def test_a_function_that_raises_at_a_timer_is_told_with_key_window_and_time(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().apply(lambda key, window, values: 1 // 0, element_type=int))
        run.records(("a", 1, 1))
        with pytest.raises(UserFunctionError, match=r"key 'a', window .*start=0, end=10.*timer at 9: .*ZeroDivision"):
            run.watermark(9)

    def test_a_trigger_that_raises_or_answers_nothing_is_told_with_the_record(self, harness: BackendHarness) -> None:
        class Odd(EventTimeTrigger):
            def on_element(self, element: Any, timestamp_ms: Any, window: Any, context: TriggerContext) -> Any:
                return 1 // element if element < 2 else None

        for value, told in ((0, "ZeroDivisionError"), (2, "returned None, which is no TriggerResult")):
            run = WindowRun(harness, HEAP, windows().trigger(Odd()).aggregate(Sum()))
            with pytest.raises(UserFunctionError, match=f"key 'a', record {value}: .*{told}"):
                run.records(("a", value, 1))

    def test_a_record_without_a_timestamp_is_told(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().aggregate(Sum()))
        told = r"^operator 'windows', key 'a', record 5: the record has no timestamp.*with_timestamps.*processing time$"
        with pytest.raises(MissingTimestampError, match=told):
            run.records(("a", 1, 1), ("a", 5, None))

    def test_a_record_that_its_serializer_refuses_is_told(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().process(Values(), element_type=int))
        with pytest.raises(UserFunctionError, match=r"'windows', key 'a', record 'x'"):
            run.records(("a", "x", 1))

    def test_a_key_with_a_part_that_is_none_is_told(self, harness: BackendHarness) -> None:
        serializer = TupleSerializer((StringSerializer(), LongSerializer()))
        run = WindowRun(harness, HEAP, windows().aggregate(Sum()), key_serializer=serializer)
        with pytest.raises(UserFunctionError, match=r"key \('a', None\), record 5"):
            run.records((("a", None), 5, 1))

    def test_one_record_instead_of_many_is_refused(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().apply(lambda key, window, values: {"k": key}, element_type=int))
        run.records(("a", 1, 1))
        with pytest.raises(UserFunctionError, match="one record and not an iterable"):
            run.watermark(9)

    def test_records_of_no_known_type_are_refused_at_the_start(self, harness: BackendHarness) -> None:
        with pytest.raises(JobDefinitionError, match=r"'windows'.*element_type="):
            WindowRun(harness, HEAP, windows().process(Values()))

    def test_state_that_was_not_registered_is_told(self, harness: BackendHarness) -> None:
        class Forgetful(Values):
            def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
                return [context.window_state().get_state(ValueStateDescriptor("x", int))]

        run = WindowRun(harness, HEAP, windows().process(Forgetful(), element_type=int))
        run.records(("a", 1, 1))
        with pytest.raises(UserFunctionError, match=r"state 'x' per window.*context.window_state"):
            run.watermark(9)


class TestDefinitions:
    def test_what_does_not_go_together_is_refused(self) -> None:
        class Untyped(Sum):
            def create_accumulator(self):  # type: ignore[no-untyped-def]
                return 0

        delta = DeltaTrigger.of(1, lambda left, right: 0, int)
        for make, told in (
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
            (lambda: CountTrigger.of(0), "from 1 on"),
            (lambda: CountTrigger.of(True), "from 1 on"),
            (lambda: CountEvictor.of(-1), "from 0 on"),
            (lambda: CountEvictor.of(True), "from 0 on"),
            (lambda: DeltaEvictor.of(1, "delta"), "a function of two records"),
            (lambda: DeltaTrigger.of(1, "delta", int), "a function of two records"),
        ):
            with pytest.raises(JobDefinitionError, match=told):
                make()

    def test_evictors_evict_before_the_function_unless_they_are_told_otherwise(self) -> None:
        def delta(one: int, last: int) -> int:
            return last - one

        for evictor in (CountEvictor.of(1), TimeEvictor.of(1), DeltaEvictor.of(1, delta)):
            held = [TimestampedValue(1, 1), TimestampedValue(5, 5)]
            assert evictor.evict_before(held, None) == held[1:]
            assert evictor.evict_after(held, None) == held

    def test_an_accumulator_gets_its_type_from_the_function(self) -> None:
        assert windows().aggregate(Sum()).contents.accumulator_serializer == LongSerializer()


@attrs.frozen
class Totals1:
    """A window's accumulator, as it was."""

    total: int = 0


@attrs.frozen
class Totals:
    """The same a release later."""

    total: int = 0
    largest: int = -1


def _adding(totals: type) -> Any:
    class Adding(AggregateFunction[int, Any, Any]):
        def create_accumulator(self) -> Any:
            return totals()

        def add(self, value: int, accumulator: Any) -> Any:
            changes = {"total": accumulator.total + value}
            if hasattr(accumulator, "largest"):
                changes["largest"] = max(accumulator.largest, value)
            return attrs.evolve(accumulator, **changes)

        def get_result(self, accumulator: Any) -> Any:
            return attrs.astuple(accumulator)

        def merge(self, left: Any, right: Any) -> Any:
            return attrs.evolve(left, total=left.total + right.total)

    return Adding()


class TestUpgrades:
    @BACKENDS
    @pytest.mark.parametrize("assigner", [HOURLY, EventTimeSessionWindows.with_gap(10)], ids=["tumbling", "sessions"])
    def test_an_accumulator_gains_a_field_with_timers_pending(
        self, harness: BackendHarness, state_backend: Any, assigner: Any
    ) -> None:
        old = windows(assigner).aggregate(_adding(Totals1), accumulator_type=AttrsSerializer(Totals1, name="Totals"))
        run = WindowRun(harness, state_backend, old)
        run.records(("a", 1, 1), ("a", 2, 2), ("b", 5, 3))
        handle = run.snapshot()
        new = windows(assigner).aggregate(_adding(Totals), accumulator_type=AttrsSerializer(Totals))
        run = WindowRun(harness, state_backend, new, handle)
        run.records(("a", 7, 4))
        run.watermark(MAX_TIMESTAMP)
        assert sorted(run.rows()) == [(5, -1), (10, 7)]
        assert run.entries() == {}

    @pytest.mark.parametrize(("before", "after"), [(0, 5), (20, 5), (5, 0), (5, 20)])
    def test_another_lateness_cleans_up_what_the_old_one_left(
        self, harness: BackendHarness, before: int, after: int
    ) -> None:
        run = WindowRun(harness, HEAP, windows().allowed_lateness(before).aggregate(Sum()))
        run.records(("a", 1, 1))
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, windows().allowed_lateness(after).aggregate(Sum()), handle)
        run.watermark(9)
        assert run.rows() == [1]
        run.watermark(100)
        assert run.rows() == [1]
        assert run.entries() == {}

    @pytest.mark.parametrize("time", [2, 8, -3], ids=["in it", "behind it", "before it"])
    def test_a_late_record_of_a_session_that_less_lateness_has_given_up_leaves_nothing_of_it(
        self, harness: BackendHarness, time: int
    ) -> None:
        sessions = windows(EventTimeSessionWindows.with_gap(10))
        run = WindowRun(harness, HEAP, sessions.allowed_lateness(50).aggregate(Sum()))
        run.records(("a", 1, 1))
        run.watermark(30)
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, sessions.allowed_lateness(0).aggregate(Sum()), handle, watermark=30)
        run.records(("a", 2, time))
        run.watermark(MAX_TIMESTAMP)
        assert (run.rows(), run.entries()) == ([], {})

    @pytest.mark.parametrize("late", [(), (("a", 2, 3),)], ids=["by its timer", "by a late record"])
    @pytest.mark.parametrize(
        "trigger",
        [EventTimeTrigger(), ContinuousEventTimeTrigger.of(3), CountTrigger.of(2)],
        ids=lambda one: type(one).__name__,
    )
    @pytest.mark.parametrize("assigner", [HOURLY, EventTimeSessionWindows.with_gap(10)], ids=["tumbling", "sessions"])
    def test_a_purged_window_that_less_lateness_has_given_up_leaves_nothing_behind(
        self, harness: BackendHarness, assigner: Any, trigger: Any, late: tuple[Any, ...]
    ) -> None:
        purged = windows(assigner).trigger(PurgingTrigger.of(trigger))
        run = WindowRun(harness, HEAP, purged.allowed_lateness(50).aggregate(Sum()))
        run.records(("a", 1, 1), ("a", 1, 2), ("a", 1, 2))
        run.watermark(30)
        handle = run.snapshot()
        run = WindowRun(harness, HEAP, purged.allowed_lateness(0).aggregate(Sum()), handle, watermark=30)
        run.records(*late)
        run.watermark(MAX_TIMESTAMP)
        assert run.entries() == {}

    def test_columns_come_and_go_between_runs(self, harness: BackendHarness) -> None:
        old, new = (parsed_schema(ddl, "x") for ddl in ("k string, v int", "k string, w string, v bigint"))
        definition = windows().process(Values())
        run = WindowRun(harness, HEAP, definition, schema=old)
        run.records(("a", row_class(old.names)(("a", 1)), 1))
        run = WindowRun(harness, HEAP, definition, run.snapshot(), schema=new)
        run.records(("a", row_class(new.names)(("a", "w", 1 << 40)), 2))
        run.watermark(9)
        [(_, elements)] = run.rows()
        assert [row.asDict() for row in elements] == [
            {"k": "a", "w": None, "v": 1},
            {"k": "a", "w": "w", "v": 1 << 40},
        ]


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

    def test_thousands_of_sessions_become_one(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows(EventTimeSessionWindows.with_gap(10)).aggregate(Sum()))
        run.records(*[("a", 1, at * 15) for at in range(3000)])
        run.records(*[("a", 1, at * 15 + 7) for at in range(3000)])
        run.watermark(MAX_TIMESTAMP)
        assert run.rows() == [6000]
        assert run.entries() == {}

    def test_thousands_of_sessions_in_state_are_given_up_one_by_one(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows(EventTimeSessionWindows.with_gap(10)).aggregate(Sum()))
        run.records(*[("a", 1, at * 15) for at in range(3000)])
        run = WindowRun(harness, HEAP, windows(EventTimeSessionWindows.with_gap(10)).aggregate(Sum()), run.snapshot())
        run.watermark(MAX_TIMESTAMP)
        assert run.rows() == [1] * 3000
        assert run.entries() == {}

    def test_a_lateness_to_the_end_of_time_is_one(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().allowed_lateness(MAX_TIMESTAMP).aggregate(Sum()))
        run.records(("a", 1, 1))
        run.watermark(1 << 60)
        run.records(("a", 2, 2))
        assert run.rows() == [1, 3]


class TestBatches:
    def test_a_window_of_a_key_has_one_timer_whatever_comes(self, harness: BackendHarness) -> None:
        run = WindowRun(harness, HEAP, windows().aggregate(Sum()))
        for _ in range(3):
            run.records(*[(key, 1, at) for key in "ab" for at in range(20)])
        assert run.timers.registrations == 4

    def test_late_records_keep_their_place_among_those_of_open_windows(self, harness: BackendHarness) -> None:
        definition = (
            windows(SlidingEventTimeWindows.of(10, 5)).allowed_lateness(100).process(Values(), element_type=int)
        )
        run = WindowRun(harness, HEAP, definition)
        run.watermark(9)
        run.records(("a", 1, 12), ("a", 2, 6), ("a", 3, 11), ("a", 4, 7))
        assert run.rows() == [("a", [2]), ("a", [2, 4])]
        run.watermark(14)
        assert run.rows()[2:] == [("a", [1, 2, 3, 4])]


class TestProcessingTime:
    @BACKENDS
    def test_windows_of_the_clock_fire_and_go(self, harness: BackendHarness, state_backend: Any) -> None:
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

    def test_a_continuous_trigger_fires_by_the_clock(self, harness: BackendHarness) -> None:
        trigger = ContinuousProcessingTimeTrigger.of(4)
        run = WindowRun(harness, HEAP, windows(TumblingProcessingTimeWindows.of(10)).trigger(trigger).aggregate(Sum()))
        for now_ms in range(12):
            run.processing_time(now_ms)
            if now_ms < 9:
                run.records(("a", 1, None))
        assert run.rows() == [4, 8, 9]
        assert run.entries() == {}

    def test_a_purging_trigger_purges_by_the_clock_too(self, harness: BackendHarness) -> None:
        trigger = PurgingTrigger.of(ContinuousProcessingTimeTrigger.of(4))
        run = WindowRun(harness, HEAP, windows(TumblingProcessingTimeWindows.of(10)).trigger(trigger).aggregate(Sum()))
        for now_ms in range(12):
            run.processing_time(now_ms)
            if now_ms < 9:
                run.records(("a", 1, None))
        assert run.rows() == [4, 4, 1]
        assert run.entries() == {}

    def test_sessions_of_the_clock_that_merge_fire_when_the_first_of_them_was_to(self, harness: BackendHarness) -> None:
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


class Pair(NamedTuple):
    """Fields of one's own."""

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
    def test_rows_are_reduced_to_whatever_may_be_emitted(
        self, harness: BackendHarness, state_backend: Any, made: Any
    ) -> None:
        schema = parsed_schema("k string, v bigint", "x")
        run = WindowRun(harness, state_backend, windows().reduce(made), schema=schema)
        row = row_class(schema.names)
        run.records(*[("a", row(("a", value)), value) for value in (1, 2, 3)])
        run.records(("a", row(("a", 4)), 4))
        run.watermark(9)
        assert run.rows() == [("a", 10)]

    def test_what_is_no_record_of_the_columns_is_told(self, harness: BackendHarness) -> None:
        schema = parsed_schema("k string, v bigint", "x")
        run = WindowRun(harness, HEAP, windows().reduce(lambda left, right: {"v": 1}), schema=schema)
        row = row_class(schema.names)
        with pytest.raises(UserFunctionError, match=r"no record of the columns k, v"):
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


def test_state_per_window_is_cleared_by_the_function_and_no_window_has_that_of_another(harness: BackendHarness) -> None:
    descriptor = ValueStateDescriptor("seen", int)
    cleared: OutputTag[Any] = OutputTag("cleared")

    class Counting(ProcessWindowFunction[Any, Any, Any, Any]):
        def open(self, context: Any) -> None:
            self.seen = context.window_state.get_state(descriptor)
            with pytest.raises(StateRegistrationError):
                context.window_state.get_state(ValueStateDescriptor("seen", str))

        def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
            self.seen.update((self.seen.value() or 0) + len(elements))
            yield context.window.start, self.seen.value()

        def clear(self, context: Any) -> None:
            context.output(cleared, (context.window.start, self.seen.value()))
            self.seen.clear()

    definition = windows().trigger(PurgingTrigger.of(EventTimeTrigger())).allowed_lateness(5)
    run = WindowRun(harness, HEAP, definition.process(Counting(), element_type=int), side_outputs=[cleared])
    run.records(("a", 1, 1), ("a", 1, 11))
    run.watermark(10)
    run.records(("a", 1, 2))
    run.watermark(MAX_TIMESTAMP)
    assert run.rows() == [(0, 1), (0, 2), (10, 1)]
    assert [one.row for one in run.emitted if one.tag == cleared] == [(0, 2), (10, 1)]
    assert run.entries() == {}


def test_a_function_over_windows_may_have_nothing_to_say(harness: BackendHarness) -> None:
    class Silent(ProcessWindowFunction[Any, Any, Any, Any]):
        def process(self, key: Any, context: Any, elements: list[Any]) -> Any:
            return [len(elements)] if len(elements) > 1 else None

    run = WindowRun(harness, HEAP, windows().process(Silent(), element_type=int))
    run.records(("a", 1, 1), ("b", 1, 2), ("b", 1, 3))
    run.watermark(MAX_TIMESTAMP)
    assert run.rows() == [2]
    assert run.entries() == {}


def test_a_trigger_of_ones_own_has_state_per_window_and_timers(harness: BackendHarness) -> None:
    descriptor = ValueStateDescriptor("first", int)

    @attrs.frozen
    class FirstAgain(Trigger[Any, Any]):
        """Fires when the first value of a window comes again."""

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


def test_a_wrong_accumulator_is_refused_and_told(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows().aggregate(Sum(), accumulator_type=str))
    with pytest.raises(UserFunctionError, match=r"key 'a', record 1") as failure:
        run.records(("a", 1, 1))
    assert isinstance(failure.value.__cause__, SerializationError)


class TestTwoInputs:
    @BACKENDS
    def test_records_of_two_inputs_meet_in_windows_that_leave_nothing_behind(
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

    def test_a_window_that_less_lateness_has_given_up_goes_with_what_one_input_alone_has_left(
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


def test_a_timer_of_the_clock_gives_up_no_window_of_event_time(harness: BackendHarness) -> None:
    by_the_clock = windows().trigger(ContinuousProcessingTimeTrigger.of(5)).aggregate(Sum())
    run = WindowRun(harness, HEAP, by_the_clock)
    run.records(("a", 1, 1))
    [window] = HOURLY.assign_windows(1, 1)
    # The clock passes the end of the window, which in event time has not come: it fires next when the clock goes on.
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


def test_behind_the_end_of_time_every_record_is_late(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows().aggregate(Sum()))
    run.watermark(MAX_TIMESTAMP)
    run.records(("a", 1, MAX_TIMESTAMP), ("a", 2, MAX_TIMESTAMP - 20))
    assert run.operator.late_records_dropped == 2
    assert run.entries() == {}


def _rise(one: int, other: int) -> int:
    return other - one


EVERY_TRIGGER = pytest.mark.parametrize(
    "trigger",
    [
        EventTimeTrigger(),
        ProcessingTimeTrigger(),
        CountTrigger.of(5),
        ContinuousEventTimeTrigger.of(3),
        ContinuousProcessingTimeTrigger.of(3),
        DeltaTrigger.of(100, _rise, int),
        PurgingTrigger.of(CountTrigger.of(2)),
    ],
    ids=lambda one: type(one).__name__,
)


@EVERY_TRIGGER
def test_whatever_fires_a_window_nothing_of_it_outlives_the_window(trigger: Any, harness: BackendHarness) -> None:
    play(harness, windows().trigger(trigger).aggregate(Sum()), [("a", 1, 1), ("a", 2, 2), ("b", 3, 3)])


@EVERY_TRIGGER
def test_whatever_fires_a_session_nothing_outlives_those_that_became_one(trigger: Any, harness: BackendHarness) -> None:
    sessions = windows(EventTimeSessionWindows.with_gap(10)).trigger(trigger)
    if not trigger.can_merge():
        with pytest.raises(JobDefinitionError, match="cannot merge"):
            sessions.aggregate(Sum())
        return
    run = WindowRun(harness, HEAP, sessions.aggregate(Sum()))
    run.records(("a", 1, 0), ("a", 2, 12), ("a", 4, 6))
    run.watermark(MAX_TIMESTAMP)
    # Timers by the clock of those that were taken in find nothing any more, and go when they are due.
    run.processing_time(100)
    assert run.entries() == {}


def test_what_purges_when_another_trigger_fires_merges_only_if_that_does() -> None:
    sessions = windows(EventTimeSessionWindows.with_gap(10))
    with pytest.raises(JobDefinitionError, match="cannot merge"):
        sessions.trigger(PurgingTrigger.of(DeltaTrigger.of(1, _rise, int))).aggregate(Sum())


def test_a_window_without_an_end_fires_at_the_end_of_time_and_is_not_to_fire_again(harness: BackendHarness) -> None:
    endless = windows(GlobalWindows.create()).trigger(ContinuousEventTimeTrigger.of(5)).aggregate(Sum())
    run = WindowRun(harness, HEAP, endless)
    run.records(("a", 1, 1))
    run.timers.advance_watermark(MAX_TIMESTAMP, lambda *_: None)
    run.operator.on_event_time_timer(5, "a", run.harness.key_group("a"), GLOBAL_WINDOW)
    run.operator.prepare_snapshot()
    assert run.rows() == [1]
    assert run.timers.next_event_time_timer() is None


def test_a_window_that_is_kept_for_ever_has_no_timer_that_gives_it_up(harness: BackendHarness) -> None:
    run = WindowRun(harness, HEAP, windows().allowed_lateness(MAX_TIMESTAMP).aggregate(Sum()))
    run.records(("a", 1, 1))
    assert run.entries() == {"window-contents": 1, "timers": 1}


@pytest.mark.parametrize("gap", [0, -1, "-1 seconds"])
def test_a_gap_of_a_record_that_is_none_is_told_with_the_record(gap: Any, harness: BackendHarness) -> None:
    dynamic = windows(EventTimeSessionWindows.with_dynamic_gap(lambda value: gap)).aggregate(Sum())
    with pytest.raises(UserFunctionError, match=r"key 'a', record 1: .*must be at least 1 ms"):
        WindowRun(harness, HEAP, dynamic).records(("a", 1, 1))


@pytest.mark.parametrize("after", [False, True])
def test_evictors_have_nothing_to_say_of_a_window_with_nothing_in_it(after: bool) -> None:
    [window] = HOURLY.assign_windows(1, 1)
    for evictor in (
        CountEvictor.of(0, after),
        TimeEvictor.of(5, after),
        DeltaEvictor.of(1, _rise, after),
    ):
        assert list(evictor.evict_before([], window)) == list(evictor.evict_after([], window)) == []
