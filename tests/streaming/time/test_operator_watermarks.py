from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from golden_time_traces import as_recorded, element_of, scenarios
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.operator_watermarks import OperatorWatermarks, WatermarkOutlet
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.watermark_generators import END_OF_TIME, Watermark, WatermarkElement, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE
TRACES = scenarios("two_inputs")


def inputs_of(scenario: dict[str, Any]) -> list[list[int]]:
    operator = scenario["operator"]
    return [list(range(operator["inputs"]))] if operator["type"] == "union_keyed_process" else [[0], [1]]


@pytest.mark.parametrize("scenario", TRACES, ids=[one["name"] for one in TRACES])
def test_operators_of_several_inputs_send_the_watermarks_of_flink(scenario: dict[str, Any]) -> None:
    inputs = inputs_of(scenario)
    operator = OperatorWatermarks(inputs)
    sources = [WatermarkOutlet() for _ in range(3)]
    outlet = WatermarkOutlet()
    sent = []
    for at, event in enumerate(scenario["input"]):
        if "record" in event:
            continue
        channel = event["input"]
        index = 0 if len(inputs) == 1 else channel
        element = element_of(event)
        if sources[channel].passes(element):
            sent += as_recorded(at, [one for one in operator.take(index, channel, element) if outlet.passes(one)])
    assert sent == [one for one in scenario["expected"] if "watermark" in one or "status" in one]


def test_an_input_that_returns_late_holds_the_operator_until_it_has_caught_up() -> None:
    operator = OperatorWatermarks([["a"], ["b"]])
    operator.take(0, "a", Watermark(5))
    operator.take(1, "b", Watermark(20))
    assert operator.take(0, "a", IDLE) == (Watermark(20),)
    assert operator.take(0, "a", ACTIVE) == ()
    assert operator.take(1, "b", Watermark(30)) == ()
    assert operator.take(0, "a", Watermark(25)) == (Watermark(25),)


def test_several_valve_outputs_are_processed_step_by_step() -> None:
    operator = OperatorWatermarks([["a", "b"], ["c"]])
    for channel, index, time in [("a", 0, 10), ("b", 0, 5), ("c", 1, 20)]:
        operator.take(index, channel, Watermark(time))
    assert operator.take(0, "a", IDLE) == ()
    assert operator.take(0, "b", IDLE) == (Watermark(10), Watermark(20))
    assert operator.take(1, "c", IDLE) == (IDLE,)


def test_inputs_that_are_all_idle_advance_the_operator_to_their_maximum() -> None:
    operator = OperatorWatermarks([["a"], ["b"]])
    events: list[tuple[int, str, WatermarkElement]] = [
        (0, "a", Watermark(20)),
        (1, "b", Watermark(5)),
        (0, "a", IDLE),
        (1, "b", IDLE),
        (0, "a", ACTIVE),
    ]
    done = [operator.take(*event) for event in events]
    assert done == [(), (Watermark(5),), (), (Watermark(20), IDLE), (ACTIVE,)]


@pytest.mark.parametrize("inputs", [[["a", "b"]], [["a"], ["b"]]], ids=["one input", "two inputs"])
@pytest.mark.parametrize("is_idle_first", [True, False])
def test_an_operator_ends_with_its_last_channel_if_any_was_active_at_its_end(
    inputs: list[list[str]], is_idle_first: bool
) -> None:
    operator = OperatorWatermarks(inputs)
    last = len(inputs) - 1
    assert operator.take(0, "a", IDLE) == ()
    ends = [(0, "a"), (last, "b")] if is_idle_first else [(last, "b"), (0, "a")]
    done = []
    for index, channel in ends:
        assert not operator.has_ended
        done += operator.take(index, channel, END_OF_TIME)
    assert operator.has_ended
    assert done == ([END_OF_TIME] if is_idle_first else [IDLE, ACTIVE, END_OF_TIME])
    assert (operator.watermark_ms, operator.status) == (MAX_TIMESTAMP, ACTIVE)


@pytest.mark.parametrize("inputs", [[["a", "b"]], [["a"], ["b"]]], ids=["one input", "two inputs"])
def test_channels_that_all_end_while_idle_do_not_advance_the_operator(inputs: list[list[str]]) -> None:
    operator = OperatorWatermarks(inputs)
    last = len(inputs) - 1
    operator.take(0, "a", Watermark(20))
    operator.take(last, "b", Watermark(10))
    operator.take(0, "a", IDLE)
    assert operator.take(0, "a", END_OF_TIME) == ()
    # As in Flink, the largest watermark of all idle channels counts, ended or not.
    assert operator.take(last, "b", IDLE) == (Watermark(20), IDLE)
    assert operator.take(last, "b", END_OF_TIME) == ()
    assert operator.has_ended
    assert operator.watermark_ms == 20


def test_a_channel_active_after_an_idle_end_has_not_ended() -> None:
    operator = OperatorWatermarks([["a", "b"]])
    operator.take(0, "a", IDLE)
    operator.take(0, "a", END_OF_TIME)
    operator.take(0, "a", ACTIVE)
    assert operator.take(0, "b", END_OF_TIME) == ()
    assert operator.take(0, "a", Watermark(5)) == (Watermark(5),)


