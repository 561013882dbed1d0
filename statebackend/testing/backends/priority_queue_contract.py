"""The contract of priority queues.

The cases are those of Flink's ``InternalPriorityQueueTestBase``, and of the priority queues in ``StateBackendTestBase``
and ``StateBackendMigrationTestBase``.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.errors import (
    StateBackendClosedError,
    StateBackendError,
    StateMigrationException,
    StateRegistrationError,
)
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.priority_queue import KeyGroupedPriorityQueue, PriorityQueueDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.harness import VALUE, BackendHarness, ContractBase, content
from typeserializers.kernel.serializer_inference import serializer_for
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.times.timers import Timer, TimerSerializer

TIMERS: PriorityQueueDescriptor[Timer[int, str]] = PriorityQueueDescriptor(
    "timers", TimerSerializer(LongSerializer(), serializer_for(str))
)
WORDS: PriorityQueueDescriptor[str] = PriorityQueueDescriptor("words", str)

LAYOUTS = [(0, 1, 1), (0, 1, 10), (0, 2, 10), (1, 2, 10), (2, 3, 128), (76, 77, 128)]
"""Subtask, parallelism and number of key groups."""

Entry = tuple[Timer[int, str], int]


def timer(timestamp: int, key: int = 0, namespace: str = "") -> Timer[int, str]:
    """A timer."""
    return Timer(timestamp, key, namespace)


def order(entry: Entry) -> tuple[bytes, int]:
    """Return the sort key of a timer."""
    return TIMERS.element_serializer.to_bytes(entry[0]), entry[1]


class QueueModel:
    """A model of a queue of timers, as a sorted list. Every call also calls the queue and compares the results."""

    def __init__(self, queue: KeyGroupedPriorityQueue[Timer[int, str]]) -> None:
        self.queue = queue
        self._in_order: list[tuple[tuple[bytes, int], Entry]] = []

    def entries(self) -> list[Entry]:
        """All entries in order."""
        return [entry for _, entry in self._in_order]

    def head(self) -> Entry | None:
        """The smallest entry."""
        return self._in_order[0][1] if self._in_order else None

    def take(self, element: Timer[int, str], key_group: int) -> None:
        """Add an element to the model only."""
        placed = order((element, key_group)), (element, key_group)
        place = bisect_left(self._in_order, placed)
        if self._in_order[place : place + 1] != [placed]:
            self._in_order.insert(place, placed)

    def drop(self, element: Timer[int, str], key_group: int) -> None:
        """Remove an element from the model only."""
        placed = order((element, key_group)), (element, key_group)
        place = bisect_left(self._in_order, placed)
        if self._in_order[place : place + 1] == [placed]:
            del self._in_order[place]

    def add(self, element: Timer[int, str], key_group: int) -> None:
        """Add an element, and compare whether the head changed."""
        before = self.head()
        self.take(element, key_group)
        assert self.queue.add(element, key_group) is (self.head() != before)

    def remove(self, element: Timer[int, str], key_group: int) -> None:
        """Remove an element, and compare whether the head changed."""
        before = self.head()
        self.drop(element, key_group)
        assert self.queue.remove(element, key_group) is (self.head() != before)

    def poll(self) -> None:
        """Poll, and compare the polled element."""
        head = self.head()
        assert self.queue.peek_key_group() == (head and head[1])
        assert self.queue.poll() == (head and head[0])
        del self._in_order[:1]

    def poll_until(self, timestamp: int) -> None:
        """Poll all due timers, and compare them."""
        due = [entry for entry in self.entries() if entry[0].timestamp <= timestamp]
        # The first ones together, the others one by one.
        most = len(due) // 2
        polled = self.queue.poll_many(lambda element: element.timestamp <= timestamp, most)
        assert polled == due[:most]
        polled += self.queue.poll_while(lambda element: element.timestamp <= timestamp)
        assert polled == due
        # Timers are ordered by their bytes, and the time is first in these.
        del self._in_order[: len(due)]

    def check(self) -> None:
        """Compare all results that do not change the queue."""
        head = self.head()
        assert self.queue.peek() == (head and head[0])
        assert self.queue.is_empty() is (head is None)
        assert self.queue.size() == len(self._in_order)
        assert list(self.queue.entries()) == sorted(self.entries(), key=lambda entry: entry[1])


class PriorityQueueContract(ContractBase):
    """Priority queues on a backend, compared with a sorted list."""

    def layout(
        self, harness: BackendHarness, subtask: int, parallelism: int, max_parallelism: int, *handles: KeyedStateHandle
    ) -> KeyedStateBackend:
        """Return a backend for the key groups of one subtask."""
        harness.max_parallelism = max_parallelism
        return harness.open(self.create_state_backend(), *handles, subtask=subtask, parallelism=parallelism)

    def test_an_empty_queue_has_no_head(self, backend: KeyedStateBackend) -> None:
        queue = backend.get_priority_queue(TIMERS)
        assert (queue.peek(), queue.poll(), queue.peek_key_group()) == (None, None, None)
        assert queue.is_empty()
        assert queue.size() == 0
        assert list(queue) == []
        assert list(queue.subset_of_key_group(3)) == []
        assert list(queue.poll_while(lambda element: True)) == []
        assert queue.remove(timer(1), 3) is False

    def test_adding_returns_whether_the_head_changed_and_collapses_duplicates(self, backend: KeyedStateBackend) -> None:
        queue = backend.get_priority_queue(TIMERS)
        assert queue.add(timer(5), 1) is True
        assert queue.add(timer(9), 2) is False
        assert queue.add(timer(5), 1) is False
        assert queue.add(timer(2), 3) is True
        assert queue.add(timer(9), 2) is False
        assert queue.size() == 3
        assert [queue.poll(), queue.poll(), queue.poll(), queue.poll()] == [timer(2), timer(5), timer(9), None]

    def test_removing_returns_whether_the_head_changed(self, backend: KeyedStateBackend) -> None:
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all([(timer(5), 1), (timer(7), 1), (timer(9), 2)])
        assert queue.remove(timer(6), 1) is False
        assert queue.remove(timer(5), 2) is False
        assert queue.remove(timer(7), 1) is False
        assert queue.remove(timer(7), 1) is False
        assert queue.peek() == timer(5)
        assert queue.remove(timer(5), 1) is True
        assert (queue.peek(), queue.peek_key_group()) == (timer(9), 2)
        assert queue.remove(timer(9), 2) is True
        assert queue.is_empty()
        assert queue.add(timer(7), 1) is True

    def test_an_element_that_was_removed_can_be_added_again(self, backend: KeyedStateBackend) -> None:
        model = QueueModel(backend.get_priority_queue(TIMERS))
        for _ in range(3):
            for timestamp in (1, 2, 3):
                model.add(timer(timestamp), 4)
            for timestamp in (3, 1, 2):
                model.remove(timer(timestamp), 4)
                model.add(timer(timestamp), 4)
                model.check()
        for _ in range(4):
            model.poll()

    def test_many_removed_elements_can_be_added_again(self, backend: KeyedStateBackend) -> None:
        queue = backend.get_priority_queue(TIMERS)
        # No removed element is the head, so a queue may delay their removal.
        for time in range(1500):
            queue.add(timer(time), time % 10)
        for time in range(1499, 0, -1):
            assert queue.remove(timer(time), time % 10) is False
        assert queue.size() == 1
        again = range(1, 1500, 3)
        for time in again:
            assert queue.add(timer(time), time % 10) is False
        assert queue.size() == 1 + len(again)
        assert [queue.poll() for _ in range(2 + len(again))] == [timer(0), *map(timer, again), None]

    @pytest.mark.parametrize("layout", LAYOUTS)
    def test_elements_are_polled_in_order_over_all_key_groups(
        self, harness: BackendHarness, layout: tuple[int, int, int]
    ) -> None:
        groups = key_group_range_of_subtask(*layout)
        handles: list[KeyedStateHandle] = []
        for after_a_barrier in (False, True):
            backend = self.layout(harness, *layout)
            queue = backend.get_priority_queue(TIMERS)
            generator = random.Random(str(layout))
            entries = [(timer(generator.randrange(-500, 500), key), key % len(groups)) for key in range(300)]
            entries = [(element, groups.start + offset) for element, offset in entries]
            queue.add_all(entries + entries)
            if after_a_barrier:
                handles.append(harness.snapshot(backend).handle)
            assert queue.size() == len(entries)
            assert sorted(queue, key=lambda element: element.key) == [element for element, _ in entries]
            for group in groups:
                expected = sorted((entry for entry in entries if entry[1] == group), key=order)
                assert list(queue.subset_of_key_group(group)) == [element for element, _ in expected]
            assert list(queue.poll_while(lambda element: True)) == sorted(entries, key=order)
        restored = self.layout(harness, *layout, *handles).get_priority_queue(TIMERS)
        assert list(restored.poll_while(lambda element: True)) == sorted(entries, key=order)

    def test_the_order_is_that_of_the_bytes(self, backend: KeyedStateBackend) -> None:
        queue = backend.get_priority_queue(WORDS)
        words = ["", "a", "b", "aa", "ab", "zzzz", "é", "\U0001f600", "a" * 200, "b" * 130]
        for number, word in enumerate(words):
            queue.add(word, number)
        polled = [word for word, _ in queue.poll_while(lambda element: True)]
        assert polled == sorted(words, key=StringSerializer().to_bytes)

    def test_equal_elements_in_two_key_groups_are_separate(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        queue = backend.get_priority_queue(TIMERS)
        assert [queue.add(timer(1), group) for group in (7, 3, 5)] == [True, True, False]
        queue = self.reopen(harness, harness.snapshot(backend).handle).get_priority_queue(TIMERS)
        assert queue.size() == 3
        assert queue.remove(timer(1), 5) is False
        assert list(queue.poll_while(lambda element: True)) == [(timer(1), 3), (timer(1), 7)]

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_timers_may_be_added_and_removed_while_due_timers_are_polled(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all((timer(10 * number, number), number % 10) for number in range(100))
        if after_a_barrier:
            harness.snapshot(backend)
        polled = []
        for element, key_group in queue.poll_while(lambda element: element.timestamp <= 500):
            polled.append(element.timestamp)
            assert key_group == element.key % 10
            if element.timestamp == 100:
                queue.add(timer(105, 3), 3)
                queue.add(timer(1, 3), 3)
                queue.add(timer(501, 3), 3)
                queue.remove(timer(110, 11), 1)
        assert polled == [*range(0, 101, 10), 1, 105, *range(120, 501, 10)]
        assert queue.peek() == timer(501, 3)
        assert queue.size() == 50

    def test_a_loop_over_due_timers_may_stop_anywhere(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all((timer(number), number) for number in range(6))
        for element, _ in queue.poll_while(lambda element: True):
            if element.timestamp == 2:
                break
        assert [queue.peek(), queue.size()] == [timer(3), 3]
        restored = self.reopen(harness, harness.snapshot(backend).handle).get_priority_queue(TIMERS)
        assert [element.timestamp for element in restored] == [3, 4, 5]

    def test_a_rejected_element_changes_nothing(self, harness: BackendHarness) -> None:
        backend = self.layout(harness, 1, 2, 10)
        queue: Any = backend.get_priority_queue(TIMERS)
        queue.add(timer(1), 5)
        anything: Any = Timer
        misfits = [None, 3, anything("late", 2, ""), anything(1, 2, 3), timer(1 << 63)]
        calls: list[Any] = [
            lambda element: queue.add(element, 5),
            lambda element: queue.remove(element, 5),
            lambda element: queue.add_all([(timer(0), 5), (element, 5)]),
        ]
        for misfit in misfits:
            for call in calls:
                with pytest.raises(SerializationError, match="timers"):
                    call(misfit)
        calls = [
            lambda group: queue.add(timer(0), group),
            lambda group: queue.remove(timer(1), group),
            lambda group: queue.add_all([(timer(0), 5), (timer(0), group)]),
            lambda group: list(queue.subset_of_key_group(group)),
        ]
        for foreign in (4, 10, -1, 1 << 20):
            for call in calls:
                with pytest.raises(StateBackendError, match=f"key group {foreign} does not belong to this subtask"):
                    call(foreign)
        assert list(queue.entries()) == [(timer(1), 5)]
        optional: Any = backend.get_priority_queue(PriorityQueueDescriptor("optional", serializer_for(str | None)))
        with pytest.raises(SerializationError, match="None"):
            optional.add(None, 5)
        assert optional.is_empty()

    def test_a_queue_and_a_state_cannot_have_the_same_name(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        queue = backend.get_priority_queue(TIMERS)
        assert backend.get_priority_queue(PriorityQueueDescriptor("timers", TIMERS.element_serializer)) is queue
        backend.get_state(VALUE)
        value: Any = VALUE
        queue_as_state: Any = TIMERS
        for register in (
            lambda: backend.get_priority_queue(PriorityQueueDescriptor("timers", str)),
            lambda: backend.get_priority_queue(PriorityQueueDescriptor("value", int)),
            lambda: backend.get_priority_queue(value),
            lambda: backend.get_state(ValueStateDescriptor("timers", int)),
            lambda: backend.get_state(queue_as_state),
        ):
            with pytest.raises(StateRegistrationError):
                register()
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match="priority_queue"):
            restored.get_state(ValueStateDescriptor("timers", int))
        with pytest.raises(StateMigrationException, match="value state"):
            restored.get_priority_queue(PriorityQueueDescriptor("value", int))

    def test_a_queue_has_no_keys(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        backend.get_priority_queue(TIMERS).add(timer(1), 1)
        for known in (backend, self.reopen(harness, harness.snapshot(backend).handle)):
            with pytest.raises(StateBackendError, match="priority queue"):
                known.get_keys("timers")
            with pytest.raises(StateBackendError, match="priority queue"):
                known.get_keys_and_namespaces("timers")

    def test_a_queue_ignores_the_current_key(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        value, queue = backend.get_state(VALUE), backend.get_priority_queue(TIMERS)
        harness.at(backend, 8)
        queue.add(timer(1), 3)
        value.update(80)
        assert queue.poll() == timer(1)
        backend.leave_key()
        queue.add(timer(2), 4)
        assert content(harness, backend, VALUE) == {8: 80}
        assert list(queue) == [timer(2)]

    def test_a_closed_queue_rejects_everything(self, backend: KeyedStateBackend) -> None:
        queue = backend.get_priority_queue(TIMERS)
        queue.add(timer(1), 1)
        backend.close()
        for call in (
            lambda: queue.add(timer(2), 1),
            lambda: queue.add_all([(timer(2), 1)]),
            lambda: queue.remove(timer(1), 1),
            queue.peek,
            queue.peek_key_group,
            queue.poll,
            queue.is_empty,
            queue.size,
            lambda: list(queue),
            lambda: list(queue.subset_of_key_group(1)),
            lambda: list(queue.poll_while(lambda element: True)),
            lambda: backend.get_priority_queue(TIMERS),
        ):
            with pytest.raises(StateBackendClosedError):
                call()

    def test_returned_elements_belong_to_the_caller(self, backend: KeyedStateBackend) -> None:
        lists: PriorityQueueDescriptor[list[int]] = PriorityQueueDescriptor("lists", list[int])
        queue = backend.get_priority_queue(lists)
        element = [1]
        queue.add(element, 1)
        element.append(2)
        found = queue.peek()
        assert found is not None
        assert found == [1]
        found.append(3)
        assert queue.poll() == [1]

    @pytest.mark.parametrize("is_cancelled", [False, True])
    def test_a_running_snapshot_has_the_elements_of_its_barrier(
        self, harness: BackendHarness, backend: KeyedStateBackend, is_cancelled: bool
    ) -> None:
        model = QueueModel(backend.get_priority_queue(TIMERS))
        snapshots: list[tuple[list[Entry], Any]] = []
        for start in (0, 50, 100):
            added = [(timer(time, time), time % 10) for time in range(start, start + 100)]
            model.queue.add_all(added)
            for entry in added:
                model.take(*entry)
            # One that exists only between two snapshots, and one that is removed and added again.
            model.add(timer(1_000), 1)
            model.remove(timer(1_000), 1)
            model.remove(*model.entries()[-1])
            model.add(*model.entries()[-2])
            snapshots.append((model.entries(), harness.prepare(backend)))
            model.poll_until(start + 60)
        for number, (entries, task) in enumerate(snapshots):
            if is_cancelled and number == 1:
                task.cancel()
                continue
            restored = self.reopen(harness, task.run().handle).get_priority_queue(TIMERS)
            assert list(restored.poll_while(lambda element: True)) == entries
        restored = self.reopen(harness, harness.snapshot(backend).handle).get_priority_queue(TIMERS)
        assert list(restored.poll_while(lambda element: True)) == model.entries()

    @pytest.mark.parametrize("spread", [40, 4000])
    @pytest.mark.parametrize("seed", range(4))
    def test_a_queue_equals_a_sorted_set(self, harness: BackendHarness, seed: int, spread: int) -> None:
        generator = random.Random(seed)
        # With few key groups, the queues are long. With many, the order of their heads matters.
        subtask, parallelism, max_parallelism = LAYOUTS[1 + seed]
        groups = list(key_group_range_of_subtask(subtask, parallelism, max_parallelism))
        backend = self.layout(harness, subtask, parallelism, max_parallelism)
        model = QueueModel(backend.get_priority_queue(TIMERS))

        def entry() -> Entry:
            return timer(generator.randrange(-spread, spread), generator.randrange(3)), generator.choice(groups)

        for _ in range(60):
            action = generator.randrange(8)
            if action <= 1:
                for _ in range(generator.randrange(80)):
                    model.add(*entry())
            elif action == 2:
                entries = [entry() for _ in range(generator.randrange(300))]
                model.queue.add_all(entries)
                for added in entries:
                    model.take(*added)
            elif action == 3:
                known = model.entries()
                for chosen in generator.sample(known, len(known) // 3):
                    model.remove(*chosen)
                model.remove(*entry())
            elif action == 4:
                for _ in range(generator.randrange(30)):
                    model.poll()
            elif action == 5:
                model.poll_until(generator.randrange(-spread, 0))
            elif action == 6:
                harness.snapshot(backend)
            else:
                handle = harness.snapshot(backend).handle
                backend.close()
                backend = self.layout(harness, subtask, parallelism, max_parallelism, handle)
                model.queue = backend.get_priority_queue(TIMERS)
            if generator.randrange(3) == 0:
                model.check()
        model.check()
        model.poll_until(spread)
        model.check()
