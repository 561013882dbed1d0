"""The contract of snapshots in two parts: isolated, cancellable, several at once, on any thread.

A backend that writes everything in the synchronous part keeps it too: what would wait there does not.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from checkpointing.errors import StorageError
from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend import ListStateDescriptor, PriorityQueueDescriptor, ValueStateDescriptor
from statebackend.api.errors import StateBackendClosedError
from statebackend.keyed.backend_parameters import KeyedStateSnapshot
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.snapshot_task import SnapshotTaskError, SnapshotTaskState
from testkit.backends.contract_base import LIST, MAP, VALUE, ContractBase, content, contents, fill, filled
from testkit.backends.folding_functions import MUTABLE_SUM, SUM
from testkit.backends.gated_file_system import PATIENCE_S, GatedFileSystem
from testkit.backends.harness import BackendHarness
from testkit.backends.schemas import LegV1, LegV2, leg_v1, leg_v2

KEYS = range(20)
QUEUE: PriorityQueueDescriptor[int] = PriorityQueueDescriptor("queue", int)
LEGS_V1: ListStateDescriptor[LegV1] = ListStateDescriptor("legs", leg_v1())
LEGS_V2: ListStateDescriptor[LegV2] = ListStateDescriptor("legs", leg_v2())


class AsynchronousSnapshotContract(ContractBase):
    """See the module."""

    @pytest.fixture
    def store(self, harness: BackendHarness) -> Iterator[GatedFileSystem]:
        """The store of all backends of the harness; its gate is open."""
        store = GatedFileSystem.from_uri(os.path.join(harness.directory, "store"))
        assert isinstance(store, GatedFileSystem)
        harness.file_system = store
        yield store
        store.open()

    @pytest.fixture
    def threads(self) -> Iterator[ThreadPoolExecutor]:
        """As many threads as there are snapshots in any test."""
        with ThreadPoolExecutor(10) as threads:
            yield threads

    @pytest.fixture
    def subject(self, harness: BackendHarness, store: GatedFileSystem) -> KeyedStateBackend:
        """A fresh backend in the store, at key 1."""
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        return backend

    def test_what_is_written_after_the_synchronous_part_is_not_in_the_snapshot(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        _fill_all_kinds(harness, subject)
        task = harness.prepare(subject)
        _change_all_kinds(harness, subject)
        snapshot = task.run()
        assert _all_kinds(harness, subject) == _CHANGED
        assert _all_kinds(harness, self.reopen(harness, snapshot.handle)) == _FILLED
        # What was changed meanwhile is in the next one, which builds upon this.
        again = harness.snapshot(subject).handle
        assert _all_kinds(harness, self.reopen(harness, again)) == _CHANGED

    def test_what_is_cleared_after_the_synchronous_part_is_in_the_snapshot(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        _fill_all_kinds(harness, subject)
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

    def test_nothing_registered_gives_snapshots_without_files(
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
        _await_waiting(store, [first])
        fill(harness, subject, KEYS, 1)
        # On this thread, so it does not wait.
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
            _fill_all_kinds(harness, subject)
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
                # It was cleared at the end of the epoch of its number, and filled in those after it.
                later = range(key + 1, epoch + 1)
                expected[1].pop(key)
                expected[2].pop(key)
                if later:
                    expected[1][key] = list(later)
                    expected[2][key] = {"key": key, **{f"offset-{offset}": offset for offset in later}}
            assert contents(harness, restored) == expected
            assert _queued(restored) == [*KEYS, *range(101, 101 + epoch)]

    def test_a_failed_snapshot_leaves_its_changes_to_the_next(
        self, harness: BackendHarness, subject: KeyedStateBackend, store: GatedFileSystem
    ) -> None:
        fill(harness, subject, KEYS)
        first = harness.snapshot(subject).handle
        for epoch, succeeding in ((1, 0), (2, 1), (3, 2)):
            fill(harness, subject, KEYS, epoch)
            store.fails_from_write = succeeding
            with pytest.raises(StorageError, match="told to fail"):
                harness.snapshot(subject)
            store.fails_from_write = None
        fill(harness, subject, KEYS, 4)
        handle = harness.snapshot(subject).handle
        assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, 0, 1, 2, 3, 4)
        assert contents(harness, self.reopen(harness, first)) == filled(KEYS, 0)
        assert store.stored_paths() == {file.path for file in (*handle.files, *first.files)}

    def test_a_failed_snapshot_between_others_is_made_up_for(
        self, harness: BackendHarness, subject: KeyedStateBackend, store: GatedFileSystem
    ) -> None:
        fill(harness, subject, KEYS)
        first = harness.prepare(subject)
        fill(harness, subject, KEYS, 1)
        store.fails_from_write = 0
        with pytest.raises(StorageError, match="told to fail"):
            harness.prepare(subject).run()
        store.fails_from_write = None
        fill(harness, subject, KEYS, 2)
        third = harness.prepare(subject)
        first_handle = first.run().handle
        fourth = harness.snapshot(subject).handle
        for handle, epochs in ((first_handle, 1), (third.run().handle, 3), (fourth, 3)):
            assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, *range(epochs))

    def test_a_cancelled_snapshot_leaves_no_file_of_its_own_and_its_changes_to_the_next(
        self,
        harness: BackendHarness,
        subject: KeyedStateBackend,
        store: GatedFileSystem,
        threads: ThreadPoolExecutor,
    ) -> None:
        fill(harness, subject, KEYS)
        first = harness.snapshot(subject).handle
        fill(harness, subject, KEYS, 1)
        store.shut()
        task = harness.prepare(subject)
        future = task.submit(threads)
        _await_waiting(store, [future])
        is_cancelled = task.cancel()
        never_run = harness.prepare(subject)
        assert never_run.cancel()
        store.open()
        if is_cancelled:
            with pytest.raises(CancelledError):
                future.result(PATIENCE_S)
        with pytest.raises(CancelledError):
            never_run.run()
        fill(harness, subject, KEYS, 2)
        last = harness.snapshot(subject).handle
        assert contents(harness, self.reopen(harness, last)) == filled(KEYS, 0, 1, 2)
        assert store.stored_paths() == {file.path for file in (*last.files, *first.files)}

    def test_closing_cancels_what_is_prepared_and_what_is_running(
        self,
        harness: BackendHarness,
        subject: KeyedStateBackend,
        store: GatedFileSystem,
        threads: ThreadPoolExecutor,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        fill(harness, subject, KEYS)
        store.shut()
        running, prepared = harness.prepare(subject), harness.prepare(subject)
        future = running.submit(threads)
        _await_waiting(store, [future])
        cancel = prepared.cancel

        def cancel_and_open() -> bool:
            # The other one was cancelled before; a backend may wait for it to get out.
            is_cancelled = cancel()
            store.open()
            return is_cancelled

        monkeypatch.setattr(prepared, "cancel", cancel_and_open)
        subject.close()
        wait([future], PATIENCE_S)
        if running.state is SnapshotTaskState.CANCELLED:
            with pytest.raises(CancelledError):
                future.result()
        else:
            assert contents(harness, self.reopen(harness, future.result().handle)) == filled(KEYS, 0)
        assert prepared.state is SnapshotTaskState.CANCELLED
        with pytest.raises(CancelledError):
            prepared.run()
        with pytest.raises(StateBackendClosedError):
            harness.prepare(subject)

    def test_a_task_runs_once(self, harness: BackendHarness, subject: KeyedStateBackend) -> None:
        task = harness.prepare(subject)
        task.run()
        assert not task.cancel()
        with pytest.raises(SnapshotTaskError, match="'run' cannot happen to a snapshot that is done"):
            task.run()

    def test_cancelling_a_future_that_never_ran_cancels_the_task(
        self, harness: BackendHarness, subject: KeyedStateBackend
    ) -> None:
        fill(harness, subject, KEYS)
        gate = threading.Event()
        with ThreadPoolExecutor(1) as busy:
            try:
                busy.submit(gate.wait, PATIENCE_S)
                task = harness.prepare(subject)
                assert task.submit(busy).cancel()
                assert task.state is SnapshotTaskState.CANCELLED
            finally:
                gate.set()
        assert contents(harness, self.reopen(harness, harness.snapshot(subject).handle)) == filled(KEYS, 0)

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
        _await_waiting(store, [future])
        expected = {key: [LegV2("EWR", float(key))] for key in KEYS}
        assert content(harness, restored, LEGS_V2) == expected
        store.open()
        old = self.reopen(harness, future.result(PATIENCE_S).handle)
        assert content(harness, old, LEGS_V1) == {key: [LegV1("EWR", key)] for key in KEYS}
        again = self.reopen(harness, harness.snapshot(restored).handle)
        assert content(harness, again, LEGS_V2) == expected

    def test_everything_can_be_listed_while_a_snapshot_is_under_way(
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


def _await_waiting(store: GatedFileSystem, futures: list[Future[Any]]) -> None:
    """Until a thread waits for the gate, or all futures are done: a synchronous backend has nothing to wait for."""
    for future in futures:
        future.add_done_callback(lambda _: store.waits.release())
    assert store.waits.acquire(timeout=PATIENCE_S)


def _fill_all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> None:
    fill(harness, backend, KEYS)
    queue = backend.get_priority_queue(QUEUE)
    for key in KEYS:
        harness.at(backend, key)
        backend.get_state(SUM).add(key)
        backend.get_state(MUTABLE_SUM).add(key)
        queue.add(key, harness.key_group(key))


def _change_all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> None:
    """Every way of writing, on old keys and new ones."""
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


def _all_kinds(harness: BackendHarness, backend: KeyedStateBackend) -> tuple[Any, ...]:
    folded = [content(harness, backend, descriptor) for descriptor in (SUM, MUTABLE_SUM)]
    return (*contents(harness, backend), *folded, _queued(backend))


def _queued(backend: KeyedStateBackend) -> list[int]:
    return sorted(element for element, _ in backend.get_priority_queue(QUEUE).entries())


_FILLED = (
    *filled(KEYS, 0),
    {key: key for key in KEYS},
    {key: str(key) for key in KEYS},
    list(KEYS),
)

_CHANGED = (
    {key: -key if key % 3 == 1 else key * 2 for key in range(30) if key % 3},
    {key: [*([0] if key < 20 else []), 7] if key % 3 == 1 else [8] for key in range(30) if key % 3},
    {key: {"key": -key, "new": key} if key % 3 == 1 else {"other": key} for key in range(30) if key % 3},
    {key: key + 1 if key < 20 else 1 for key in range(30)},
    {key: str(key + 1 if key < 20 else 1) for key in range(30)},
    [*range(1, 20, 2), 50],
)
