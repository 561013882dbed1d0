"""The internal timer service on both backends; the cases are those of Flink's ``InternalTimerServiceImplTest``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.errors import NoCurrentKeyError
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.streaming.time.internal_timer_service import InternalTimerService, TimerKey, timer_queue_descriptors
from statebackend.streaming.time.timestamps import MAX_TIMESTAMP, MIN_TIMESTAMP
from statebackend.testing.backends.harness import BackendHarness
from typeserializers.containers.lists import ListSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.times.timers import Timer, TimerSerializer


class Timers:
    """A service over its own backend, and the fired timers."""

    def __init__(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        event, processing = timer_queue_descriptors("timers", LongSerializer(), StringSerializer())
        self.harness = harness
        self.backend = backend
        self.current = TimerKey()
        self.now_ms = 0
        self.fired: list[Any] = []
        self.service: InternalTimerService[str] = InternalTimerService(
            backend.get_priority_queue(event),
            backend.get_priority_queue(processing),
            self.current,
            lambda: self.now_ms,
        )

    def at(self, key: int) -> InternalTimerService[str]:
        self.current.key, self.current.key_group = key, self.harness.key_group(key)
        return self.service

    def fire(self, timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        assert key_group == self.harness.key_group(key)
        self.fired.append((timestamp_ms, key, namespace))


@pytest.fixture(params=[HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
def state_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def harness(tmp_path: Path) -> BackendHarness:
    return BackendHarness(str(tmp_path))


@pytest.fixture
def timers(harness: BackendHarness, state_backend: Any) -> Timers:
    return Timers(harness, harness.open(state_backend))


def test_timers_of_keys_and_namespaces_fire_once_each_in_time_order(timers: Timers) -> None:
    for key in (1, 0):
        for namespace in ("b", "a"):
            timers.at(key).register_event_time_timer(namespace, 10 + key)
            timers.at(key).register_processing_time_timer(namespace, 20)
            timers.at(key).register_event_time_timer(namespace, 10 + key)
    timers.service.advance_watermark(9, timers.fire)
    assert timers.fired == []
    timers.service.advance_watermark(11, timers.fire)
    assert timers.fired == [(10, 0, "a"), (10, 0, "b"), (11, 1, "a"), (11, 1, "b")]
    timers.service.advance_watermark(100, timers.fire)
    timers.now_ms = 20
    timers.service.advance_processing_time(timers.fire)
    assert sorted(timers.fired[4:]) == [(20, key, namespace) for key in (0, 1) for namespace in "ab"]
    assert timers.service.next_event_time_timer() is None
    assert timers.service.next_processing_time_timer() is None


def test_only_the_earliest_timer_is_scheduled_even_if_registered_later_or_during_a_firing(
    timers: Timers,
) -> None:
    for time in (20, 30, 20, 10, 30):
        timers.at(time).register_processing_time_timer("a", time)
    assert timers.service.next_processing_time_timer() == 10
    timers.at(0).register_processing_time_timer("b", 5)
    assert timers.service.next_processing_time_timer() == 5
    waited = []

    def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        timers.fire(timestamp_ms, key, key_group, namespace)
        if timestamp_ms < 30:
            timers.at(key).register_processing_time_timer(namespace, timestamp_ms + 7)

    while (due_ms := timers.service.next_processing_time_timer()) is not None:
        waited.append(due_ms)
        timers.now_ms = due_ms
        timers.service.advance_processing_time(fire)
    assert waited == sorted(set(waited))
    assert len(timers.fired) == len(set(timers.fired))
    assert {time for time, *_ in timers.fired} == set(waited)


def test_deleted_timers_never_fire_and_other_keys_keep_theirs(timers: Timers) -> None:
    for key in (0, 1):
        timers.at(key).register_event_time_timer("a", 10)
        timers.at(key).register_processing_time_timer("a", 10)
    timers.at(0).delete_event_time_timer("a", 10)
    timers.at(1).delete_processing_time_timer("a", 10)
    timers.at(1).delete_event_time_timer("a", 11)
    timers.service.advance_watermark(10, timers.fire)
    timers.now_ms = 10
    timers.service.advance_processing_time(timers.fire)
    assert timers.fired == [(10, 1, "a"), (10, 0, "a")]


def test_a_firing_timer_may_register_due_timers_and_delete_others(timers: Timers) -> None:
    timers.at(0).register_event_time_timer("a", 1)
    timers.at(0).register_event_time_timer("a", 5)
    seen = []

    def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        seen.append((timestamp_ms, timers.service.current_watermark()))
        if timestamp_ms == 1:
            timers.at(key).delete_event_time_timer("a", 5)
            for time in (3, 0, 11):
                timers.at(key).register_event_time_timer("a", time)

    timers.service.advance_watermark(10, fire)
    assert seen == [(1, 10), (0, 10), (3, 10)]
    assert timers.service.next_event_time_timer() == 11


def test_time_never_goes_back(timers: Timers) -> None:
    assert timers.service.current_watermark() == MIN_TIMESTAMP
    timers.service.advance_watermark(10, timers.fire)
    timers.at(0).register_event_time_timer("a", 5)
    timers.service.advance_watermark(10, timers.fire)
    timers.service.advance_watermark(7, timers.fire)
    assert timers.service.current_watermark() == 10
    assert timers.fired == []
    timers.service.advance_watermark(MAX_TIMESTAMP, timers.fire)
    assert timers.fired == [(5, 0, "a")]


def test_time_never_goes_back_when_timers_fire_together(timers: Timers) -> None:
    fired: list[Any] = []
    timers.service.advance_watermark_together(10, fired.extend)
    timers.at(0).register_event_time_timer("a", 5)
    for time in (10, 7):
        timers.service.advance_watermark_together(time, fired.extend)
    assert timers.service.current_watermark() == 10
    assert fired == []
    timers.service.advance_watermark_together(11, fired.extend)
    assert [(timer.timestamp, timer.namespace) for timer, _ in fired] == [(5, "a")]


def test_timers_are_in_the_snapshot_and_move_with_their_key_groups(
    harness: BackendHarness, timers: Timers, state_backend: Any
) -> None:
    for key in range(10):
        timers.at(key).register_event_time_timer("a", 100 - key)
        timers.at(key).register_processing_time_timer("b", key)
    handle = harness.snapshot(timers.backend).handle
    seen = []
    for subtask in range(2):
        part = Timers(harness, harness.open(state_backend, handle, subtask=subtask, parallelism=2))
        part.service.advance_watermark(100, part.fire)
        part.now_ms = 100
        part.service.advance_processing_time(part.fire)
        assert len(part.fired) == 10
        seen += part.fired
    assert sorted(seen) == sorted([(100 - key, key, "a") for key in range(10)] + [(key, key, "b") for key in range(10)])


def test_invalid_timers_are_rejected_and_change_nothing(timers: Timers) -> None:
    with pytest.raises(NoCurrentKeyError):
        timers.service.register_event_time_timer("a", 1)
    for namespace, time in ((7, 1), ("a", 1 << 63), ("a", None)):
        with pytest.raises(SerializationError):
            timers.at(0).register_event_time_timer(namespace, time)  # type: ignore[arg-type]
    assert timers.service.next_event_time_timer() is None


def test_timers_that_become_due_during_a_firing_wait_for_the_next_time(timers: Timers) -> None:
    for key in (1, 2):
        timers.at(key).register_processing_time_timer("a", 10 * key)

    def fire(timestamp_ms: int, key: Any, key_group: int, namespace: Any) -> None:
        timers.now_ms = 20
        timers.fire(timestamp_ms, key, key_group, namespace)

    timers.now_ms = 10
    timers.service.advance_processing_time(fire)
    assert timers.fired == [(10, 1, "a")]
    timers.service.advance_processing_time(fire)
    assert timers.fired == [(10, 1, "a"), (20, 2, "a")]


def test_a_timer_is_stored_with_the_bytes_of_its_serializer(timers: Timers) -> None:
    event, _ = timer_queue_descriptors("timers", LongSerializer(), StringSerializer())
    queue: Any = timers.backend.get_priority_queue(event)
    for key, namespace, time_ms in ((7, "", -1), (-7, "\u00e9", MAX_TIMESTAMP), (0, "a" * 200, MIN_TIMESTAMP)):
        timers.at(key).register_event_time_timer(namespace, time_ms)
        timer = Timer(time_ms, key, namespace)
        assert (queue.peek(), queue.size()) == (timer, 1)
        assert queue.head() == queue.entry_of(timer, timers.harness.key_group(key))
        timers.service.delete_event_time_timer(namespace, time_ms)
        assert queue.peek() is None


def test_parts_of_timers_that_are_nested_too_deep_for_one_function_are_written() -> None:
    key_serializer: Any = LongSerializer()
    key: Any = 1
    for _ in range(25):
        key_serializer, key = ListSerializer(key_serializer), [key]
    serializer = TimerSerializer(key_serializer, StringSerializer())
    assert serializer.compile_write_parts()(4, key, "a") == serializer.to_bytes(Timer(4, key, "a"))
