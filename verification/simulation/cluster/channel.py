"""A channel of the cluster: records and barriers in the order of sending, except for barriers that overtake."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from attrs import define, field, frozen

from statebackend.checkpoint.barriers.elements import CheckpointBarrier

__all__ = ["Cancellation", "Channel", "Origin", "Record"]

Origin = tuple[int, int, int]
"""The origin of a record: a source, its subtask, and the position there."""


@frozen
class Record:
    """Record ``number`` of its channel."""

    number: int
    origin: Origin


@frozen
class Cancellation:
    """A checkpoint is aborted."""

    checkpoint_id: int


Element = Record | CheckpointBarrier | Cancellation


@define(eq=False)
class Channel:
    """A channel; ``place`` is its index among the inputs of its reader."""

    number: int
    sender: str
    reader: str
    capacity: int
    place: int = 0
    stands_still: bool = False
    elements: deque[Element] = field(factory=deque)
    unannounced: list[CheckpointBarrier] = field(factory=list)
    """Barriers in the channel that were not announced to the reader yet."""

    @property
    def has_room(self) -> bool:
        """Whether the sender may send. Barriers do not count towards the capacity."""
        return sum(isinstance(one, Record) for one in self.elements) < self.capacity

    @property
    def has_records(self) -> bool:
        """Whether the channel contains a record, not only barriers."""
        return any(isinstance(one, Record) for one in self.elements)

    def put(self, element: Element) -> None:
        """Send an element; a barrier that may overtake is announced."""
        self.elements.append(element)
        if isinstance(element, CheckpointBarrier) and (element.is_unaligned or element.overtakes_from_ms is not None):
            self.unannounced.append(element)

    def take(self) -> Element:
        """Return the next element."""
        element = self.elements.popleft()
        if element in self.unannounced:
            assert isinstance(element, CheckpointBarrier)
            self.unannounced.remove(element)
        return element

    def overtake(self, checkpoint_id: int) -> Sequence[Record]:
        """Move the barrier of a checkpoint to the front; return the records that it overtakes."""
        elements = list(self.elements)
        at = next(
            place
            for place, one in enumerate(elements)
            if isinstance(one, CheckpointBarrier) and one.checkpoint_id == checkpoint_id
        )
        self.elements = deque([elements[at], *elements[:at], *elements[at + 1 :]])
        return [one for one in elements[:at] if isinstance(one, Record)]

    def __str__(self) -> str:
        return f"{self.sender} to {self.reader}"
