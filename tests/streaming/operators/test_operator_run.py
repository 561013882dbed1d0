"""The order of calls on an operator: every call in every phase, and failures."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from statebackend import UserFunctionError
from statebackend.streaming.operators.operator import CollectingEmitter, ObjectBatch, Operator
from statebackend.streaming.operators.operator_run import TRANSITIONS, Call, OperatorCallError, OperatorRun, Phase

BATCH = ObjectBatch([], [], [])
CONTEXT: Any = object()


class Noting(Operator):
    """Records its calls, and fails in given ones."""

    def __init__(self, **failures: BaseException) -> None:
        self.calls: list[str] = []
        self._failures = failures

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call in self._failures:
            raise self._failures[call]

    def open(self, context: Any, emitter: Any) -> None:
        self._note("open")

    def process_batch(self, input_index: int, batch: Any) -> None:
        self._note("process_batch")

    def on_watermark(self, timestamp_ms: int) -> None:
        self._note("on_watermark")

    def let_watermarks_out(self) -> None:
        self._note("let_watermarks_out")

    def await_in_flight(self) -> None:
        self._note("await_in_flight")

    def on_event_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._note("on_event_time_timer")

    def on_event_time_timers(self, due: Any) -> None:
        self._note("on_event_time_timers")

    def on_processing_time_timer(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        self._note("on_processing_time_timer")

    def prepare_snapshot(self) -> None:
        self._note("prepare_snapshot")

    def close(self) -> None:
        self._note("close")


CALLS: dict[str, tuple[Call, Callable[[OperatorRun], None]]] = {
    "process_batch": (Call.PROCESS_BATCH, lambda run: run.process_batch(0, BATCH)),
    "on_watermark": (Call.WATERMARK, lambda run: run.on_watermark(5)),
    "let_watermarks_out": (Call.WATERMARK, lambda run: run.let_watermarks_out()),
    "await_in_flight": (Call.WATERMARK, lambda run: run.await_in_flight()),
    "on_event_time_timer": (Call.TIMER, lambda run: run.on_event_time_timer(5, "k", 0, None)),
    "on_event_time_timers": (Call.TIMER, lambda run: run.on_event_time_timers([])),
    "on_processing_time_timer": (Call.TIMER, lambda run: run.on_processing_time_timer(5, "k", 0, None)),
    "prepare_snapshot": (Call.PREPARE_SNAPSHOT, lambda run: run.prepare_snapshot()),
}


def run_in(phase: Phase) -> tuple[Noting, OperatorRun, Any]:
    """A run in that phase, with its open resources."""
    failure = ArithmeticError("as it must")
    operator = Noting(on_watermark=failure) if phase is Phase.FAILED else Noting()
    run = OperatorRun(operator, "operator")
    opened = run.opened(CONTEXT, CollectingEmitter())
    if phase is not Phase.CREATED:
        opened.__enter__()
    if phase is Phase.PREPARED:
        run.prepare_snapshot()
    if phase is Phase.CLOSED:
        opened.__exit__(None, None, None)
    if phase is Phase.FAILED:
        with pytest.raises(ArithmeticError):
            run.on_watermark(1)
    assert run.phase is phase
    return operator, run, opened


@pytest.mark.parametrize(("phase", "method"), list(itertools.product(Phase, CALLS)))
def test_every_call_in_every_phase_is_listed_or_changes_nothing_and_names_both(phase: Phase, method: str) -> None:
    operator, run, _ = run_in(phase)
    call, make = CALLS[method]
    before = list(operator.calls)
    following = TRANSITIONS.get((phase, call))
    if following is None:
        with pytest.raises(OperatorCallError, match=f"is {phase.value}, which does not allow {call.value}"):
            make(run)
        assert (operator.calls, run.phase) == (before, phase)
    else:
        make(run)
        assert (operator.calls, run.phase) == ([*before, method], following)


@pytest.mark.parametrize("phase", Phase)
def test_an_operator_is_opened_once(phase: Phase) -> None:
    operator, run, _ = run_in(phase)
    before = list(operator.calls)
    if phase is Phase.CREATED:
        with run.opened(CONTEXT, CollectingEmitter()):
            assert run.phase is Phase.OPENED
        assert operator.calls == ["open", "close"]
    else:
        with pytest.raises(OperatorCallError, match="does not allow open"), run.opened(CONTEXT, CollectingEmitter()):
            pass
        assert (operator.calls, run.phase) == (before, phase)


def test_records_may_follow_a_prepared_snapshot_and_another_barrier_them() -> None:
    operator, run, opened = run_in(Phase.PREPARED)
    run.prepare_snapshot()
    run.process_batch(0, BATCH)
    run.prepare_snapshot()
    opened.__exit__(None, None, None)
    assert run.phase is Phase.CLOSED
    assert operator.calls[1:] == ["prepare_snapshot", "prepare_snapshot", "process_batch", "prepare_snapshot", "close"]


@pytest.mark.parametrize("failing", ["open", *CALLS])
def test_an_operator_is_closed_once_after_any_failure_and_the_failure_is_raised(failing: str) -> None:
    operator = Noting(**{failing: ArithmeticError("as it must")})
    run = OperatorRun(operator, "operator")
    with pytest.raises(ArithmeticError, match="as it must"), run.opened(CONTEXT, CollectingEmitter()):
        CALLS[failing][1](run)
    assert operator.calls == (["open", "close"] if failing == "open" else ["open", failing, "close"])
    assert run.phase is Phase.CLOSED


def test_the_first_failure_is_raised_when_close_fails_too() -> None:
    for failure, reported in (
        (UserFunctionError("first"), r"^first; close\(\) then failed too: second$"),
        (ArithmeticError("first"), "^first$"),
        (KeyboardInterrupt("first"), "^first$"),
    ):
        operator = Noting(process_batch=failure, close=OSError("second"))
        run = OperatorRun(operator, "operator")
        with pytest.raises(type(failure), match=reported), run.opened(CONTEXT, CollectingEmitter()):
            run.process_batch(0, BATCH)
        assert run.phase is Phase.CLOSED


def test_a_failure_of_close_alone_is_raised() -> None:
    run = OperatorRun(Noting(close=OSError("the connection is gone")), "operator")
    with pytest.raises(OSError, match="the connection is gone"), run.opened(CONTEXT, CollectingEmitter()):
        pass
    assert run.phase is Phase.CLOSED


def test_an_operator_without_timers_rejects_a_due_one() -> None:
    class Plain(Noting):
        on_event_time_timer = Operator.on_event_time_timer
        on_processing_time_timer = Operator.on_processing_time_timer

    for timer in ("on_event_time_timer", "on_processing_time_timer"):
        run = OperatorRun(Plain(), "operator")
        with (
            pytest.raises(NotImplementedError, match="Plain registers no timers"),
            run.opened(CONTEXT, CollectingEmitter()),
        ):
            CALLS[timer][1](run)


def test_an_emitter_keeps_output_in_order_until_it_is_taken() -> None:
    emitter = CollectingEmitter()
    emitter.emit(None, [1, 2])
    emitter.emit(None, [])
    emitter.emit(None, [3], [7])
    assert list(emitter.taken()) == [(None, [1, 2], None, False), (None, [3], [7], False)]
    assert list(emitter.taken()) == []
