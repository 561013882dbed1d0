"""Interval joins equal a naive join, their buffers end empty, and a record has bounded cost."""

from __future__ import annotations

import copy
import pickle
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from attrs import define, field
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    JobDefinitionError,
    JoinContext,
    MissingTimestampError,
    OutputTag,
    ProcessJoinFunction,
    RuntimeContext,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.state.descriptors import as_serializer
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.streaming.connected_streams import IntervalJoin, IntervalJoinDefinition
from statebackend.streaming.operators import interval_join as join_buffer
from statebackend.streaming.operators.interval_join import IntervalJoinOperator
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.rows.declared_schema import DeclaredSchema, parsed_schema
from statebackend.streaming.rows.row_reader import row_class
from statebackend.streaming.runtime.state_registration import registered_states
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness
from tests.streaming.operators.parallel_run import BACKENDS, EVENTS, KEYS, ParallelRun

pytestmark = pytest.mark.slow

LEFT_LATE = OutputTag[Any]("left late")
RIGHT_LATE = OutputTag[Any]("right late")
SIDE = OutputTag[Any]("side")
ON_EACH_BACKEND = pytest.mark.parametrize("state_backend", BACKENDS.values(), ids=BACKENDS)


class Pair(ProcessJoinFunction[str, Any, Any, Any]):
    def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Iterable[Any]:
        assert context.timestamp == max(context.left_timestamp, context.right_timestamp)
        yield context.current_key, left, right, context.left_timestamp, context.right_timestamp


def join_of(lower: int, upper: int, function: Any = None, **given: Any) -> IntervalJoinDefinition:
    numbers = as_serializer(int)
    tags = {"late_left_tag": LEFT_LATE, "late_right_tag": RIGHT_LATE, **given}
    return IntervalJoinDefinition(
        function=function or Pair(), lower_ms=lower, upper_ms=upper, serializers=(numbers, numbers), **tags
    )


def opened(directory: Path, state_backend: Any, definition: Any, *restore: Any, **given: Any) -> OperatorTestHarness:
    operator = IntervalJoinOperator(copy.deepcopy(definition), "join")
    given.setdefault("schemas", (None, None))
    tags = (LEFT_LATE, RIGHT_LATE, SIDE)
    return OperatorTestHarness(
        BackendHarness(str(directory)), state_backend, operator, *restore, side_outputs=tags, **given
    )


@define
class Model:
    """A join of two lists."""

    lower: int
    upper: int
    watermark: int = MIN_TIMESTAMP
    waiting: list[tuple[int, str, int, int, int]] = field(factory=list)
    """Waiting records: input, key, time, value, and the time at which the record is removed."""
    out: list[Any] = field(factory=list)

    def record(self, side: int, key: str, value: int, time: int) -> None:
        if time < self.watermark:
            self.out.append(((LEFT_LATE, RIGHT_LATE)[side], value, time))
            return
        for other, other_key, other_time, other_value, _ in sorted(self.waiting, key=lambda one: one[2]):
            if other == side or other_key != key:
                continue
            both = (time, value), (other_time, other_value)
            (left_time, left), (right_time, right) = both if side == 0 else reversed(both)
            if left_time + self.lower <= right_time <= left_time + self.upper:
                self.out.append((None, (key, left, right, left_time, right_time), max(left_time, right_time)))
        kept = max(self.upper if side == 0 else -self.lower, 0)
        self.waiting.append((side, key, time, value, time + kept))

    def advance(self, watermark: int) -> None:
        if watermark > self.watermark:
            self.watermark = watermark
            self.waiting = [one for one in self.waiting if one[4] > watermark]


