"""Timers by key and namespace, in two queues of the subtask's state: event time and processing time.

There is one timer per time, key and namespace; registering it again changes nothing. Timers are registered and deleted
for the current key. As elements of a priority queue (`statebackend.state`) they are part of every snapshot, move with
their key group when the parallelism changes, and fire by time; equal times fire by the bytes of key and namespace, on
every backend.

The caller advances time. Each due timer is removed from its queue and passed to ``fire``, one by one. A callback sees
the new watermark. It may register and delete timers; timers that are already due fire in the same call. The watermark
never decreases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Generic, Protocol, TypeVar

from attrs import define

from statebackend.state.encoded_priority_queue import EncodedPriorityQueue
from statebackend.state.errors import NoCurrentKeyError
from statebackend.state.priority_queue import KeyGroupedPriorityQueue, PriorityQueueDescriptor, timer_state_name
from statebackend.streaming.time.timestamps import MIN_TIMESTAMP
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.times.timers import Timer, TimerSerializer

__all__ = [
    "DueTimers",
    "EncodedTimers",
    "Fire",
    "FireTogether",
    "InternalTimerService",
    "TimerKey",
    "timer_queue_descriptors",
]

N = TypeVar("N")

NO_KEY_GROUP: Final = -1

_FIRED_TOGETHER: Final = 1 << 15
"""The maximum number of timers in one call of `FireTogether`."""


@define
class TimerKey:
    """The current key, used for new timers. The code that sets the key of the state also sets it here."""

    key: Any = None
    key_group: int = NO_KEY_GROUP

    def leave(self) -> None:
        """Unset the current key."""
        self.key, self.key_group = None, NO_KEY_GROUP


class Fire(Protocol):
    """Receives a due timer, as the operator's ``on_event_time_timer``."""

    def __call__(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None: ...


DueTimers = Sequence[tuple[Timer[Any, Any], int]]
"""Due timers with their key groups, in order."""


class EncodedTimers(DueTimers):
    """Due timers as entries of a queue: an operator may decode many at once."""

    def __init__(self, entries: Sequence[bytes], decode: Callable[[bytes], tuple[Timer[Any, Any], int]]) -> None:
        self.entries = entries
        """The bytes of each timer and its key group as u16."""
        self._decode = decode

    @cached_property
    def _decoded(self) -> list[tuple[Timer[Any, Any], int]]:
        return list(map(self._decode, self.entries))

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: Any) -> Any:
        return self._decoded[index]

    def __iter__(self) -> Iterator[tuple[Timer[Any, Any], int]]:
        return iter(self._decoded)


FireTogether = Callable[[DueTimers], None]
"""Receives due timers, as the operator's ``on_event_time_timers``."""


def timer_queue_descriptors(
    name: str, key_serializer: TypeSerializer[Any], namespace_serializer: TypeSerializer[Any]
) -> tuple[PriorityQueueDescriptor[Timer[Any, Any]], PriorityQueueDescriptor[Timer[Any, Any]]]:
    """The queues of a service with this name: event time and processing time."""
    serializer: TypeSerializer[Timer[Any, Any]] = TimerSerializer(key_serializer, namespace_serializer)
    return (
        PriorityQueueDescriptor(timer_state_name("event", name), serializer),
        PriorityQueueDescriptor(timer_state_name("processing", name), serializer),
    )


