"""Functions over two or more keyed streams share state and timers per key."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import (
    JobDefinitionError,
    KeyedCoProcessFunction,
    KeyedMultipleInputFunction,
    OnTimerContext,
    OutputTag,
    ProcessContext,
    RuntimeContext,
    UserFunctionError,
    ValueStateDescriptor,
)
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.streaming.operators.operator import ObjectBatch
from statebackend.streaming.operators.operator_factories import operator_factory
from statebackend.streaming.runtime.state_registration import registered_states
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from statebackend.testing.operators import OperatorTestHarness
from tests.streaming.operators.parallel_run import BACKENDS, EVENTS, KEYS, ParallelRun

pytestmark = pytest.mark.slow

SIDE = OutputTag[Any]("side")
TOTAL = ValueStateDescriptor("total", int)
WAITS_MS = 5


class Match(KeyedCoProcessFunction[str, int, int, Any]):
    """The first input adds to the total, which a timer emits later; the second input subtracts and emits."""

    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(TOTAL)

    def process_element1(self, value: int, context: ProcessContext[str]) -> None:
        self.total.update((self.total.value() or 0) + value)
        assert context.timestamp is not None
        context.timer_service.register_event_time_timer(context.timestamp + WAITS_MS)

    def process_element2(self, value: int, context: ProcessContext[str]) -> Iterable[Any]:
        total = (self.total.value() or 0) - value
        self.total.update(total)
        yield "second", context.current_key, total

    def on_timer(self, timestamp: int, context: OnTimerContext[str]) -> Iterable[Any]:
        yield "timer", context.current_key, self.total.value()
        if self.total.value() == 0:
            self.total.clear()


@define
class Model:
    watermark: int = MIN_TIMESTAMP
    totals: dict[str, int] = field(factory=dict)
    timers: set[tuple[int, str]] = field(factory=set)
    out: list[Any] = field(factory=list)

    def record(self, side: int, key: str, value: int, time: int) -> None:
        total = self.totals[key] = self.totals.get(key, 0) + (value if side == 0 else -value)
        if side == 0:
            self.timers.add((time + WAITS_MS, key))
        else:
            self.out.append((("second", key, total), time))

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        self.watermark = watermark
        for time, key in sorted(one for one in self.timers if one[0] <= watermark):
            self.timers.remove((time, key))
            total = self.totals.get(key)
            self.out.append((("timer", key, total), time))
            if total == 0:
                del self.totals[key]


def operator_of(function: Any) -> Any:
    return operator_factory(function)(function, "operator")


@settings(max_examples=examples(40), deadline=None)
@given(events=EVENTS, begin=st.sampled_from(sorted(BACKENDS)))
def test_two_inputs_share_one_state_for_any_cut_and_restart(events: list[Any], begin: str) -> None:
    model = Model()
    with tempfile.TemporaryDirectory() as directory:
        run = ParallelRun(BackendHarness(directory), lambda: operator_of(Match()), schemas=(None, None))
        run.start(BACKENDS[begin], 1)
        out = run.play(events, model)
        assert sum(entries.get("total", 0) for entries in run.entries()) == len(model.totals)
        assert all("timers" not in entries for entries in run.entries())
    for key in KEYS:
        assert [(one.row, one.timestamp_ms) for one in out if one.row[1] == key] == [
            row for row in model.out if row[0][1] == key
        ]


class Doing(KeyedCoProcessFunction[str, Any, Any, Any]):
    """Runs the record."""

    def process_element1(self, value: Any, context: ProcessContext[str]) -> Any:
        return value(context)

    def process_element2(self, value: Any, context: ProcessContext[str]) -> Any:
        return value(context)


class DoingForMany(KeyedMultipleInputFunction[str, Any]):
    def open(self, context: RuntimeContext) -> None:
        self.total = context.get_state(TOTAL)

    def process_element(self, input_index: int, value: Any, context: ProcessContext[str]) -> Any:
        if callable(value):
            return value(context)
        self.total.update((self.total.value() or 0) + value)
        return [(input_index, context.current_key, self.total.value(), context.timestamp)]


def opened(directory: Path, function: Any, side: Any = ()) -> OperatorTestHarness:
    run = OperatorTestHarness(
        BackendHarness(str(directory)), HeapStateBackend(), operator_of(function), side_outputs=side
    )
    run.context.timers = type("Timers", (), {"current_watermark": lambda self: 0})()
    return run


def failing(context: Any) -> Any:
    raise ArithmeticError("boom")


@pytest.mark.parametrize(
    ("function", "input_index", "method"),
    [
        (Doing(), 0, "process_element1"),
        (Doing(), 1, "process_element2"),
        (DoingForMany(), 2, "process_element of input 2"),
    ],
)
@pytest.mark.parametrize("time", [None, 5])
def test_an_error_names_operator_key_record_and_the_method_of_the_input(
    function: Any, input_index: int, method: str, time: int | None, tmp_path: Path
) -> None:
    run = opened(tmp_path, function)
    where = "operator 'operator', key 'k', record <function"
    with pytest.raises(UserFunctionError, match=f"{where}.*: {method} raised ArithmeticError: boom"):
        run.records(("k", failing, time), input_index=input_index)
    with pytest.raises(UserFunctionError, match=f"{where}.*{method} returned 'text', which is one record"):
        run.records(("k", lambda context: "text", time), input_index=input_index)


def test_any_number_of_inputs_share_the_state_of_a_key(tmp_path: Path) -> None:
    run = opened(tmp_path, DoingForMany())
    for index, (key, time) in enumerate([("a", 1), ("b", 2), ("a", 3), ("b", None)]):
        run.records((key, 10**index, time), input_index=index)
    assert run.rows() == [(0, "a", 1, 1), (1, "b", 10, 2), (2, "a", 101, 3), (3, "b", 1010, None)]


def test_a_batch_without_timestamps_emits_side_outputs_after_its_rows(tmp_path: Path) -> None:
    run = opened(tmp_path, Doing(), side=[SIDE])

    def give(context: Any) -> Any:
        context.output(SIDE, "side")
        yield context.timestamp

    for index in (1, 0):
        groups = [run.harness.key_group("k")] * 2
        run.operator.process_batch(index, ObjectBatch([give, give], ["k", "k"], groups))
    assert [one.row for one in run.emitted] == [None, None, "side", "side"] * 2


@pytest.mark.parametrize("function", [Doing(), DoingForMany()])
def test_a_function_without_on_timer_cannot_register_a_timer(function: Any, tmp_path: Path) -> None:
    run = opened(tmp_path, function)
    with pytest.raises(JobDefinitionError, match="registers a timer but does not override on_timer"):
        run.records(("k", lambda context: context.timer_service.register_event_time_timer(1), None))


@pytest.mark.parametrize(("function", "timers"), [(Match(), ["user-timers"]), (DoingForMany(), [])])
def test_the_driver_learns_the_states_and_timers(function: Any, timers: list[str]) -> None:
    registered = registered_states(function, "operator", 2, (None, None))
    assert [one.name for one in registered.keyed] == ["total"]
    assert list(registered.timers) == timers