@pytest.mark.parametrize("most_times", [0, join_buffer.MOST_TIMES], ids=["forgetful", "knowing"])
@settings(max_examples=examples(30), deadline=None)
@given(events=EVENTS, bounds=st.tuples(st.integers(-8, 8), st.integers(0, 8)), begin=st.sampled_from(sorted(BACKENDS)))
def test_pairs_equal_those_of_a_naive_join_for_any_cut_and_restart(
    most_times: int, events: list[Any], bounds: tuple[int, int], begin: str
) -> None:
    lower, width = bounds
    model = Model(lower, lower + width)
    with tempfile.TemporaryDirectory() as directory, mock.patch.object(join_buffer, "MOST_TIMES", most_times):
        definition = join_of(lower, lower + width)
        run = ParallelRun(
            BackendHarness(directory),
            lambda: IntervalJoinOperator(copy.deepcopy(definition), "join"),
            side_outputs=(LEFT_LATE, RIGHT_LATE),
            schemas=(None, None),
        )
        run.start(BACKENDS[begin], 1)
        out = run.play(events, model)
        assert all(entries == {} for entries in run.entries())
    emitted = [(one.tag, one.row, one.timestamp_ms) for one in out]
    for tag in (LEFT_LATE, RIGHT_LATE):
        assert sorted(row for row in emitted if row[0] == tag) == sorted(row for row in model.out if row[0] == tag)
    for key in KEYS:
        of_key = [row for row in emitted if row[0] is None and row[1][0] == key]
        assert of_key == [row for row in model.out if row[0] is None and row[1][0] == key]


@ON_EACH_BACKEND
def test_a_record_writes_its_own_entry_only(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, state_backend, join_of(0, 0))
    run.records(*(("k", number, 5 if number % 2 else number + 10) for number in range(2_000)))
    run.snapshot()
    run.records(("k", -1, 5))
    run.records(("k", -2, 4_000), input_index=1)
    snapshot = run.harness.snapshot(run.backend)
    # One new entry in each buffer, and a timer for the new time.
    assert snapshot.entries_written == 3
    run.records(("k", -3, 10), input_index=1)
    assert run.rows() == [("k", 0, -3, 10, 10)]


