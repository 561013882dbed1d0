"""The queue of an async operator, as a table: what has been taken in, what has become of it, what may be emitted.

An element is a record or a watermark. A record is in flight until there is a result; what then happens to it:

    in flight   completed          -> done           its results wait for their turn
                failed             -> done           without results: nothing behind it is held up by it
                timed out          -> timed out      timeout() of the function is asked for results in its stead
    timed out   timeout completed  -> done
                timeout failed     -> done           without results
                completed, failed  ignored           the request came back too late
    done        completed, failed, timed out         ignored: an element has one outcome, which is the first
    emitted     as done

A watermark is done at once. What may be emitted goes by *segments*, of which only the first one emits: its elements in
the order in which they were done. A watermark is a segment of its own, and ends the one before it, so that no result
passes it in either direction. Ordered emission is the case in which every record is a segment of its own.

The queue takes as many elements as its capacity, watermarks included; they leave it when they are emitted. It knows
neither clock nor coroutine, and elements are whatever its user puts in. (Flink's ``StreamElementQueue``.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from attrs import define, field

from streamjobs.api.async_definition import EmissionOrder
from streamjobs.errors import StreamJobError

__all__ = [
    "TRANSITIONS",
    "ElementEvent",
    "ElementState",
    "QueuedElement",
    "StreamElementQueue",
    "StreamElementQueueError",
]


class StreamElementQueueError(StreamJobError):
    """An event that cannot be: an error of the operator that drives the queue; nothing has changed."""


class ElementState(Enum):
    """What has become of an element."""

    IN_FLIGHT = "in flight"
    TIMED_OUT = "timed out"
    DONE = "done"
    EMITTED = "emitted"


class ElementEvent(Enum):
    """What the queue is told of an element."""

    COMPLETED = "completed"
    FAILED = "failed"
    TIMED_OUT = "timed out"
    TIMEOUT_COMPLETED = "timeout completed"
    TIMEOUT_FAILED = "timeout failed"


_OUTCOMES: Final = (ElementEvent.COMPLETED, ElementEvent.FAILED, ElementEvent.TIMED_OUT)

TRANSITIONS: Final[Mapping[tuple[ElementState, ElementEvent], ElementState]] = {
    (ElementState.IN_FLIGHT, ElementEvent.COMPLETED): ElementState.DONE,
    (ElementState.IN_FLIGHT, ElementEvent.FAILED): ElementState.DONE,
    (ElementState.IN_FLIGHT, ElementEvent.TIMED_OUT): ElementState.TIMED_OUT,
    (ElementState.TIMED_OUT, ElementEvent.COMPLETED): ElementState.TIMED_OUT,
    (ElementState.TIMED_OUT, ElementEvent.FAILED): ElementState.TIMED_OUT,
    (ElementState.TIMED_OUT, ElementEvent.TIMEOUT_COMPLETED): ElementState.DONE,
    (ElementState.TIMED_OUT, ElementEvent.TIMEOUT_FAILED): ElementState.DONE,
    **{(ElementState.DONE, event): ElementState.DONE for event in _OUTCOMES},
    **{(ElementState.EMITTED, event): ElementState.EMITTED for event in _OUTCOMES},
}
"""An event that leaves the state as it is is ignored; one that is not here is an error."""


@define(eq=False)
class QueuedElement:
    """An element in the queue: what was put in, and its results once it is done.

    ``watermark_ms`` is that of a watermark, None for a record.
    """

    number: int
    content: Any
    watermark_ms: int | None = None
    results: Sequence[Any] = ()
    state: ElementState = ElementState.IN_FLIGHT


@define(eq=False)
class _Segment:
    takes_more: bool
    waiting: int = 0
    done: list[QueuedElement] = field(factory=list)


class StreamElementQueue:
    """See the module; elements are told apart by the numbers that `put` gives, which rise from 0."""

    def __init__(self, order: EmissionOrder, capacity: int) -> None:
        self._order = order
        self._capacity = capacity
        self._elements: dict[int, QueuedElement] = {}
        self._segments: deque[_Segment] = deque()
        self._segment_of: dict[int, _Segment] = {}
        self._next_number = 0
        self._watermarks = 0

    def __len__(self) -> int:
        return len(self._elements)

    def __iter__(self) -> Iterator[QueuedElement]:
        """What is not emitted yet, in the order in which it was put in, watermarks among the records."""
        return iter(self._elements.values())

    @property
    def has_room(self) -> bool:
        """Whether another element may be put in."""
        return len(self._elements) < self._capacity

    @property
    def holds_watermarks(self) -> bool:
        """Whether a watermark is not emitted yet."""
        return self._watermarks > 0

    def put(self, content: Any) -> int:
        """Takes a record, which is in flight from here on; returns its number."""
        element = self._new_element(content, None)
        if self._order is EmissionOrder.ORDERED or not self._segments or not self._segments[-1].takes_more:
            self._segments.append(_Segment(takes_more=self._order is EmissionOrder.UNORDERED))
        segment = self._segments[-1]
        segment.waiting += 1
        self._segment_of[element.number] = segment
        return element.number

    def put_watermark(self, timestamp_ms: int) -> None:
        """Takes a watermark, in milliseconds since 1970."""
        element = self._new_element(None, timestamp_ms)
        element.state = ElementState.DONE
        self._segments.append(_Segment(takes_more=False, done=[element]))
        self._watermarks += 1

    def tell(self, number: int, event: ElementEvent, results: Sequence[Any] = ()) -> bool:
        """Takes an event of a record, with its results if it has any; returns whether anything has come of it.

        Raises `StreamElementQueueError`, and changes nothing, for an event that cannot be.
        """
        state = self._state_of(number)
        following = TRANSITIONS.get((state, event))
        if following is None:
            raise StreamElementQueueError(f"element {number} is {state.value}, and was told {event.value!r}")
        if following is state:
            return False
        element = self._elements[number]
        element.state = following
        if following is ElementState.DONE:
            element.results = results
            segment = self._segment_of.pop(number)
            segment.waiting -= 1
            segment.done.append(element)
        return True

    def take(self) -> list[QueuedElement]:
        """What may be emitted now, in that order; it is emitted with this."""
        taken: list[QueuedElement] = []
        while self._segments:
            segment = self._segments[0]
            taken.extend(segment.done)
            segment.done.clear()
            if segment.waiting:
                break
            self._segments.popleft()
        for element in taken:
            del self._elements[element.number]
            element.state = ElementState.EMITTED
            self._watermarks -= element.watermark_ms is not None
        return taken

    def _new_element(self, content: Any, watermark_ms: int | None) -> QueuedElement:
        if not self.has_room:
            raise StreamElementQueueError(f"the queue is full: it takes {self._capacity} elements")
        element = QueuedElement(self._next_number, content, watermark_ms)
        self._elements[element.number] = element
        self._next_number += 1
        return element

    def _state_of(self, number: int) -> ElementState:
        element = self._elements.get(number)
        if element is not None:
            return element.state
        if 0 <= number < self._next_number:
            return ElementState.EMITTED
        raise StreamElementQueueError(f"there is no element {number}: {self._next_number} were put in")