class InternalTimerService(Generic[N]):
    """The timers of one service. ``clock`` returns the processing time in milliseconds.

    Methods that register or delete raise `NoCurrentKeyError` without a current key, and `SerializationError` for an
    invalid namespace or time; nothing changes then.
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
        self._event_time_entries: EncodedPriorityQueue[Timer[Any, N]] | None = None
        if isinstance(event_time_queue, EncodedPriorityQueue):
            serializer = event_time_queue.serializer
            if isinstance(serializer, TimerSerializer):
                self._event_time_entries = event_time_queue
                self._write_parts = serializer.compile_write_parts()
        self._processing_time = processing_time_queue
        self._current = current
        self._clock = clock
        self._watermark_ms = watermark_ms
        self.before_firing: Callable[[int, int | None], None] | None = None
        """Called with a new watermark and the time of the first event-time timer, before due timers fire together.

        It may register timers that the operator kept in memory.
        """

    def current_watermark(self) -> int:
        """The watermark in milliseconds, or `MIN_TIMESTAMP` before the first one."""
        return self._watermark_ms

    def current_processing_time(self) -> int:
        """The processing time, in milliseconds since 1970."""
        return self._clock()

    def register_event_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Register a timer of the current key, due when the watermark reaches the time."""
        queue = self._event_time_entries
        if queue is None:
            self._event_time.add(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)
        else:
            queue.add_entry(self._entry(queue, namespace, timestamp_ms))

    def register_event_time_timers(
        self,
        namespace: N,
        timestamp_ms: int,
        keys: Sequence[Any],
        key_groups: Sequence[int],
        rows: Sequence[bytes] | None = None,
    ) -> None:
        """Register a timer for each key. Needs no current key. ``rows`` are those of a `KeyBatch`, if known."""
        queue = self._event_time_entries
        if queue is None or not rows:
            timers = [Timer(timestamp_ms, key, namespace) for key in keys]
            self._event_time.add_all(list(zip(timers, key_groups, strict=True)))
            return
        for key_group in (min(key_groups), max(key_groups)):
            queue.key_groups.require(key_group)
        # Only the keys differ. A timer starts with eight bytes of time, and ends with the namespace.
        first = queue.entry_of(Timer(timestamp_ms, keys[0], namespace), key_groups[0])
        time, rest = first[:8], first[8:-2].removeprefix(rows[0][2:])
        queue.add_entries([time + row[2:] + rest + row[:2] for row in rows])

    def delete_event_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Delete a timer of the current key, if it exists."""
        queue = self._event_time_entries
        if queue is None:
            self._event_time.remove(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)
        else:
            queue.remove_entry(self._entry(queue, namespace, timestamp_ms))

    def register_processing_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Register a timer of the current key, due when the clock reaches the time."""
        self._processing_time.add(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)

    def delete_processing_time_timer(self, namespace: N, timestamp_ms: int) -> None:
        """Delete a timer of the current key, if it exists."""
        self._processing_time.remove(Timer(timestamp_ms, self._key(), namespace), self._current.key_group)

    def advance_watermark(self, timestamp_ms: int, fire: Fire) -> None:
        """Advance event time and fire due timers. A time that is not larger changes nothing."""
        if timestamp_ms <= self._watermark_ms:
            return
        self._watermark_ms = timestamp_ms
        for timer, key_group in self._event_time.poll_while(lambda timer: timer.timestamp <= timestamp_ms):
            fire(timer.timestamp, timer.key, key_group, timer.namespace)

    def advance_watermark_together(self, timestamp_ms: int, fire: FireTogether) -> None:
        """Advance event time and fire due timers in batches. A callback cannot delete timers of its own batch."""
        if timestamp_ms <= self._watermark_ms:
            return
        self._watermark_ms = timestamp_ms
        if self.before_firing is not None:
            self.before_firing(timestamp_ms, self.next_event_time_timer())

        def is_due(timer: Timer[Any, N]) -> bool:
            return timer.timestamp <= timestamp_ms

        # Firing timers may register others that are due.
        queue = self._event_time_entries
        if queue is not None:
            while entries := queue.poll_entries(is_due, _FIRED_TOGETHER):
                fire(EncodedTimers(entries, queue.of_entry))
            return
        while timers := self._event_time.poll_many(is_due, _FIRED_TOGETHER):
            fire(timers)

    def advance_processing_time(self, fire: Fire) -> None:
        """Fire the timers that are due by the clock at the time of the call."""
        now_ms = self._clock()
        for timer, key_group in self._processing_time.poll_while(lambda timer: timer.timestamp <= now_ms):
            fire(timer.timestamp, timer.key, key_group, timer.namespace)

    def next_event_time_timer(self) -> int | None:
        """The time of the first event-time timer in milliseconds, or None."""
        return _time_of(self._event_time.peek())

    def next_processing_time_timer(self) -> int | None:
        """The time of the first processing-time timer in milliseconds, or None."""
        return _time_of(self._processing_time.peek())

    def _entry(self, queue: EncodedPriorityQueue[Timer[Any, N]], namespace: N, timestamp_ms: int) -> bytes:
        """The entry of a timer of the current key. Without an error it creates no `Timer`."""
        current = self._current
        if current.key_group == NO_KEY_GROUP:
            raise _no_key()
        try:
            return self._write_parts(timestamp_ms, current.key, namespace) + queue.suffixes[current.key_group]
        except Exception:
            # It raises the error with its path.
            return queue.entry_of(Timer(timestamp_ms, current.key, namespace), current.key_group)

    def _key(self) -> Any:
        if self._current.key_group == NO_KEY_GROUP:
            raise _no_key()
        return self._current.key


def _no_key() -> NoCurrentKeyError:
    return NoCurrentKeyError("a timer was registered or deleted without a current key")


def _time_of(timer: Timer[Any, Any] | None) -> int | None:
    return None if timer is None else timer.timestamp