class CountingState(dict[Any, Any]):
    """A map state that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.writes = self.passes = self.looks = 0

    def put(self, key: Any, value: Any) -> None:
        self.writes += 1
        self[key] = value

    def get(self, key: Any) -> Any:  # type: ignore[override]
        self.reads += 1
        return self[key]

    def contains(self, key: Any) -> bool:
        self.looks += 1
        return key in self

    def remove(self, key: Any) -> None:
        self.writes += 1
        del self[key]

    def items(self) -> Any:
        self.passes += 1
        return super().items()


def test_a_look_up_reads_only_the_partners() -> None:
    state = CountingState()
    form: Any = join_of(0, 0).serializers[0]
    buffer = join_buffer.JoinBuffer("left", join_buffer.ElementForm.as_they_are(form), lambda descriptor: state)
    for time in range(100_000):
        buffer.add("k", -time, time)
    assert (state.writes, state.reads, state.looks, state.passes) == (100_000, 0, 100_000, 0)
    assert list(buffer.between("k", 500, 502)) == [(500, -500), (501, -501), (502, -502)]
    assert list(buffer.between("k", 200_000, 300_000)) == []
    buffer.add("k", 1, 501)
    assert list(buffer.between("k", 501, 501)) == [(501, -501), (501, 1)]
    assert (state.reads, state.looks, state.passes) == (5, 100_000, 1)
    for time in range(99_000):
        buffer.remove("k", time)
    assert list(buffer.between("k", 0, 99_001)) == [(99_000, -99_000), (99_001, -99_001)]
    assert (state.writes, state.looks, state.passes) == (199_002, 100_000, 1)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 9, 1000])
def test_records_of_one_time_are_counted_with_a_few_reads(count: int) -> None:
    state = CountingState()
    form: Any = join_of(0, 0).serializers[0]
    state.update({(7, number): number for number in range(count)})
    buffer = join_buffer.JoinBuffer("left", join_buffer.ElementForm.as_they_are(form), lambda descriptor: state)
    buffer.add("k", -1, 7)
    assert state[7, count] == -1
    assert state.looks <= 2 * count.bit_length() + 1
    buffer.remove("k", 7)
    assert state == {}


@ON_EACH_BACKEND
def test_changed_bounds_apply_to_waiting_records_and_leave_nothing(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path / "first", state_backend, join_of(-10, 10))
    run.records(("k", 1, 100), ("k", 2, 105))
    run.records(("k", 3, 90), ("k", 4, 200), input_index=1)
    wider = opened(tmp_path / "first", state_backend, join_of(-50, 200), run.snapshot(), watermark=MIN_TIMESTAMP)
    wider.records(("k", 5, 60), input_index=1)
    # The left record at 100 is removed at 110, as decided when it arrived.
    wider.watermark(110)
    wider.records(("k", 6, 290), input_index=1)
    assert wider.rows() == [("k", 1, 5, 100, 60), ("k", 2, 5, 105, 60), ("k", 2, 6, 105, 290)]
    wider.watermark(MAX_TIMESTAMP)
    assert wider.entries() == {}


def schema_of(ddl: str) -> DeclaredSchema:
    return parsed_schema(ddl, "the test")


def row_of(schema: DeclaredSchema, *values: Any) -> Any:
    return tuple.__new__(row_class(schema.names), values)


@ON_EACH_BACKEND
def test_waiting_records_evolve_with_the_schema_of_their_input(state_backend: Any, tmp_path: Path) -> None:
    class Show(ProcessJoinFunction[str, Any, Any, Any]):
        def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Iterable[Any]:
            yield left.asDict(), right.asDict()

    definition = IntervalJoinDefinition(function=Show(), lower_ms=-5, upper_ms=5)
    old, right = schema_of("k string, n int"), schema_of("k string, x double")
    run = opened(tmp_path, state_backend, definition, schemas=(old, right))
    run.records(("k", row_of(old, "k", 1), 10))
    new = schema_of("note string, n bigint, k string")
    after = opened(tmp_path, state_backend, definition, run.snapshot(), schemas=(new, right))
    after.records(("k", row_of(right, "k", 0.5), 12), input_index=1)
    assert after.rows() == [({"note": None, "n": 1, "k": "k"}, {"k": "k", "x": 0.5})]


def test_records_of_unknown_type_are_rejected_with_their_side(tmp_path: Path) -> None:
    definition = IntervalJoinDefinition(function=Pair(), lower_ms=0, upper_ms=0)
    schema = schema_of("k string")
    for schemas, reported in (((None, schema), "keeps left records"), ((schema, None), "right_type=")):
        with pytest.raises(JobDefinitionError, match=f"operator 'join': .*{reported}"):
            opened(tmp_path, HeapStateBackend(), definition, schemas=schemas)


@pytest.mark.parametrize("timestamps", [None, [None]])
def test_a_record_without_a_timestamp_is_rejected_by_name(timestamps: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), join_of(0, 0))
    batch = ObjectBatch([7], ["k"], [run.harness.key_group("k")], timestamps)
    reported = r"^operator 'join', key 'k', right record 7: the record has no timestamp.*with_timestamps"
    with pytest.raises(MissingTimestampError, match=reported):
        run.operator.process_batch(1, batch)
    assert run.entries() == {}


@ON_EACH_BACKEND
def test_a_late_record_waits_for_no_partner_and_one_at_the_watermark_is_not_late(
    state_backend: Any, tmp_path: Path
) -> None:
    run = opened(tmp_path, state_backend, join_of(-5, 5, late_right_tag=None))
    run.watermark(10)
    run.records(("k", 1, 9), ("k", 2, 10))
    run.records(("k", 3, 9), ("k", 4, 12), input_index=1)
    emitted = [(one.tag, one.row, one.timestamp_ms) for one in run.emitted]
    assert emitted == [(LEFT_LATE, 1, 9), (None, ("k", 2, 4, 10, 12), 12)]
    assert run.entries() == {"interval-join-left": 1, "interval-join-right": 1, "timers": 2}


@ON_EACH_BACKEND
def test_times_near_the_ends_of_time_are_removed_at_the_end(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, state_backend, join_of(-(1 << 62), 1 << 62))
    ends = (MIN_TIMESTAMP, MAX_TIMESTAMP - 1)
    for side in (0, 1):
        run.records(*(("k", time, time) for time in ends), input_index=side)
    assert run.rows() == [("k", time, time, time, time) for time in ends]
    run.watermark(MAX_TIMESTAMP)
    assert run.entries() == {}


class Counting(Pair):
    """Counts pairs per key, emits each to a side output, and runs the record."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(ValueStateDescriptor("count", int))

    def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        context.output(SIDE, count)
        if right == 13:
            raise ArithmeticError("boom")
        return None if right < 0 else "pair"


