"""Asynchronous snapshots of RocksDB: the task writes the state as of the barrier, and nothing is lost."""

import itertools
import os
import threading
from concurrent.futures import CancelledError

import pytest

from statebackend import PriorityQueueDescriptor, ValueStateDescriptor
from statebackend.checkpoint.errors import StorageError
from statebackend.state.errors import StateBackendError
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.engine import ColumnFamily, RocksDBError, SstWriter
from statebackend.state.rocksdb.file_chain import FileChain
from statebackend.state.rocksdb.local_database import LocalDatabase
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_files import MERGED_AT_ONCE
from statebackend.state.ttl_config import StateTtlConfig, TtlStateVisibility
from statebackend.testing.backends.evolving_records import LegV1, LegV2, leg_v1, leg_v2
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ManualClock, contents, fill, filled

pytestmark = pytest.mark.slow

ROCKSDB = RocksDBStateBackend()
KEYS = range(20)


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def prepare(harness, backend):
    number = next(harness._numbers)
    return backend.prepare_snapshot(number, f"state-{number}")


def stored_paths(harness):
    return set(harness.file_system.list_files("state"))


def paths_of(*snapshots):
    return {file.path for snapshot in snapshots for file in snapshot.handle.files}


def run_in_thread(task):
    results = []
    thread = threading.Thread(target=lambda: results.append(task.run()))
    thread.start()
    thread.join()
    return results[0]


def restored(harness, snapshot):
    return contents(harness, harness.open(ROCKSDB, snapshot.handle))


@pytest.mark.parametrize("state_backend", [ROCKSDB, HeapStateBackend()], ids=lambda backend: backend.name)
def test_a_digest_includes_changes_of_incomplete_snapshots(harness, state_backend):
    snapshots = []
    for offset in (0, 1, 1):
        backend = harness.open(state_backend)
        fill(harness, backend, KEYS, offset)
        prepared = prepare(harness, backend)
        assert prepare(harness, backend).cancel()
        snapshots.append(harness.snapshot(backend))
        prepared.run()
        fill(harness, backend, KEYS, 2)
        snapshots.append(harness.snapshot(backend))
    digests = [snapshot.digest for snapshot in snapshots]
    assert digests[0] != digests[2]
    assert digests[2] == digests[4]
    # The changes of a completed snapshot count once.
    assert digests[3] == digests[5] != digests[4]
    assert all(snapshot.entries_written >= 3 * len(KEYS) for snapshot in snapshots)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_tasks_may_end_in_any_order(harness, order):
    backend = harness.open(ROCKSDB)
    tasks = []
    for epoch in range(3):
        fill(harness, backend, KEYS, epoch)
        tasks.append(prepare(harness, backend))
    fill(harness, backend, KEYS, 3)
    snapshots = {number: run_in_thread(tasks[number]) for number in order}
    for number in range(3):
        assert restored(harness, snapshots[number]) == filled(KEYS, *range(number + 1))
    # A snapshot that was prepared before any other completed references no files of the others.
    assert not paths_of(snapshots[0]) & paths_of(snapshots[1])
    # Later snapshots reference the files of the newest one, in whichever order they ended.
    last = harness.snapshot(backend)
    assert paths_of(snapshots[2]) < paths_of(last)
    assert not paths_of(snapshots[0], snapshots[1]) & paths_of(last)
    assert restored(harness, last) == filled(KEYS, *range(4))


