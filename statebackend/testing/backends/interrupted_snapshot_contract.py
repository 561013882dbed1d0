"""The contract of unfinished snapshots: they fail, are cancelled, or their backend is closed.

The next snapshot writes what an unfinished one did not, and no file of an unfinished one remains.
"""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait

import pytest

from statebackend.checkpoint.errors import StorageError
from statebackend.state.errors import StateBackendClosedError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.snapshot_task import SnapshotTaskError, SnapshotTaskState
from statebackend.testing.backends.gated_stores import PATIENCE_S, GatedFileSystem, GatedStoreContract, await_waiting
from statebackend.testing.backends.harness import BackendHarness, contents, fill, filled

KEYS = range(20)


class InterruptedSnapshotContract(GatedStoreContract):
    """Snapshots that fail, are cancelled, or end with their backend."""

    def test_a_failed_snapshot_passes_its_changes_to_the_next(
        self, harness: BackendHarness, subject: KeyedStateBackend, store: GatedFileSystem
    ) -> None:
        fill(harness, subject, KEYS)
        first = harness.snapshot(subject).handle
        for epoch, succeeding in ((1, 0), (2, 1), (3, 2)):
            fill(harness, subject, KEYS, epoch)
            store.fails_from_write = succeeding
            with pytest.raises(StorageError, match="fails on request"):
                harness.snapshot(subject)
            store.fails_from_write = None
        fill(harness, subject, KEYS, 4)
        handle = harness.snapshot(subject).handle
        assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, 0, 1, 2, 3, 4)
        assert contents(harness, self.reopen(harness, first)) == filled(KEYS, 0)
        assert store.stored_paths() == {file.path for file in (*handle.files, *first.files)}

    def test_the_next_snapshot_has_the_changes_of_a_failed_one(
        self, harness: BackendHarness, subject: KeyedStateBackend, store: GatedFileSystem
    ) -> None:
        fill(harness, subject, KEYS)
        first = harness.prepare(subject)
        fill(harness, subject, KEYS, 1)
        store.fails_from_write = 0
        with pytest.raises(StorageError, match="fails on request"):
            harness.prepare(subject).run()
        store.fails_from_write = None
        fill(harness, subject, KEYS, 2)
        third = harness.prepare(subject)
        first_handle = first.run().handle
        fourth = harness.snapshot(subject).handle
        for handle, epochs in ((first_handle, 1), (third.run().handle, 3), (fourth, 3)):
            assert contents(harness, self.reopen(harness, handle)) == filled(KEYS, *range(epochs))

    def test_a_cancelled_snapshot_leaves_no_file_and_the_next_one_has_its_changes(
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
        await_waiting(store, [future])
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

    def test_closing_cancels_prepared_and_running_snapshots(
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
        await_waiting(store, [future])
        cancel = prepared.cancel

        def cancel_and_open() -> bool:
            # The other task was cancelled before. A backend may wait until it has ended.
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

    def test_a_snapshot_task_runs_once(self, harness: BackendHarness, subject: KeyedStateBackend) -> None:
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
