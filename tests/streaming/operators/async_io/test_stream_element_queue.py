"""The queue of an async operator: which results and watermarks it may emit, and when."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend.streaming.async_functions import EmissionOrder
from statebackend.streaming.operators.async_wait import (
    TRANSITIONS,
    ElementEvent,
    ElementState,
    StreamElementQueue,
    StreamElementQueueError,
)

ORDERED, UNORDERED = EmissionOrder.ORDERED, EmissionOrder.UNORDERED
COMPLETED, FAILED, TIMED_OUT = ElementEvent.COMPLETED, ElementEvent.FAILED, ElementEvent.TIMED_OUT


def taken(queue: StreamElementQueue) -> list[Any]:
    """Results, and watermarks as ``("W", time)``."""
    out: list[Any] = []
    for element in queue.take():
        out.extend(element.results if element.watermark_ms is None else [("W", element.watermark_ms)])
    return out


def filled(order: EmissionOrder, *elements: Any, capacity: int = 100) -> tuple[StreamElementQueue, list[int]]:
    """A queue with records, and watermarks as ``("W", time)``; the numbers of the records."""
    queue = StreamElementQueue(order, capacity)
    numbers = []
    for element in elements:
        if isinstance(element, tuple):
            queue.put_watermark(element[1])
        else:
            numbers.append(queue.put(element))
    return queue, numbers


def test_ordered_results_wait_for_earlier_ones() -> None:
    queue, (one, two, three) = filled(ORDERED, "a", "b", "c")
    queue.handle(three, COMPLETED, ["C"])
    queue.handle(two, COMPLETED, ["B"])
    assert taken(queue) == []
    queue.handle(one, COMPLETED, ["A"])
    assert taken(queue) == ["A", "B", "C"]
    assert len(queue) == 0


def test_unordered_results_are_emitted_on_completion() -> None:
    queue, (one, two, three) = filled(UNORDERED, "a", "b", "c")
    queue.handle(three, COMPLETED, ["C"])
    assert taken(queue) == ["C"]
    queue.handle(two, COMPLETED, ["B", "b"])
    queue.handle(one, COMPLETED, ["A"])
    assert taken(queue) == ["B", "b", "A"]


def test_no_result_passes_a_watermark_unordered() -> None:
    queue, (one, two, three) = filled(UNORDERED, "a", "b", ("W", 2), "c")
    queue.handle(three, COMPLETED, ["C"])
    queue.handle(two, COMPLETED, ["B"])
    assert taken(queue) == ["B"]
    queue.handle(one, COMPLETED, ["A"])
    assert taken(queue) == ["A", ("W", 2), "C"]


@pytest.mark.parametrize("order", EmissionOrder)
def test_a_watermark_alone_is_emitted_at_once_and_several_keep_their_order(order: EmissionOrder) -> None:
    queue, [one] = filled(order, ("W", 1), ("W", 2), "a", ("W", 3), ("W", 4))
    assert taken(queue) == [("W", 1), ("W", 2)]
    queue.handle(one, COMPLETED, [])
    assert taken(queue) == [("W", 3), ("W", 4)]
    queue.put_watermark(5)
    assert taken(queue) == [("W", 5)]


@pytest.mark.parametrize("order", EmissionOrder)
@pytest.mark.parametrize("again", [COMPLETED, FAILED, TIMED_OUT])
def test_an_element_has_one_outcome_and_a_second_is_ignored(order: EmissionOrder, again: ElementEvent) -> None:
    queue, (one, two) = filled(order, "a", "b")
    assert queue.handle(one, COMPLETED, ["A"])
    assert not queue.handle(one, again, ["again"])
    assert taken(queue) == ["A"]
    assert not queue.handle(one, again, ["again"])
    assert taken(queue) == []
    assert queue.handle(two, COMPLETED, ["B"])
    assert taken(queue) == ["B"]


@pytest.mark.parametrize("order", EmissionOrder)
def test_a_late_result_is_ignored_while_timeout_runs_and_its_results_count(order: EmissionOrder) -> None:
    queue, [one] = filled(order, "a")
    assert queue.handle(one, TIMED_OUT)
    assert not queue.handle(one, COMPLETED, ["late"])
    assert not queue.handle(one, FAILED)
    assert taken(queue) == []
    assert queue.handle(one, ElementEvent.TIMEOUT_COMPLETED, ["instead"])
    assert taken(queue) == ["instead"]


@pytest.mark.parametrize("order", EmissionOrder)
@pytest.mark.parametrize("by_timeout", [False, True])
def test_a_failed_element_blocks_nothing(order: EmissionOrder, by_timeout: bool) -> None:
    queue, (one, two) = filled(order, "a", "b")
    queue.handle(two, COMPLETED, ["B"])
    if by_timeout:
        queue.handle(one, TIMED_OUT)
        queue.handle(one, ElementEvent.TIMEOUT_FAILED)
    else:
        queue.handle(one, FAILED)
    assert taken(queue) == ["B"]
    assert len(queue) == 0


def test_capacity_counts_unemitted_elements_including_watermarks() -> None:
    queue, (one, two) = filled(ORDERED, "a", ("W", 1), "b", capacity=3)
    assert not queue.has_room
    queue.handle(two, COMPLETED, ["B"])
    assert not queue.has_room
    for put in (lambda: queue.put("c"), lambda: queue.put_watermark(2)):
        with pytest.raises(StreamElementQueueError, match="the queue is full: it takes 3 elements"):
            put()
    assert len(queue) == 3
    queue.handle(one, COMPLETED, ["A"])
    assert taken(queue) == ["A", ("W", 1), "B"]
    assert queue.has_room


@pytest.mark.parametrize("order", EmissionOrder)
def test_unemitted_elements_are_listed_in_order_of_arrival(order: EmissionOrder) -> None:
    queue, (one, _, three) = filled(order, "a", "b", ("W", 7), "c")
    queue.handle(three, COMPLETED, ["C"])
    queue.handle(one, COMPLETED, ["A"])
    taken(queue)
    assert [(element.content, element.watermark_ms) for element in queue] == [("b", None), (None, 7), ("c", None)]


@pytest.mark.parametrize("state", ElementState)
@pytest.mark.parametrize("event", ElementEvent)
def test_an_event_outside_of_the_table_is_an_error_that_changes_nothing(
    state: ElementState, event: ElementEvent
) -> None:
    queue, [number] = filled(ORDERED, "a")
    for step in {
        ElementState.IN_FLIGHT: [],
        ElementState.TIMED_OUT: [TIMED_OUT],
        ElementState.DONE: [COMPLETED],
        ElementState.EMITTED: [COMPLETED],
    }[state]:
        queue.handle(number, step, ["A"] if step is COMPLETED else [])
    if state is ElementState.EMITTED:
        taken(queue)
    if (state, event) in TRANSITIONS:
        assert queue.handle(number, event) == (TRANSITIONS[state, event] is not state)
        return
    with pytest.raises(StreamElementQueueError, match=f"element 0 is {state.value} and received event '{event.value}'"):
        queue.handle(number, event)
    assert [element.state for element in queue] == [] if state is ElementState.EMITTED else [state]


@pytest.mark.parametrize("number", [-1, 1])
def test_an_unknown_element_is_an_error(number: int) -> None:
    queue, _ = filled(UNORDERED, "a")
    with pytest.raises(StreamElementQueueError, match=f"there is no element {number}: 1 were put in"):
        queue.handle(number, COMPLETED)


def expected(order: EmissionOrder, elements: Sequence[Any], completions: Sequence[int]) -> list[Any]:
    """The model: segment by segment between watermarks, in order of arrival or of completion."""
    out: list[Any] = []
    rank = {number: position for position, number in enumerate(completions)}
    for is_watermark, group in itertools.groupby(enumerate(elements), lambda pair: pair[1] is None):
        places = [place for place, _ in group]
        if is_watermark:
            out.extend(("W", place) for place in places)
        else:
            out.extend(places if order is ORDERED else sorted(places, key=rank.__getitem__))
    return out


@settings(deadline=None, max_examples=examples(60))
@given(st.data(), st.sampled_from(EmissionOrder), st.lists(st.sampled_from(["record", None]), max_size=12))
def test_any_order_of_completions_equals_the_model(
    data: st.DataObject, order: EmissionOrder, elements: list[str | None]
) -> None:
    queue = StreamElementQueue(order, max(len(elements), 1))
    places = [place for place, element in enumerate(elements) if element is not None]
    for place, element in enumerate(elements):
        if element is None:
            queue.put_watermark(place)
        else:
            assert queue.put(place) == place
    completions = data.draw(st.permutations(places))
    out = taken(queue)
    for place in completions:
        queue.handle(place, COMPLETED, [place])
        if data.draw(st.booleans()):
            out += taken(queue)
    out += taken(queue)
    assert out == expected(order, elements, completions)
    assert len(queue) == 0