@pytest.mark.parametrize("end", ["cancelled before it ran", "failed", "cancelled while it ran"])
def test_changes_that_a_snapshot_did_not_write_are_in_the_next_one(harness, end, monkeypatch):
    backend = harness.open(ROCKSDB)
    fill(harness, backend, KEYS, 0)
    first = harness.snapshot(backend)
    fill(harness, backend, KEYS, 1)
    task = prepare(harness, backend)
    upload = harness.file_system.upload
    if end == "cancelled before it ran":
        assert task.cancel()
        with pytest.raises(CancelledError):
            task.run()
    else:
        uploads = []

        def upload_two(*arguments):
            if len(uploads) == 2:
                raise StorageError("the disk is full")
            uploads.append(upload(*arguments))
            if end != "failed":
                task.cancel()
            return uploads[-1]

        monkeypatch.setattr(harness.file_system, "upload", upload_two)
        with pytest.raises(StorageError if end == "failed" else CancelledError):
            task.run()
        assert uploads
        monkeypatch.undo()
    assert stored_paths(harness) == paths_of(first)
    fill(harness, backend, KEYS, 2)
    last = harness.snapshot(backend)
    assert paths_of(first) < paths_of(last)
    assert restored(harness, last) == filled(KEYS, 0, 1, 2)
    assert restored(harness, first) == filled(KEYS, 0)


def test_a_base_has_the_content_of_the_barrier_after_later_changes(harness):
    backend = harness.open(ROCKSDB)
    fill(harness, backend, KEYS, 0)
    restored_backend = harness.open(ROCKSDB, harness.export(backend))
    # A snapshot must not reference a savepoint, so both of these write all of the state.
    halved = harness.open(ROCKSDB, harness.snapshot(restored_backend).handle, subtask=0, parallelism=2)
    lower = [key for key in KEYS if key % 10 < 5]
    fill(harness, halved, lower, 1)
    first = prepare(harness, halved)
    fill(harness, halved, lower, 2)
    second = prepare(harness, halved)
    for key in lower:
        harness.at(halved, key)
        for descriptor in (VALUE, LIST, MAP):
            halved.get_state(descriptor).clear()
    third = prepare(harness, halved)
    expected = {2: filled(lower, 0, 1, 2), 1: filled(lower, 0, 1), 3: ({}, {}, {})}
    for number, task in ((2, second), (1, first), (3, third)):
        snapshot = run_in_thread(task)
        again = harness.open(ROCKSDB, snapshot.handle, subtask=0, parallelism=2)
        assert contents(harness, again) == expected[number]


def test_a_base_is_written_again_if_the_running_one_is_cancelled(harness):
    backend = harness.open(ROCKSDB)
    fill(harness, backend, KEYS, 0)
    whole = harness.snapshot(backend)
    halved = harness.open(ROCKSDB, whole.handle, subtask=0, parallelism=2)
    assert prepare(harness, halved).cancel()
    snapshot = harness.snapshot(halved)
    assert not paths_of(whole) & paths_of(snapshot)
    lower = [key for key in KEYS if key % 10 < 5]
    again = harness.open(ROCKSDB, snapshot.handle, subtask=0, parallelism=2)
    assert contents(harness, again) == filled(lower, 0)


@pytest.mark.parametrize("in_flight", [False, True])
def test_changes_of_a_base_that_failed_are_in_the_next_one(harness, in_flight, monkeypatch):
    monkeypatch.setattr("statebackend.state.state_files.MIN_MERGE_BYTES", 0)
    backend = harness.open(ROCKSDB)
    increment = LocalDatabase._written
    marked = []

    def noted(self, keys, values, marks):
        marked.append(len(marks))
        return increment(self, keys, values, marks)

    monkeypatch.setattr(LocalDatabase, "_written", noted)
    fill(harness, backend, KEYS, 0)
    snapshots = [harness.snapshot(backend)]
    while not snapshots[1:] or paths_of(snapshots[-2]) & paths_of(snapshots[-1]):
        fill(harness, backend, KEYS, len(snapshots))
        snapshots.append(harness.snapshot(backend))
    epoch = len(snapshots)
    while True:
        fill(harness, backend, KEYS, epoch)
        older = prepare(harness, backend)
        epoch += 1
        if all(table.whole is not None for table in older.frozen_state.tables):
            break
        run_in_thread(older)
    marked.clear()
    for key in (0, 1):
        harness.at(backend, key)
        for descriptor in (VALUE, LIST, MAP):
            backend.get_state(descriptor).clear()
    failed = prepare(harness, backend)
    # The deletions are in the database, and no increment repeats them.
    assert marked
    assert not any(marked)
    if in_flight:
        run_in_thread(older)
    else:
        assert older.cancel()
    assert failed.cancel()
    last = harness.snapshot(backend)
    assert restored(harness, last) == filled([key for key in KEYS if key > 1], *range(epoch))
    # Increments continue after it.
    fill(harness, backend, KEYS[5:6], epoch)
    following = harness.snapshot(backend)
    assert paths_of(last) < paths_of(following)


