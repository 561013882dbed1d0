"""Remains in a local directory: files of killed attempts, undeletable files, invalid versions."""

import json
import os
import shutil
import zlib

import pytest
from attrs import evolve
from local_epochs import KEYS, ROCKSDB, epoch, version_path

from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.rocksdb.engine import ColumnFamily, RocksDBError
from statebackend.testing.backends.harness import VALUE, BackendHarness, content, contents, filled


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def test_damage_found_before_a_read_is_repaired_by_a_restore(harness, monkeypatch):
    """RocksDB decides at which call it detects damage."""

    def reject(family, name):
        monkeypatch.undo()
        raise RocksDBError("block checksum mismatch")

    handle, _ = epoch(harness, None, 0)
    backend = harness.open(ROCKSDB, handle, local="local")
    monkeypatch.setattr(ColumnFamily, "property_value", reject)
    assert contents(harness, backend) == filled(KEYS, 0)
    assert not backend.is_local


def test_a_database_that_cannot_be_inspected_is_left_to_the_next_backend(harness, monkeypatch):
    def reject(family, name):
        monkeypatch.undo()
        raise MemoryError

    handle, _ = epoch(harness, None, 0)
    failed = harness.open(ROCKSDB, handle, local="local")
    monkeypatch.setattr(ColumnFamily, "property_value", reject)
    with pytest.raises(MemoryError):
        contents(harness, failed)
    failed.close()
    # The error, or a debugger, may still reference the failed backend.
    backend = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, backend) == filled(KEYS, 0)


def test_remains_of_killed_attempts_of_small_epochs_do_not_accumulate(harness):
    handle, _ = epoch(harness, None, 0)
    files = os.path.join(harness.directory, "local", "local", "files")
    os.makedirs(os.path.join(files, "scratch"))
    left = os.path.join(files, f"{'0a' * 16}.sst")
    with open(left, "w") as file:
        file.write("of an attempt that was killed")
    backend = harness.open(ROCKSDB, handle, local="local")
    assert backend.is_local
    assert not os.path.exists(files)
    # Files of the current attempt are kept for its snapshot.
    harness.at(backend, 1)
    backend.get_state(VALUE).update(99)
    handle = harness.snapshot(backend).handle
    backend.close()
    again = harness.open(ROCKSDB, handle, local="local")
    assert content(harness, again, VALUE)[1] == 99


def test_rows_of_an_undeletable_database_are_not_mixed_with_those_of_the_snapshot(harness, monkeypatch):
    monkeypatch.setattr("statebackend.state.rocksdb.read_only_database.MAX_KEPT_ROWS", 0)

    def epoch_of(key, *restore):
        backend = harness.open(ROCKSDB, *restore, local="local")
        harness.at(backend, key)
        backend.get_state(VALUE).update(key)
        handle = harness.snapshot(backend).handle
        backend.close()
        return handle

    first = epoch_of(1)
    epoch_of(2, first)
    with monkeypatch.context() as patched:
        patched.setattr("statebackend.state.rocksdb.local_directory.shutil.rmtree", lambda *path, **options: None)
        backend = harness.open(ROCKSDB, first, local="local")
    assert not backend.is_local
    assert content(harness, backend, VALUE) == {1: 1}


@pytest.mark.parametrize(
    "change",
    [
        {"column_families": lambda places: dict(zip(places, reversed(places.values()), strict=True))},
        {"column_families": list},
        {"column_families": lambda places: dict.fromkeys(places, "default")},
        {"column_families": lambda places: dict.fromkeys(places, 7)},
        {"column_families": lambda places: {**places, "unknown": "9:unknown"}},
        {"changed_rows": str},
        {"changed_rows": lambda _: None},
        {"kept": lambda _: {"value": ["00"]}},
        {"kept": lambda _: {"unknown": {"00": "00"}}},
        {"heads": lambda _: {"unknown": "00"}},
        {"lower_bounds": lambda _: {"value": 0}},
        {"upper_bounds": lambda _: {"unknown": "00"}},
        {"last_namespaces": lambda _: {"unknown": "00"}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_an_unknown_local_version_is_ignored(harness, change):
    handle, _ = epoch(harness, None, 0)
    with open(version_path(harness), "rb") as file:
        version = json.loads(file.read()[9:])
    for name, changed in change.items():
        version[name] = changed(version[name])
    written = json.dumps(version).encode()
    with open(version_path(harness), "wb") as file:
        file.write(b"%08x %s" % (zlib.crc32(written), written))
    backend = harness.open(ROCKSDB, handle, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)


def test_a_forked_child_that_changes_the_database_leaves_the_version_to_its_parent(harness):
    handle, _ = epoch(harness, None, 0)
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(VALUE)
    harness.at(backend, 1)
    assert state.value() == 1
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        reported = b"not rejected"
        try:
            # The value was read before the fork, so nothing is looked up.
            state.update(99)
            harness.snapshot(backend)
        except RocksDBError as error:
            reported = b"rejected" if "belongs to process" in str(error) else b"otherwise"
        finally:
            os.write(theirs, reported)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(ours, 100) == b"rejected"
    os.close(ours)
    os.close(theirs)
    assert os.path.exists(version_path(harness))
    backend.close()
    assert harness.open(ROCKSDB, handle, local="local").is_local


def test_files_of_another_store_are_restored_so_that_no_snapshot_references_them(harness, tmp_path):
    handle, _ = epoch(harness, None, 0)
    moved = BackendHarness(str(tmp_path / "moved"))
    shutil.copytree(os.path.join(harness.directory, "store"), os.path.join(moved.directory, "store"))
    restored = RestoredHandle(handle, moved.file_system)
    parameters = evolve(harness.parameters(local="local"), restore=(restored,))
    backend = ROCKSDB.create_keyed_state_backend(parameters)
    assert not backend.is_local
    snapshot = backend.snapshot(9, "state-9")
    backend.close()
    assert not set(snapshot.handle.files) & set(handle.files)
    assert contents(harness, harness.open(ROCKSDB, snapshot.handle)) == filled(KEYS, 0)