def test_a_function_has_state_and_side_outputs_and_its_exceptions_name_both_records(tmp_path: Path) -> None:
    run = opened(tmp_path, HeapStateBackend(), join_of(-5, 5, Counting()))
    run.records(("k", 1, 10))
    run.records(("k", -2, 12), ("k", -3, 7), input_index=1)
    assert [(one.tag, one.row, one.timestamp_ms) for one in run.emitted] == [(SIDE, 1, 12), (SIDE, 2, 10)]
    with pytest.raises(UserFunctionError, match="left record 1, right record 13: process_element raised Arithmetic"):
        run.records(("k", 13, 10), input_index=1)
    with pytest.raises(UserFunctionError, match=r"left record 1, right record 4: .*'pair', which is one record"):
        run.records(("k", 4, 10), input_index=1)


def test_the_driver_learns_buffers_timers_and_state_of_the_function() -> None:
    definition = pickle.loads(pickle.dumps(join_of(-5, 5, Counting())))
    registered = registered_states(definition, "join", 2, (None, None))
    assert [one.name for one in registered.keyed] == ["interval-join-left", "interval-join-right", "count"]
    assert list(registered.timers) == ["interval-join-timers"]
    assert definition.user_functions == (definition.function,)


@pytest.mark.parametrize(
    ("make", "reported"),
    [
        (lambda join: join.process(Pair()), "chain between"),
        (lambda join: join.between("1 minute", "-1 minute").process(Pair()), "lower bound .* is 60000 ms"),
        (lambda join: join.between(0, 0).process(Pair), "not the class Pair; make an instance"),
        (lambda join: join.between("soon", 0), "the lower bound is 'soon'"),
        (lambda join: join.between(0, 0).side_output_left_late_data("late").process(Pair()), "not to 'late'"),
    ],
)
def test_an_incomplete_join_is_rejected(make: Any, reported: str) -> None:
    with pytest.raises(JobDefinitionError, match=reported):
        make(IntervalJoin(lambda definition, **_: definition))


@ON_EACH_BACKEND
def test_late_records_without_a_side_output_are_counted(state_backend: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, state_backend, join_of(-5, 5, late_left_tag=None, late_right_tag=None))
    run.watermark(10)
    run.records(("k", 1, 9), ("k", 2, 10))
    run.records(("k", 3, 8), ("k", 4, 9), input_index=1)
    assert run.emitted == []
    assert run.operator.late_records == {None: 3}


@ON_EACH_BACKEND
def test_a_record_waits_at_least_until_its_own_time_even_if_all_partners_are_earlier(
    state_backend: Any, tmp_path: Path
) -> None:
    run = opened(tmp_path, state_backend, join_of(-10, -5))
    run.records(("k", 1, 100))
    run.watermark(95)
    run.records(("k", 2, 95), input_index=1)
    assert run.rows() == [("k", 1, 2, 100, 95)]


def test_a_function_gets_the_started_epoch(tmp_path: Path) -> None:
    class Telling(Pair):
        def process_element(self, left: Any, right: Any, context: JoinContext[str]) -> Iterable[Any]:
            yield context.epoch_id

    run = opened(tmp_path, HeapStateBackend(), join_of(0, 0, Telling()))
    run.records(("k", 1, 1))
    run.operator.prepare_snapshot()
    run.operator.begin_epoch(2)
    run.records(("k", 1, 1), input_index=1)
    assert run.rows() == [2]


@pytest.mark.parametrize(
    ("lower", "upper", "partners"),
    [(True, True, [5, 6, 7]), (False, True, [6, 7]), (True, False, [5, 6]), (False, False, [6])],
)
def test_an_exclusive_bound_excludes_a_record_at_the_bound(
    lower: bool, upper: bool, partners: list[int], tmp_path: Path
) -> None:
    definition = join_of(-5, -3, is_lower_inclusive=lower, is_upper_inclusive=upper)
    for sides in ((0, 1), (1, 0)):
        run = opened(tmp_path / str(sides), HeapStateBackend(), definition)
        for side in sides:
            run.records(*[[("k", 10, 10)], [("k", time, time) for time in range(4, 9)]][side], input_index=side)
        assert [right for _, _, right, _, _ in run.rows()] == partners