def test_a_migration_does_not_affect_a_running_snapshot(harness):
    backend = harness.open(ROCKSDB)
    old, new = ValueStateDescriptor("leg", leg_v1()), ValueStateDescriptor("leg", leg_v2())
    harness.at(backend, 1)
    backend.get_state(old).update(LegV1("EWR", 1))
    handle = harness.snapshot(backend).handle
    halved = harness.open(ROCKSDB, handle, subtask=0, parallelism=2)
    task = prepare(harness, halved)
    harness.at(halved, 1)
    assert halved.get_state(new).value() == LegV2("EWR", 1.0)
    before, after = task.run(), harness.snapshot(halved)
    for snapshot, descriptor, expected in ((before, old, LegV1("EWR", 1)), (after, new, LegV2("EWR", 1.0))):
        again = harness.open(ROCKSDB, snapshot.handle, subtask=0, parallelism=2)
        harness.at(again, 1)
        assert again.get_state(descriptor).value() == expected


def test_a_migration_that_cannot_be_ingested_leaves_the_state_unchanged(harness, monkeypatch):
    backend = harness.open(ROCKSDB)
    old, new = ValueStateDescriptor("leg", leg_v1()), ValueStateDescriptor("leg", leg_v2())
    harness.at(backend, 1)
    backend.get_state(old).update(LegV1("EWR", 1))
    restored_backend = harness.open(ROCKSDB, harness.snapshot(backend).handle)

    def full(*_):
        raise RocksDBError("No space left on device")

    with monkeypatch.context() as context:
        context.setattr(ColumnFamily, "ingest", full)
        families = restored_backend._store.database.engine.column_family_names
        with pytest.raises(RocksDBError, match="No space left"):
            restored_backend.get_state(new)
        assert restored_backend._store.database.engine.column_family_names == families
    carried = harness.open(ROCKSDB, harness.snapshot(restored_backend).handle)
    for one in (carried, restored_backend):
        harness.at(one, 1)
        assert one.get_state(new).value() == LegV2("EWR", 1.0)


def test_closing_waits_for_a_task_that_is_ending(harness, monkeypatch):
    backend = harness.open(ROCKSDB, local="local")
    fill(harness, backend, KEYS)
    task = prepare(harness, backend)
    upload = harness.file_system.upload
    cancel = task.cancel
    is_uploading, is_cancelled, may_go_on = threading.Event(), threading.Event(), threading.Event()
    errors = []

    def slow_upload(*arguments):
        is_uploading.set()
        may_go_on.wait()
        return upload(*arguments)

    def noted_cancel():
        cancel()
        is_cancelled.set()

    def run():
        try:
            task.run()
        except BaseException as error:
            errors.append(error)

    monkeypatch.setattr(harness.file_system, "upload", slow_upload)
    monkeypatch.setattr(task, "cancel", noted_cancel)
    runner = threading.Thread(target=run)
    runner.start()
    is_uploading.wait()
    closer = threading.Thread(target=backend.close)
    closer.start()
    is_cancelled.wait()
    # The task is cancelled but still reads its file.
    assert closer.is_alive()
    may_go_on.set()
    for thread in (runner, closer):
        thread.join()
    assert [type(error) for error in errors] == [CancelledError]
    assert stored_paths(harness) == set()
    assert not os.path.exists(os.path.join(harness.directory, "local", "local", "files"))