def test_an_idle_outlet_passes_the_end_of_time_and_stays_idle() -> None:
    outlet = WatermarkOutlet(IDLE)
    assert [outlet.passes(one) for one in (Watermark(MAX_TIMESTAMP - 1), END_OF_TIME)] == [False, True]
    assert outlet.status is IDLE


def test_an_outlet_sends_each_status_once() -> None:
    outlet = WatermarkOutlet()
    elements = [ACTIVE, IDLE, IDLE, Watermark(1), ACTIVE, ACTIVE, Watermark(1)]
    assert [outlet.passes(one) for one in elements] == [False, True, False, False, True, False, True]


def test_foreign_events_are_rejected() -> None:
    operator = OperatorWatermarks([["a"]])
    with pytest.raises(IllegalTransitionError, match="no input 1"):
        operator.take(1, "a", Watermark(1))
    with pytest.raises(IllegalTransitionError, match="no input -1"):
        operator.take(-1, "a", IDLE)
    with pytest.raises(IllegalTransitionError, match="no channel 'b'"):
        operator.take(0, "b", IDLE)
    for inputs in ([], [[]], [["a", "a"]]):
        with pytest.raises(ValueError, match=r"needs at least one (input|channel)"):
            OperatorWatermarks(inputs)


def test_a_channel_missing_after_a_restore_is_ignored() -> None:
    operator = OperatorWatermarks([["a", "b"]])
    operator.take(0, "a", Watermark(20))
    operator.take(0, "b", Watermark(10))
    fewer = OperatorWatermarks([["a"]])
    assert fewer.restore(operator.snapshot(), operator.status) == (Watermark(20),)
    assert fewer.watermark_ms == 20


def test_a_channel_added_at_a_restore_neither_holds_nor_decreases() -> None:
    operator = OperatorWatermarks([["a"]])
    operator.take(0, "a", Watermark(20))
    more = OperatorWatermarks([["a", "b"]])
    assert more.restore(operator.snapshot(), operator.status) == ()
    assert more.take(0, "b", Watermark(10)) == ()
    assert more.take(0, "a", Watermark(30)) == (Watermark(30),)


def test_entirely_new_channels_continue_from_the_former_watermark() -> None:
    operator = OperatorWatermarks([["a"]])
    operator.take(0, "a", Watermark(20))
    operator.take(0, "a", IDLE)
    other = OperatorWatermarks([["b"]])
    assert other.restore(operator.snapshot(), operator.status) == (ACTIVE,)
    assert other.take(0, "b", Watermark(20)) == ()
    assert other.take(0, "b", Watermark(21)) == (Watermark(21),)


def test_an_operator_that_becomes_idle_by_a_restore_reports_it_after_the_watermark() -> None:
    operator = OperatorWatermarks([["a", "b"]])
    operator.take(0, "a", Watermark(20))
    operator.take(0, "b", Watermark(10))
    operator.take(0, "a", IDLE)
    # The channel that held the watermark back is removed, and the other one is idle. The watermark must come before
    # that status, because no reader takes a watermark after it.
    fewer = OperatorWatermarks([["a"]])
    assert fewer.restore(operator.snapshot(), operator.status) == (Watermark(20), IDLE)


def test_a_removed_input_is_ignored_after_a_restore_and_a_new_one_is_not() -> None:
    operator = OperatorWatermarks([["a"], ["b"]])
    operator.take(0, "a", Watermark(20))
    operator.take(1, "b", Watermark(10))
    state = operator.snapshot()
    assert OperatorWatermarks([["a"]]).restore(state, ACTIVE) == (Watermark(20),)
    three = OperatorWatermarks([["a"], ["b"], ["c"]])
    assert three.restore(state, ACTIVE) == ()
    assert three.take(1, "b", Watermark(30)) == ()
    assert three.take(2, "c", Watermark(15)) == (Watermark(15),)


times = st.integers(0, 12) | st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP])
elements = st.builds(Watermark, times) | st.sampled_from([IDLE, ACTIVE])
events = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), elements), max_size=40)


@given(events, st.integers(0, 40))
def test_watermarks_only_grow_and_a_snapshot_at_any_point_changes_nothing(
    events: Sequence[tuple[int, int, WatermarkElement]], point: int
) -> None:
    def fresh() -> OperatorWatermarks[int]:
        return OperatorWatermarks([range(2)] * 3)

    operator, restored = fresh(), fresh()
    done: list[WatermarkElement] = []
    for at, event in enumerate(events):
        if at == point:
            assert restored.restore(operator.snapshot(), operator.status) == ()
        now = operator.take(*event)
        if at >= point:
            assert restored.take(*event) == now
        done += now
    watermarks = [one.timestamp_ms for one in done if isinstance(one, Watermark)]
    assert watermarks == sorted(set(watermarks))
    statuses = [one for one in done if isinstance(one, WatermarkStatus)]
    assert statuses == [(IDLE, ACTIVE)[at % 2] for at in range(len(statuses))]
