"""The contract of asynchronous snapshots: isolated, cancellable, several at once, on any thread.

A backend that writes everything in the synchronous part also passes these tests.
"""

from __future__ import annotations

import sys
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.backend_parameters import KeyedStateSnapshot
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.priority_queue import PriorityQueueDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import MUTABLE_SUM, SUM, LegV1, LegV2, leg_v1, leg_v2
from statebackend.testing.backends.gated_stores import PATIENCE_S, GatedFileSystem, GatedStoreContract, await_waiting
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, content, contents, fill, filled

KEYS = range(20)
QUEUE: PriorityQueueDescriptor[int] = PriorityQueueDescriptor("queue", int)

FILLED = (
    *filled(KEYS, 0),
    {key: key for key in KEYS},
    {key: str(key) for key in KEYS},
    list(KEYS),
)

CHANGED = (
    {key: -key if key % 3 == 1 else key * 2 for key in range(30) if key % 3},
    {key: [*([0] if key < 20 else []), 7] if key % 3 == 1 else [8] for key in range(30) if key % 3},
    {key: {"key": -key, "new": key} if key % 3 == 1 else {"other": key} for key in range(30) if key % 3},
    {key: key + 1 if key < 20 else 1 for key in range(30)},
    {key: str(key + 1 if key < 20 else 1) for key in range(30)},
    [*range(1, 20, 2), 50],
)

LEGS_V1: ListStateDescriptor[LegV1] = ListStateDescriptor("legs", leg_v1())
LEGS_V2: ListStateDescriptor[LegV2] = ListStateDescriptor("legs", leg_v2())


def fill_all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> None:
    """Fill states of every kind, and a queue, for `KEYS`."""
    fill(harness, backend, KEYS)
    queue = backend.get_priority_queue(QUEUE)
    for key in KEYS:
        harness.at(backend, key)
        backend.get_state(SUM).add(key)
        backend.get_state(MUTABLE_SUM).add(key)
        queue.add(key, harness.key_group(key))


def change_all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> None:
    """Call every write method, for old and new keys."""
    queue = backend.get_priority_queue(QUEUE)
    for key in range(30):
        harness.at(backend, key)
        value, elements, entries = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
        if key % 3 == 0:
            value.clear()
            elements.clear()
            entries.clear()
        elif key % 3 == 1:
            value.update(-key)
            elements.add(7)
            entries.put("key", -key)
            entries.put("new", key)
            entries.remove("offset-0")
        else:
            value.clear()
            value.update(key * 2)
            elements.update([8])
            entries.clear()
            entries.put_all({"other": key})
        backend.get_state(SUM).add(1)
        backend.get_state(MUTABLE_SUM).add(1)
    for key in range(0, 20, 2):
        assert queue.remove(key, harness.key_group(key)) in (True, False)
    queue.add(50, 0)


def all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> tuple[Any, ...]:
    """Return the content of the states and the queue."""
    folded = [content(harness, backend, descriptor) for descriptor in (SUM, MUTABLE_SUM)]
    return (*contents(harness, backend), *folded, queued(backend))


def queued(backend: KeyedStateBackend) -> list[int]:
    """Return the content of the queue."""
    return sorted(element for element, _ in backend.get_priority_queue(QUEUE).entries())