def reopened_local(harness, backend, handle):
    backend.close()
    again = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, again) is not None
    return again.is_local


def test_a_version_names_a_completed_snapshot(harness):
    backend = harness.open(ROCKSDB, local="local")
    fill(harness, backend, KEYS)
    first, second = prepare(harness, backend), prepare(harness, backend)
    snapshot = first.run()
    assert second.cancel()
    # No write came in between, so the database equals the first snapshot.
    assert reopened_local(harness, backend, snapshot.handle)


@pytest.mark.parametrize("change", ["write", "register", "migrate"])
def test_a_changed_database_has_no_version(harness, change):
    backend = harness.open(ROCKSDB, local="local")
    fill(harness, backend, KEYS)
    old, new = ValueStateDescriptor("leg", leg_v1()), ValueStateDescriptor("leg", leg_v2())
    harness.at(backend, 1)
    backend.get_state(old).update(LegV1("EWR", 1))
    handle = harness.snapshot(backend).handle
    backend.close()
    backend = harness.open(ROCKSDB, handle, local="local")
    task = prepare(harness, backend)
    harness.at(backend, 1)
    if change == "write":
        backend.get_state(VALUE).update(7)
        prepare(harness, backend).cancel()
    elif change == "register":
        backend.get_state(ValueStateDescriptor("other", int))
    else:
        assert backend.get_state(new).value() == LegV2("EWR", 1.0)
    handle = task.run().handle
    backend.close()
    again = harness.open(ROCKSDB, handle, local="local")
    assert not again.is_local
    harness.at(again, 1)
    assert again.get_state(old).value() == LegV1("EWR", 1)
    assert contents(harness, again) == filled(KEYS, 0)


