from __future__ import annotations

from typing import Any

import pytest
from golden_time_traces import as_recorded, element_of, scenarios
from hypothesis import given
from hypothesis import strategies as st

from statebackend.checkpoint.errors import IllegalTransitionError
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.streaming.time.timestamps_and_watermarks import WatermarkOutputMultiplexer
from statebackend.streaming.time.watermark_generators import Watermark, WatermarkElement, WatermarkStatus

IDLE, ACTIVE = WatermarkStatus.IDLE, WatermarkStatus.ACTIVE
TRACES = scenarios("watermark_multiplexer")


def played(multiplexer: WatermarkOutputMultiplexer[str], at: int, event: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        return entries_of(multiplexer, at, event)
    except IllegalTransitionError:
        return [{"at": at, "error": True}]


def entries_of(multiplexer: WatermarkOutputMultiplexer[str], at: int, event: dict[str, Any]) -> list[dict[str, Any]]:
    if "register" in event:
        multiplexer.register(event["register"])
        return []
    if "unregister" in event:
        return [{"at": at, "returned": multiplexer.unregister(event["unregister"])}]
    if "periodic" in event:
        return as_recorded(at, multiplexer.on_periodic_emit())
    deferred = event.get("deferred", False)
    return as_recorded(at, multiplexer.take(event["output"], element_of(event), deferred=deferred))


@pytest.mark.parametrize("scenario", TRACES, ids=[one["name"] for one in TRACES])
def test_it_sends_the_output_of_the_flink_multiplexer(scenario: dict[str, Any]) -> None:
    multiplexer: WatermarkOutputMultiplexer[str] = WatermarkOutputMultiplexer()
    sent = [entry for at, event in enumerate(scenario["input"]) for entry in played(multiplexer, at, event)]
    expected = [{"at": one["at"], "error": True} if "error" in one else one for one in scenario["expected"]]
    assert sent == expected


def test_without_outputs_nothing_is_sent() -> None:
    assert WatermarkOutputMultiplexer[str]().on_periodic_emit() == ()


def test_all_idle_outputs_report_it_at_every_update() -> None:
    multiplexer: WatermarkOutputMultiplexer[str] = WatermarkOutputMultiplexer()
    multiplexer.register("p")
    assert multiplexer.take("p", IDLE, deferred=True) == ()
    assert multiplexer.on_periodic_emit() == multiplexer.on_periodic_emit() == (IDLE,)


def test_outputs_that_all_become_idle_emit_the_largest_watermark_before_the_status() -> None:
    multiplexer: WatermarkOutputMultiplexer[str] = WatermarkOutputMultiplexer()
    for output in "pq":
        multiplexer.register(output)
    multiplexer.take("p", Watermark(10), deferred=False)
    assert multiplexer.take("q", Watermark(5), deferred=False) == (Watermark(5),)
    assert multiplexer.take("p", IDLE, deferred=False) == ()
    assert multiplexer.take("q", IDLE, deferred=False) == (Watermark(10),)
    assert multiplexer.on_periodic_emit() == (IDLE,)


def test_an_unregistered_output_is_rejected() -> None:
    multiplexer: WatermarkOutputMultiplexer[str] = WatermarkOutputMultiplexer()
    with pytest.raises(IllegalTransitionError, match="no output 'p'"):
        multiplexer.take("p", Watermark(1), deferred=False)


EVENTS = st.tuples(
    st.sampled_from("pqr"),
    st.one_of(
        st.builds(Watermark, st.integers(0, 9) | st.sampled_from([MIN_TIMESTAMP, MAX_TIMESTAMP])),
        st.sampled_from([IDLE, ACTIVE]),
        st.sampled_from(["register", "unregister", "periodic"]),
    ),
    st.booleans(),
)


@given(st.lists(EVENTS, max_size=40))
def test_its_watermarks_only_grow(events: list[tuple[str, WatermarkElement | str, bool]]) -> None:
    multiplexer: WatermarkOutputMultiplexer[str] = WatermarkOutputMultiplexer()
    sent: list[WatermarkElement] = []
    for output, event, deferred in events:
        if event == "periodic":
            sent += multiplexer.on_periodic_emit()
        elif event == "unregister":
            multiplexer.unregister(output)
        elif output not in multiplexer:
            multiplexer.register(output)
        elif isinstance(event, (Watermark, WatermarkStatus)):
            sent += multiplexer.take(output, event, deferred=deferred)
    watermarks = [one.timestamp_ms for one in sent if isinstance(one, Watermark)]
    assert watermarks == sorted(set(watermarks))


def test_deferred_watermarks_wait_even_if_another_output_is_ahead() -> None:
    multiplexer: WatermarkOutputMultiplexer[str] = WatermarkOutputMultiplexer()
    for name in "ab":
        multiplexer.register(name)
    assert multiplexer.take("a", Watermark(20), deferred=False) == ()
    assert multiplexer.take("b", Watermark(30), deferred=True) == ()
    assert multiplexer.take("a", Watermark(15), deferred=False) == ()
    assert multiplexer.on_periodic_emit() == (Watermark(20),)