class AsynchronousSnapshotContract(GatedStoreContract):
    """Snapshots that are written while the state changes."""

    def test_entries_written_after_the_synchronous_part_are_not_in_the_snapshot(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        fill_all_kinds(harness, subject)
        task = harness.prepare(subject)
        change_all_kinds(harness, subject)
        snapshot = task.run()
        assert all_kinds(harness, subject) == CHANGED
        assert all_kinds(harness, self.reopen(harness, snapshot.handle)) == FILLED
        # The next snapshot, based on this one, contains the later changes.
        again = harness.snapshot(subject).handle
        assert all_kinds(harness, self.reopen(harness, again)) == CHANGED

    def test_entries_cleared_after_the_synchronous_part_are_in_the_snapshot(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        fill_all_kinds(harness, subject)
        harness.snapshot(subject)
        fill(harness, subject, KEYS, 1)
        task = harness.prepare(subject)
        for key in KEYS:
            harness.at(subject, key)
            for descriptor in (VALUE, LIST, MAP, SUM, MUTABLE_SUM):
                subject.get_state(descriptor).clear()
        restored = self.reopen(harness, task.run().handle)
        assert contents(harness, restored) == filled(KEYS, 0, 1)
        assert content(harness, restored, SUM) == {key: key for key in KEYS}
        assert contents(harness, subject) == ({}, {}, {})
        fill(harness, subject, KEYS, 2)
        assert contents(harness, self.reopen(harness, harness.snapshot(subject).handle)) == filled(KEYS, 2)

    def test_a_state_that_is_not_touched_after_a_restore_stays_in_every_snapshot(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        fill(harness, subject, KEYS)
        exported = harness.export(subject)
        for handle in (harness.snapshot(subject).handle, exported):
            restored = self.reopen(harness, handle)
            tasks = [harness.prepare(restored) for _ in range(2)]
            for task in reversed(tasks):
                assert contents(harness, self.reopen(harness, task.run().handle)) == filled(KEYS, 0)

    def test_snapshots_without_registered_state_have_no_files(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        task = harness.prepare(subject)
        subject.get_state(VALUE).update(1)
        snapshot = task.run()
        assert (snapshot.entries_written, snapshot.handle.files) == (0, ())
        assert self.reopen(harness, snapshot.handle).current_meta().states == ()

    def test_a_second_snapshot_is_completed_while_the_first_waits_for_the_store(
        self,
        harness: BackendHarness,
        subject: KeyedStateBackend,
        store: GatedFileSystem,
        threads: ThreadPoolExecutor,
    ) -> None:
        fill(harness, subject, KEYS)
        store.shut()
        first = harness.prepare(subject).submit(threads)
        await_waiting(store, [first])
        fill(harness, subject, KEYS, 1)
        # Writes on this thread do not wait.
        second = harness.prepare(subject).run()
        assert contents(harness, self.reopen(harness, second.handle)) == filled(KEYS, 0, 1)
        fill(harness, subject, KEYS, 2)
        store.open()
        assert contents(harness, self.reopen(harness, first.result(PATIENCE_S).handle)) == filled(KEYS, 0)
        third = harness.snapshot(subject)
        assert contents(harness, self.reopen(harness, third.handle)) == filled(KEYS, 0, 1, 2)

    @pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (2, 0, 1)])
    def test_snapshots_end_in_any_order(
        self, harness: BackendHarness, subject: KeyedStateBackend, order: tuple[int, ...]
    ) -> None:
        fill(harness, subject, KEYS)
        harness.snapshot(subject)
        tasks = []
        for epoch in range(1, 4):
            fill(harness, subject, KEYS, epoch)
            tasks.append(harness.prepare(subject))
        fill(harness, subject, KEYS, 4)
        handles: dict[int, KeyedStateHandle] = {number: tasks[number].run().handle for number in order}
        last = harness.snapshot(subject).handle
        fill(harness, subject, KEYS, 5)
        after = harness.snapshot(subject).handle
        for number, handle in handles.items():
            expected = filled(KEYS, *range(number + 2))
            assert contents(harness, self.reopen(harness, handle)) == expected
        assert contents(harness, self.reopen(harness, last)) == filled(KEYS, *range(5))
        assert contents(harness, self.reopen(harness, after)) == filled(KEYS, *range(6))

    def test_states_are_registered_while_ten_snapshots_are_written(
        self,
        harness: BackendHarness,
        subject: KeyedStateBackend,
        store: GatedFileSystem,
        threads: ThreadPoolExecutor,
    ) -> None:
        store.shut()
        descriptors: list[ValueStateDescriptor[int]] = [
            ValueStateDescriptor(f"state {number}", int) for number in range(11)
        ]
        subject.get_state(descriptors[0]).update(0)
        futures = []
        for number in range(10):
            futures.append(harness.prepare(subject).submit(threads))
            for known in descriptors[: number + 2]:
                subject.get_state(known).update(number + 1)
        store.open()
        for number, future in enumerate(futures):
            restored = self.reopen(harness, future.result(PATIENCE_S).handle)
            assert {state.name for state in restored.current_meta().states} == {
                known.name for known in descriptors[: number + 1]
            }
            assert [restored.get_state(known).value() for known in descriptors[: number + 1]] == [number] * (number + 1)

    def test_snapshots_are_exact_while_the_owner_goes_on_writing(
        self, harness: BackendHarness, subject: KeyedStateBackend, threads: ThreadPoolExecutor
    ) -> None:
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-6)
        futures: list[Future[KeyedStateSnapshot]] = []
        try:
            fill_all_kinds(harness, subject)
            for epoch in range(1, 6):
                futures.append(harness.prepare(subject).submit(threads))
                fill(harness, subject, KEYS, epoch)
                queue = subject.get_priority_queue(QUEUE)
                queue.add(100 + epoch, epoch)
                harness.at(subject, epoch)
                subject.get_state(MAP).clear()
                subject.get_state(LIST).clear()
            wait(futures, PATIENCE_S)
        finally:
            sys.setswitchinterval(interval)
        for epoch, future in enumerate(futures):
            restored = self.reopen(harness, future.result(PATIENCE_S).handle)
            expected = filled(KEYS, *range(epoch + 1))
            for key in range(1, epoch + 1):
                # The key was cleared at the end of the epoch with its number, and filled in later epochs.
                later = range(key + 1, epoch + 1)
                expected[1].pop(key)
                expected[2].pop(key)
                if later:
                    expected[1][key] = list(later)
                    expected[2][key] = {"key": key, **{f"offset-{offset}": offset for offset in later}}
            assert contents(harness, restored) == expected
            assert queued(restored) == [*KEYS, *range(101, 101 + epoch)]

    def test_a_state_is_migrated_while_a_snapshot_of_its_old_form_is_written(
        self,
        harness: BackendHarness,
        subject: KeyedStateBackend,
        store: GatedFileSystem,
        threads: ThreadPoolExecutor,
    ) -> None:
        for key in KEYS:
            harness.at(subject, key)
            subject.get_state(LEGS_V1).add(LegV1("EWR", key))
        restored = self.reopen(harness, harness.export(subject))
        store.shut()
        future = harness.prepare(restored).submit(threads)
        await_waiting(store, [future])
        expected = {key: [LegV2("EWR", float(key))] for key in KEYS}
        assert content(harness, restored, LEGS_V2) == expected
        store.open()
        old = self.reopen(harness, future.result(PATIENCE_S).handle)
        assert content(harness, old, LEGS_V1) == {key: [LegV1("EWR", key)] for key in KEYS}
        again = self.reopen(harness, harness.snapshot(restored).handle)
        assert content(harness, again, LEGS_V2) == expected

    def test_keys_can_be_listed_while_a_snapshot_is_written(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        fill(harness, subject, KEYS)
        tasks = [harness.prepare(subject)]
        for key in range(0, 20, 2):
            harness.at(subject, key)
            for descriptor in (VALUE, LIST, MAP):
                subject.get_state(descriptor).clear()
        tasks.append(harness.prepare(subject))
        fill(harness, subject, range(20, 25))
        expected = [*range(1, 20, 2), *range(20, 25)]
        for name in ("value", "list", "map"):
            assert sorted(subject.get_keys(name)) == expected
            assert sum(batch.row_count for batch in subject.export_state(name)) == len(expected) * (1 + (name == "map"))
        exported = self.reopen(harness, harness.export(subject))
        assert content(harness, exported, VALUE) == {key: key for key in expected}
        for task, keys in zip(tasks, (list(KEYS), list(range(1, 20, 2))), strict=True):
            restored = self.reopen(harness, task.run().handle)
            assert content(harness, restored, VALUE) == {key: key for key in keys}

    def test_elements_added_around_a_failed_snapshot_are_in_the_next(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        legs = [LegV1("EWR", number) for number in range(12)]
        harness.at(subject, 1)
        elements = subject.get_state(LEGS_V1)
        elements.add_all(legs[:10])
        task = harness.prepare(subject)
        elements.add(legs[10])
        task.run()
        harness.prepare(subject).cancel()
        elements.add(legs[11])
        assert content(harness, subject, LEGS_V1) == {1: legs}
        assert content(harness, self.reopen(harness, harness.snapshot(subject).handle), LEGS_V1) == {1: legs}