@pytest.mark.parametrize("has_expired", [False, True])
def test_a_base_without_expired_rows_does_not_equal_the_database(harness, has_expired):
    ttl = StateTtlConfig(100, visibility=TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
    descriptor = ValueStateDescriptor("timed", int, ttl=ttl)
    harness.clock = ManualClock(0)
    backend = harness.open(ROCKSDB)
    harness.at(backend, 1)
    backend.get_state(descriptor).update(7)
    handle = harness.snapshot(backend).handle
    halved = harness.open(ROCKSDB, handle, subtask=0, parallelism=2, local="local")
    halved.get_state(descriptor)
    harness.clock.now_ms = 1000 if has_expired else 10
    handle = harness.snapshot(halved).handle
    halved.close()
    for local in ("local", None):
        again = harness.open(ROCKSDB, handle, subtask=0, parallelism=2, local=local)
        assert again.is_local == (local is not None and not has_expired)
        harness.at(again, 1)
        assert again.get_state(descriptor).value() == (None if has_expired else 7)


def test_the_synchronous_part_accesses_only_changed_rows(harness, monkeypatch):
    backend = harness.open(ROCKSDB)
    fill(harness, backend, range(2000), 0)
    harness.snapshot(backend)
    halved = harness.open(ROCKSDB, harness.snapshot(backend).handle, subtask=0, parallelism=2)
    fill(harness, halved, range(5), 1)

    def reject(*_):
        raise AssertionError("this is for the asynchronous part")

    rows_written = []
    finish = SstWriter.finish

    def noted_finish(writer):
        rows_written.append(writer.entry_count)
        finish(writer)

    with monkeypatch.context() as context:
        for name in ("upload", "download", "write_file", "read_file"):
            context.setattr(harness.file_system, name, reject)
        context.setattr(SstWriter, "finish", noted_finish)
        task = prepare(harness, halved)
    assert sorted(rows_written) == [5, 5, 10]
    again = harness.open(ROCKSDB, task.run().handle, subtask=0, parallelism=2)
    assert len(list(again.get_keys("value"))) == 1000


def test_many_spills_leave_few_files_and_few_handles(harness):
    backend = harness.open(RocksDBStateBackend(cache_entries=1), local="local")
    state = backend.get_state(VALUE)
    spills = 20 * MERGED_AT_ONCE
    for number in range(spills):
        harness.at(backend, number % 50)
        state.update(number)
        if number % 3 == 0:
            state.clear()
    files = os.listdir(os.path.join(harness.directory, "local", "local", "files"))
    assert len(files) < 3 * MERGED_AT_ONCE
    handle = harness.snapshot(backend).handle
    assert len(handle.files) == 1
    expected = {}
    for number in range(spills):
        expected[number % 50] = None if number % 3 == 0 else number
    again = harness.open(ROCKSDB, handle)
    state = again.get_state(VALUE)
    for key, value in expected.items():
        harness.at(again, key)
        assert state.value() == value


def test_a_backend_that_cannot_flush_its_changes_returns_no_snapshot(harness, monkeypatch):
    backend = harness.open(ROCKSDB)
    fill(harness, backend, KEYS, 0)
    handle = harness.snapshot(backend).handle
    fill(harness, backend, KEYS, 1)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as context:
        context.setattr("os.link", full)
        with pytest.raises(OSError, match="No space left"):
            harness.snapshot(backend)
    with pytest.raises(StateBackendError, match=r"could not be written out before.*No space left"):
        harness.snapshot(backend)
    backend.close()
    assert contents(harness, harness.open(ROCKSDB, handle)) == filled(KEYS, 0)


def test_a_queue_whose_removals_cannot_be_flushed_is_restored(harness, monkeypatch):
    backend = harness.open(ROCKSDB, local="local")
    numbers = PriorityQueueDescriptor("numbers", int)
    queue = backend.get_priority_queue(numbers)
    for number in range(20):
        queue.add(number, number % 10)
    handle = harness.snapshot(backend).handle
    for number in range(10):
        assert queue.poll() == number

    def full(*_):
        raise RocksDBError("No space left on device")

    with monkeypatch.context() as context:
        context.setattr(SstWriter, "finish", full)
        with pytest.raises(RocksDBError, match="No space left"):
            prepare(harness, backend)
    backend.close()
    queue = harness.open(ROCKSDB, handle, local="local").get_priority_queue(numbers)
    assert [queue.poll() for _ in range(21)] == [*range(20), None]


def test_an_older_snapshot_that_ends_later_keeps_the_version_of_the_newer(harness):
    backend = harness.open(ROCKSDB, local="local")
    fill(harness, backend, KEYS, 0)
    older = prepare(harness, backend)
    fill(harness, backend, KEYS, 1)
    newer = prepare(harness, backend).run()
    older.run()
    backend.close()
    again = harness.open(ROCKSDB, newer.handle, local="local")
    assert again.is_local
    assert contents(harness, again) == filled(KEYS, 0, 1)


def test_frozen_files_are_not_merged_and_stay_until_they_are_thawed(tmp_path):
    chain = FileChain()
    paths = [str(tmp_path / f"{number}.sst") for number in range(MERGED_AT_ONCE + 1)]
    for path in paths[:-1]:
        open(path, "w").close()
        chain.append(path)
    assert len(chain.mergeable()) == MERGED_AT_ONCE
    frozen = chain.freeze(1)
    assert chain.mergeable() == ()
    chain.discard()
    assert sorted(os.listdir(tmp_path)) == sorted(os.path.basename(path) for path in paths[:-1])
    chain.thaw(frozen)
    assert os.listdir(tmp_path) == []


def test_a_small_snapshot_creates_no_directory(harness, monkeypatch):
    backend = harness.open(ROCKSDB, local="local")
    fill(harness, backend, KEYS)
    first = harness.snapshot(backend)
    made = []
    monkeypatch.setattr("statebackend.state.rocksdb.local_directory.LocalStateDirectory.scratch", made.append)
    fill(harness, backend, KEYS, 2)
    second = harness.snapshot(backend)
    assert made == []
    assert len(second.handle.files) > len(first.handle.files)
