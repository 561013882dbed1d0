"""The contract of priority queues in snapshots: restores with another parallelism, backend or serializer."""

from __future__ import annotations

from typing import Any

import pytest

from statebackend.state.errors import StateMigrationException
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.key_groups import KeyGroupRange, key_group_range_of_subtask
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.priority_queue import PriorityQueueDescriptor
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.testing.backends.evolving_records import flight_v1, flight_v2, flight_v3
from statebackend.testing.backends.evolving_serializers import WordSerializer
from statebackend.testing.backends.harness import VALUE, BackendHarness, ContractBase, contents, fill, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, QueueModel, order, timer
from typeserializers.scalars.strings import StringSerializer


class PriorityQueueRestoreContract(ContractBase):
    """Priority queues in snapshots."""

    def test_every_snapshot_restores_the_queue_of_its_epoch(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        model = QueueModel(backend.get_priority_queue(TIMERS))
        points = []
        for epoch in range(5):
            for number in range(40):
                model.add(timer(37 * number % 101 + epoch, number), number % 10)
            for _ in range(15):
                model.poll()
            points.append((harness.snapshot(backend).handle, model.entries()))
        for handle, entries in points:
            restored = QueueModel(self.reopen(harness, handle).get_priority_queue(TIMERS))
            for entry in entries:
                restored.take(*entry)
            restored.check()
            restored.poll_until(1000)
            restored.check()

    def test_changes_after_the_synchronous_part_are_not_in_the_snapshot(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all((timer(number, number), number) for number in range(10))
        first = backend.prepare_snapshot(1, "first")
        polled = queue.poll_while(lambda element: element.timestamp < 7)
        assert [next(polled)[0].timestamp for _ in range(3)] == [0, 1, 2]
        queue.add(timer(-5, 5), 5)
        second = backend.prepare_snapshot(2, "second")
        assert [element.timestamp for element, _ in polled] == [-5, 3, 4, 5, 6]
        queue.remove(timer(9, 9), 9)
        queue.add(timer(2, 2), 2)
        third = harness.snapshot(backend).handle
        expected = {0: list(range(10)), 1: [-5, *range(3, 10)], 2: [2, 7, 8]}
        handles = [first.run().handle, second.run().handle, third]
        assert [element.timestamp for element, _ in queue.poll_while(lambda element: True)] == [2, 7, 8]
        for number, handle in enumerate(handles):
            restored = self.reopen(harness, handle).get_priority_queue(TIMERS)
            found = [element.timestamp for element, _ in restored.poll_while(lambda element: True)]
            assert found == expected[number]

    def test_an_epoch_writes_its_added_and_polled_elements(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all((timer(number, number), number % 10) for number in range(1000))
        harness.snapshot(backend)
        assert harness.snapshot(backend).bytes_written == 0
        queue.add(timer(5000), 0)
        for _ in range(3):
            queue.poll()
        queue.remove(timer(700, 700), 0)
        assert harness.snapshot(backend).entries_written == 5
        assert queue.peek() == timer(3, 3)
        assert queue.add(timer(4, 4), 4) is False
        assert (queue.size(), harness.snapshot(backend).entries_written) == (997, 0)

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 2), (4, 3), (10, 1)])
    def test_a_queue_is_redistributed_by_key_groups(
        self, harness: BackendHarness, before: int, after: int, canonical: bool
    ) -> None:
        own = self.create_state_backend()
        entries = [(timer(37 * number % 101, number, "n" * (number % 3)), number % 10) for number in range(200)]
        handles = []
        for subtask in range(before):
            backend = harness.open(own, subtask=subtask, parallelism=before)
            queue = backend.get_priority_queue(TIMERS)
            groups = key_group_range_of_subtask(subtask, before, 10)
            queue.add_all((element, group) for element, group in entries if group in groups)
            handle = harness.snapshot(backend).handle
            list(queue.poll_while(lambda element: element.timestamp < 20))
            queue.add_all((element, group) for element, group in entries if group in groups and element.timestamp < 5)
            handle = harness.snapshot(backend).handle
            handles.append(harness.export(backend, f"part-{subtask}") if canonical else handle)
        kept = [entry for entry in entries if not 5 <= entry[0].timestamp < 20]
        for subtask in range(after):
            groups = key_group_range_of_subtask(subtask, after, 10)
            chosen = [
                handle
                for handle in handles
                if groups.overlaps(KeyGroupRange(handle.key_group_start, handle.key_group_end))
            ]
            backend = harness.open(own, *chosen, subtask=subtask, parallelism=after)
            expected = sorted((entry for entry in kept if entry[1] in groups), key=order)
            again = harness.open(own, harness.snapshot(backend).handle, subtask=subtask, parallelism=after)
            for restored in (backend, again):
                assert list(restored.get_priority_queue(TIMERS).poll_while(lambda element: True)) == expected

    @pytest.mark.parametrize("is_registered", [False, True])
    def test_a_queue_in_a_savepoint_moves_to_every_backend_and_back(
        self, harness: BackendHarness, is_registered: bool
    ) -> None:
        own = self.create_state_backend()
        others: list[StateBackend] = [HeapStateBackend(), RocksDBStateBackend()]
        backend = harness.open(own)
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all((timer(37 * number % 101 - 50, number), number % 10) for number in range(100))
        expected = list(queue.entries())
        rows = list(backend.export_state("timers"))
        for other in (*others, own):
            savepoint = harness.export(backend)
            backend = harness.open(other, savepoint)
            if is_registered:
                assert list(backend.get_priority_queue(TIMERS).entries()) == expected
            assert list(backend.export_state("timers")) == rows
        assert list(backend.get_priority_queue(TIMERS).entries()) == expected
        ((key_groups, elements, namespaces, user_keys, values),) = rows
        assert list(zip(key_groups, elements, strict=True)) == [
            (group, TIMERS.element_serializer.to_bytes(element)) for element, group in expected
        ]
        assert {*namespaces, *user_keys, *values} == {b"\x00", None, b""}

    def test_an_unregistered_queue_is_in_later_snapshots(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, range(20))
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all((timer(number, number), number) for number in range(10))
        handle = harness.snapshot(backend).handle
        for epoch in range(3):
            backend = self.reopen(harness, handle)
            backend.get_state(VALUE).update(epoch)
            handle = harness.snapshot(backend).handle
        value, elements, entries = filled(range(20), 0)
        assert contents(harness, backend) == ({**value, 1: 2}, elements, entries)
        assert [element.timestamp for element in self.reopen(harness, handle).get_priority_queue(TIMERS)] == [
            *range(10)
        ]

    def test_an_incompatible_or_migrated_element_serializer_is_rejected(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        flights: Any = PriorityQueueDescriptor("flights", flight_v1())
        backend.get_priority_queue(flights).add(flight_v1().create_instance(), 1)
        handle = harness.snapshot(backend).handle
        restored = self.reopen(harness, handle)
        with pytest.raises(StateMigrationException, match="elements of the queue"):
            restored.get_priority_queue(PriorityQueueDescriptor("flights", flight_v2()))
        for incompatible in (flight_v3(), StringSerializer()):
            with pytest.raises(StateMigrationException, match="flights"):
                restored.get_priority_queue(PriorityQueueDescriptor("flights", incompatible))
        for carried in (restored, self.reopen(harness, harness.snapshot(restored).handle)):
            assert list(carried.get_priority_queue(flights)) == [flight_v1().create_instance()]

    def test_elements_are_read_by_a_reconfigured_serializer(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        old: PriorityQueueDescriptor[str] = PriorityQueueDescriptor("words", WordSerializer("red", "green"))
        backend.get_priority_queue(old).add_all([("green", 1), ("red", 2)])
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        new: PriorityQueueDescriptor[str] = PriorityQueueDescriptor("words", WordSerializer("blue", "green", "red"))
        queue = restored.get_priority_queue(new)
        assert queue.add("blue", 3) is False
        assert queue.add("red", 2) is False
        again = self.reopen(harness, harness.snapshot(restored).handle).get_priority_queue(new)
        assert list(again.poll_while(lambda word: True)) == [("red", 2), ("green", 1), ("blue", 3)]
