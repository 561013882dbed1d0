"""A local database that cannot be opened for writing, and its rebuild."""

import os
from dataclasses import make_dataclass

import pytest
from local_epochs import KEYS, ROCKSDB, damage, epoch, version_path

from statebackend import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from statebackend.checkpoint.errors import MissingFileError
from statebackend.state.errors import StateBackendError
from statebackend.state.state_files import MAX_FILES
from statebackend.testing.backends.harness import VALUE, BackendHarness, contents, fill, filled

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def test_a_damaged_database_is_restored(harness):
    handle, _ = epoch(harness, None, 0)
    damage(harness)
    backend = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, backend) == filled(KEYS, 0)
    assert not backend.is_local
    fill(harness, backend, KEYS, 1)
    snapshot = harness.snapshot(backend)
    assert set(handle.files) < set(snapshot.handle.files)
    backend.close()
    # The rebuilt database equals the damaged one.
    for local in ("local", None):
        again = harness.open(ROCKSDB, snapshot.handle, local=local)
        assert again.is_local is (local is not None)
        assert contents(harness, again) == filled(KEYS, 0, 1)


def record(**fields):
    """A record class with these fields; another one of the same name replaces it."""
    made = make_dataclass("Record", [(name, int, default) for name, default in fields.items()])
    made.__module__ = __name__
    globals()["Record"] = made
    return made


def evolved(harness):
    """A handle whose migration moved the rows in the database, a state, and its value."""
    backend = harness.open(ROCKSDB, local="local")
    before = record(first=0)
    values, numbers = backend.get_state(ValueStateDescriptor("records", before)), backend.get_state(NUMBERS)
    harness.at(backend, 1)
    values.update(before(5))
    numbers.add(1)
    handle = harness.snapshot(backend).handle
    backend.close()
    backend = harness.open(ROCKSDB, handle, local="local")
    harness.at(backend, 1)
    after = record(first=0, second=7)
    assert backend.get_state(ValueStateDescriptor("records", after)).value() == after(5)
    handle = harness.snapshot(backend).handle
    backend.close()
    return handle, ValueStateDescriptor("records", after), after(5)


NUMBERS = ListStateDescriptor("numbers", int)


def test_a_migrated_database_that_is_damaged_is_restored_before_its_first_row_is_read(harness):
    handle, evolved_state, value = evolved(harness)
    damage(harness)
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(evolved_state)
    harness.at(backend, 1)
    assert state.value() == value
    assert not backend.is_local


def test_the_first_writes_to_a_damaged_database_are_kept_with_the_restored_rows(harness):
    handle, evolved_state, value = evolved(harness)
    damage(harness)
    backend = harness.open(ROCKSDB, handle, local="local")
    numbers = backend.get_state(NUMBERS)
    harness.at(backend, 1)
    numbers.add(2)
    handle = harness.snapshot(backend).handle
    assert numbers.get() == [1, 2]
    backend.close()
    for local in ("local", None):
        again = harness.open(ROCKSDB, handle, local=local)
        numbers, records = again.get_state(NUMBERS), again.get_state(evolved_state)
        harness.at(again, 1)
        assert (numbers.get(), records.value()) == ([1, 2], value)
        again.close()


def test_a_database_of_many_files_is_restored(harness, monkeypatch):
    monkeypatch.setattr("statebackend.state.rocksdb.read_only_database.MAX_KEPT_ROWS", 0)
    monkeypatch.setattr("statebackend.state.rocksdb.engine._MAX_SORTED_RUNS", 16)
    handle, _ = epoch(harness, None, 0)
    # RocksDB ingests the first files into levels below zero, one per level.
    offsets = range(1, 9)
    for offset in offsets:
        handle, is_local = epoch(harness, handle, offset)
        assert is_local
    monkeypatch.setattr("statebackend.state.rocksdb.local_database.MAX_UNMERGED_FILES", 0)
    backend = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, backend) == filled(KEYS, 0, *offsets)
    assert not backend.is_local


def test_files_do_not_accumulate_where_each_has_later_keys_than_all_others(harness, monkeypatch):
    monkeypatch.setattr("statebackend.state.rocksdb.read_only_database.MAX_KEPT_ROWS", 0)
    most = MAX_FILES + 12
    monkeypatch.setattr("statebackend.state.rocksdb.local_database.MAX_SMALL_FILES", most)
    by_number = MapStateDescriptor("by number", int, int)
    database = os.path.join(harness.directory, "local", "local", "db")
    handle, counts, restored = None, [], 0
    epochs = range(2 * most)
    for number in epochs:
        backend = harness.open(ROCKSDB, *([handle] if handle else []), local="local")
        state = backend.get_state(by_number)
        harness.at(backend, 1)
        state.put(number, number)
        handle = harness.snapshot(backend).handle
        restored += number > 0 and not backend.is_local
        backend.close()
        counts.append(sum(name.endswith(".sst") for name in os.listdir(database)))
    assert max(counts) == most + 1
    # This is rare, because a rebuilt database has fewer files.
    assert 1 < restored < len(epochs) // 10
    backend = harness.open(ROCKSDB, handle)
    state = backend.get_state(by_number)
    harness.at(backend, 1)
    assert list(state.items()) == [(number, number) for number in epochs]
    backend.close()


def test_a_database_that_can_be_neither_opened_nor_rebuilt_is_an_error_each_time_without_version(harness):
    handle, _ = epoch(harness, None, 0)
    damage(harness)
    os.unlink(harness.store_path(handle.files[0].path))
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(VALUE)
    harness.at(backend, 1)
    with pytest.raises(MissingFileError):
        state.value()
    # A user function may have caught the error.
    for _ in range(2):
        with pytest.raises(StateBackendError, match="could not be opened"):
            state.value()
    with pytest.raises(StateBackendError, match="could not be opened"):
        contents(harness, backend)
    for table in backend._store.tables.values():
        with pytest.raises(StateBackendError, match="could not be opened"):
            backend._store.database.ingest_changes(table, [b"k"], [b"v"])
    snapshot = harness.snapshot(backend)
    assert snapshot.handle.files == handle.files
    backend.close()
    assert not os.path.exists(version_path(harness))
