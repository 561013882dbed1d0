"""Timers by key and namespace, in two queues of the subtask's state: those of event time and those of processing time.

A timer is a moment, a key and a namespace, and there is one of each: registering it again changes nothing. It is
registered and deleted for the key that is current. As an element of a priority queue (`statebackend.state`) it is a
part of every snapshot, goes with its key group when the parallelism changes, and is due in the order of time; of one
moment, in the order of the bytes of key and namespace, on every backend.

Whoever runs the operator moves time on. Each timer that is due then is taken out of its queue and given to ``fire``,
one by one: what fires may register and delete others, and those that are due meanwhile fire in the same advance, in
their turn. The watermark is the new one already while they do. It never goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import define

from statebackend.state.errors import NoCurrentKeyError
from statebackend.state.priority_queue import KeyGroupedPriorityQueue, PriorityQueueDescriptor, timer_state_name
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import Timer, TimerSerializer

__all__ = [
    "DueTimers",
    "Fire",
    "FireTogether",
    "InternalTimerService",
    "TimerKey",
    "timer_queue_descriptors",
]

N = TypeVar("N")

NO_KEY_GROUP: Final = -1

_FIRED_TOGETHER: Final = 8192
"""Timers that are taken out of the queue at once where those that fire change none."""


@define
class TimerKey:
    """The key for which timers are registered; whoever makes a key current in the state says it here too."""

    key: Any = None
    key_group: int = NO_KEY_GROUP

    def leave(self) -> None:
        """Makes no key current."""
        self.key, self.key_group = None, NO_KEY_GROUP


class Fire(Protocol):
    """What a timer that is due is given to, as the operator's ``on_event_time_timer``."""

    def __call__(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None: ...


DueTimers = Sequence[tuple[Timer[Any, Any], int]]
"""Timers that are due, with their key groups, in their order."""

FireTogether = Callable[[DueTimers], None]
"""What timers that are due are given to, as the operator's ``on_event_time_timers``."""


def timer_queue_descriptors(
    name: str, key_serializer: TypeSerializer[Any], namespace_serializer: TypeSerializer[Any]
) -> tuple[PriorityQueueDescriptor[Timer[Any, Any]], PriorityQueueDescriptor[Timer[Any, Any]]]:
    """The queues of a service of that name: of event time, and of processing time."""
    serializer: TypeSerializer[Timer[Any, Any]] = TimerSerializer(key_serializer, namespace_serializer)
    return (
        PriorityQueueDescriptor(timer_state_name("event", name), serializer),
        PriorityQueueDescriptor(timer_state_name("processing", name), serializer),
    )


class InternalTimerService(Generic[N]):
    """See the module. ``clock`` gives the processing time in milliseconds, and is what the runtime has it be.

    Methods that register or delete raise `NoCurrentKeyError` while no key is current, and `SerializationError` for a
    namespace or a time that does not fit; nothing has changed then.
    """

    def __init__(
        self,
        event_time_queue: KeyGroupedPriorityQueue[Timer[Any, N]],
        processing_time_queue: KeyGroupedPriorityQueue[Timer[Any, N]],
        current: TimerKey,
        clock: Callable[[], int],
        watermark_ms: int = MIN_TIMESTAMP,
    ) -> None:
        self._event_time = event_time_queue
        self._processing_time = processing_time_queue
        self._current = current
        self._clock = clock
        self._watermark_ms = watermark_ms

    def current_watermark(self) -> int:
        """The watermark, in milliseconds; `MIN_TIMESTAMP` before the first."""
        return self._watermark_ms

    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""
        return self._clock()

    def register_event_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Registers a timer of the current key, due when the watermark has reached the time."""
        self._event_time.add(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)

    def register_event_time_timers(
        self, namespace: N, timestamp_ms: int, keys: Sequence[Any], key_groups: Sequence[int]
    ) -> None:
        """Registers a timer of each of the keys, none of which need be current; raises as the others."""
        timers = [Timer(timestamp_ms, key, namespace) for key in keys]
        self._event_time.add_all(list(zip(timers, key_groups, strict=True)))

    def delete_event_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Takes a timer of the current key away, if it is there."""
        self._event_time.remove(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)

    def register_processing_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Registers a timer of the current key, due when the clock has reached the time."""
        self._processing_time.add(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)

    def delete_processing_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Takes a timer of the current key away, if it is there."""
        self._processing_time.remove(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)

    def advance_watermark(self, timestamp_ms: int, fire: Fire) -> None:
        """Moves event time on, and fires what is due; a time that is no progress changes nothing."""
        if timestamp_ms <= self._watermark_ms:
            return
        self._watermark_ms = timestamp_ms
        for timer, key_group in self._event_time.poll_while(lambda timer: timer.timestamp <= timestamp_ms):
            fire(timer.timestamp, timer.key, key_group, timer.namespace)

    def advance_watermark_together(self, timestamp_ms: int, fire: FireTogether) -> None:
        """As `advance_watermark`, for an operator of which no timer that fires registers or deletes one.

        The timers are given out many at a time, in the same order.
        """
        if timestamp_ms <= self._watermark_ms:
            return
        self._watermark_ms = timestamp_ms
        due = self._event_time.poll_while(lambda timer: timer.timestamp <= timestamp_ms)
        while timers := list(islice(due, _FIRED_TOGETHER)):
            fire(timers)

    def advance_processing_time(self, fire: Fire) -> None:
        """Fires what is due by the clock, as it stands at the call."""
        now_ms = self._clock()
        for timer, key_group in self._processing_time.poll_while(lambda timer: timer.timestamp <= now_ms):
            fire(timer.timestamp, timer.key, key_group, timer.namespace)

    def next_event_time_timer(self) -> int | None:
        """When the first timer of event time is due, in milliseconds; None if there is none."""
        return _time_of(self._event_time.peek())

    def next_processing_time_timer(self) -> int | None:
        """When the first timer of processing time is due, in milliseconds; None if there is none."""
        return _time_of(self._processing_time.peek())

    def _key(self) -> Any:
        if self._current.key_group == NO_KEY_GROUP:
            raise NoCurrentKeyError("a timer was registered or deleted while no key is current")
        return self._current.key


def _time_of(timer: Timer[Any, Any] | None) -> int | None:
    return None if timer is None else timer.timestamp
