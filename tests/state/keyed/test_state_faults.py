"""Kills and full disks: the last completed checkpoint restores exactly, and the file is named."""

import contextlib
import ctypes
import errno
import importlib
import itertools
import multiprocessing
import os
import random
import signal
import threading

import pytest

from statebackend import ValueStateDescriptor
from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.fs.local_storage import LocalStorage
from statebackend.state.state_backend import state_backend
from statebackend.testing.backends.harness import BackendHarness, contents, fill, filled
from typeserializers.scalars.byte_arrays import BytesSerializer

pytestmark = pytest.mark.slow

FORK_SERVER = multiprocessing.get_context("forkserver")
BACKENDS = ["heap", "rocksdb"]
KEYS = range(40)
LOWER = [key for key in KEYS if key % 10 < 5]
# Too many changes for the overlay of a read-only local database, so it is opened for writing.
MANY_KEYS = range(300)
BYTES = ValueStateDescriptor("bytes", BytesSerializer())


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def stop_at(path, number, connection):
    """Stop this process at the n-th call of a function, and notify the parent through a pipe."""
    module, _, path = path.partition(":")
    *owners, name = path.split(".")
    owner = importlib.import_module(module)
    for part in owners:
        owner = getattr(owner, part)
    original = getattr(owner, name)
    numbers = itertools.count(1)

    def stop():
        if next(numbers) == number:
            connection.send(name)
            connection.recv()

    def stopping(*arguments, **options):
        stop()
        return original(*arguments, **options)

    @contextlib.contextmanager
    def stopping_context(*arguments, **options):
        with original(*arguments, **options) as temporary:
            yield temporary
            # The file is written but not yet renamed.
            stop()

    setattr(owner, name, stopping_context if name == "replacing" else stopping)


def handle_and_next_epoch(name, directory, handle, parallelism, keys, point, connection):
    """Restore, write an epoch and take a snapshot with its asynchronous part on a thread; stop at the given point."""
    harness = BackendHarness(directory)
    stop_at(*point, connection)
    backend = harness.open(state_backend(name), handle, local="local", parallelism=parallelism)
    fill(harness, backend, keys, 1)
    task = backend.prepare_snapshot(1000, "killed")
    runner = threading.Thread(target=task.run)
    runner.start()
    runner.join()
    connection.send("the point was never reached")


def kill_at(name, harness, handle, point, parallelism=1, keys=None):
    keys = keys or (KEYS if parallelism == 1 else LOWER)
    ours, theirs = FORK_SERVER.Pipe()
    child = FORK_SERVER.Process(
        target=handle_and_next_epoch, args=(name, harness.directory, handle, parallelism, keys, point, theirs)
    )
    child.start()
    theirs.close()
    reached = ours.recv()
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert reached == point[0].replace(":", ".").rpartition(".")[2]


WRITING = [
    # In the asynchronous part: at the first file of the snapshot and at a later one.
    ("heap", ("statebackend.checkpoint.fs.local_storage:replacing", 1)),
    ("heap", ("statebackend.checkpoint.fs.local_storage:replacing", 2)),
    ("rocksdb", ("statebackend.state.rocksdb.rocksdb_state_store:RocksDBSnapshotTask._upload", 1)),
    ("rocksdb", ("statebackend.state.rocksdb.rocksdb_state_store:RocksDBSnapshotTask._upload", 3)),
]

WRITING_LOCALLY = [
    ("rocksdb", ("statebackend.checkpoint.fs.local_storage:replacing", 2), KEYS),
    ("rocksdb", ("statebackend.checkpoint.fs.local_storage:replacing", 2), MANY_KEYS),
    ("rocksdb", ("statebackend.state.rocksdb.engine:SstWriter.finish", 2), KEYS),
    ("rocksdb", ("statebackend.state.rocksdb.engine:SstWriter.finish", 2), MANY_KEYS),
    ("rocksdb", ("statebackend.state.rocksdb.engine:ColumnFamily.ingest", 1), MANY_KEYS),
    ("rocksdb", ("statebackend.state.rocksdb.engine:ColumnFamily.ingest", 3), MANY_KEYS),
]

RESTORING = [
    ("heap", ("statebackend.checkpoint.fs.file_system:CheckpointFileSystem.read_file", 1)),
    ("heap", ("statebackend.checkpoint.fs.file_system:CheckpointFileSystem.read_file", 2)),
    ("rocksdb", ("statebackend.checkpoint.fs.local_storage:replacing", 1)),
    ("rocksdb", ("statebackend.checkpoint.fs.local_storage:replacing", 3)),
    ("rocksdb", ("statebackend.state.rocksdb.engine:ColumnFamily.ingest", 2)),
    ("rocksdb", ("statebackend.state.rocksdb.engine:RocksDBEngine.column_family", 2)),
]


def first_handle(harness, name, local, keys=KEYS):
    backend = harness.open(state_backend(name), local=local)
    fill(harness, backend, keys, 0)
    handle = harness.snapshot(backend).handle
    backend.close()
    return handle


def check_everything_goes_on(harness, name, handle, parallelism=1, keys=None):
    """Check that the next attempt finds the handle's state, and that its snapshot restores exactly."""
    keys = keys or (KEYS if parallelism == 1 else LOWER)
    backend = harness.open(state_backend(name), handle, local="local", parallelism=parallelism)
    assert contents(harness, backend) == filled(keys, 0)
    fill(harness, backend, keys, 2)
    following = harness.snapshot(backend).handle
    backend.close()
    for local in ("local", None):
        again = harness.open(state_backend(name), following, local=local, parallelism=parallelism)
        assert contents(harness, again) == filled(keys, 0, 2)
        again.close()


@pytest.mark.parametrize("parallelism", [1, 2], ids=["increments", "bases"])
@pytest.mark.parametrize(("name", "point"), WRITING)
def test_a_kill_while_a_snapshot_is_written(harness, name, point, parallelism):
    handle = first_handle(harness, name, "local")
    kill_at(name, harness, handle, point, parallelism)
    check_everything_goes_on(harness, name, handle, parallelism)


@pytest.mark.parametrize(("name", "point", "keys"), WRITING_LOCALLY)
def test_a_kill_while_a_snapshot_is_prepared(harness, name, point, keys):
    # The local database is reused, so the counted calls belong to the snapshot.
    handle = first_handle(harness, name, "local", keys)
    kill_at(name, harness, handle, point, keys=keys)
    check_everything_goes_on(harness, name, handle, keys=keys)


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize(("name", "point"), RESTORING)
@pytest.mark.extended
def test_a_kill_while_a_snapshot_is_restored(harness, name, point, parallelism):
    handle = first_handle(harness, name, "elsewhere")
    kill_at(name, harness, handle, point, parallelism)
    check_everything_goes_on(harness, name, handle, parallelism)


class FullStorage:
    """A local store with space for this many files."""

    def __init__(self, storage, room_files):
        self.storage, self.room_files = storage, room_files

    def __getattr__(self, name):
        return getattr(self.storage, name)

    def put(self, path, data, durable):
        self.take_room(path)
        self.storage.put(path, data, durable)

    def put_file(self, source_path, path, may_link):
        self.take_room(path)
        return self.storage.put_file(source_path, path, may_link)

    def take_room(self, path):
        if not self.room_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self.room_files -= 1


@pytest.mark.parametrize("parallelism", [1, 2], ids=["increments", "bases"])
@pytest.mark.parametrize("room_files", [0, 1, 2])
@pytest.mark.parametrize("name", BACKENDS)
def test_a_store_without_space(harness, name, room_files, parallelism):
    handle = first_handle(harness, name, "elsewhere")
    keys = KEYS if parallelism == 1 else LOWER
    before = set(harness.file_system.list_files(""))
    root = harness.file_system.uri
    storage = FullStorage(LocalStorage(root), room_files)
    harness.file_system = CheckpointFileSystem(root, storage)
    backend = harness.open(state_backend(name), handle, local="local", parallelism=parallelism)
    fill(harness, backend, keys, 1)
    with pytest.raises(StorageError, match=r"state/operator-under-test-0-.*No space left on device"):
        harness.snapshot(backend)
    assert set(harness.file_system.list_files("")) == before
    again = harness.open(state_backend(name), handle, parallelism=parallelism)
    assert contents(harness, again) == filled(keys, 0)
    # With free space again, the backend itself has lost nothing.
    storage.room_files = 100
    following = harness.snapshot(backend).handle
    again = harness.open(state_backend(name), following, parallelism=parallelism)
    assert contents(harness, again) == filled(keys, 0, 1)


CLONE_NEWNS = 0x00020000
MS_REC_PRIVATE = 0x4000 | 0x40000
ROOM_BYTES = 3 << 20
BALLAST_BYTES = 1 << 20


def mount_small_disk(directory):
    """Mount a small disk in a private mount namespace; returns whether that is permitted."""
    library = ctypes.CDLL(None, use_errno=True)
    return (
        library.unshare(CLONE_NEWNS) == 0
        and library.mount(b"none", b"/", None, MS_REC_PRIVATE, None) == 0
        and library.mount(b"tmpfs", directory.encode(), b"tmpfs", 0, f"size={ROOM_BYTES}".encode()) == 0
    )


def write_until_the_disk_is_full(name, directory, place, connection):
    """Write epochs until the small disk is full; then free space and restore the last completed one."""
    harness = BackendHarness(directory)
    disk = os.path.join(directory, place)
    os.makedirs(disk)
    if not mount_small_disk(disk):
        connection.send(None)
        return
    with open(os.path.join(disk, "ballast"), "wb") as ballast:
        ballast.write(bytes(BALLAST_BYTES))
    draw = random.Random(7)
    handle, completed, values = None, {}, {}
    backend = harness.open(state_backend(name), local="local")
    failure = None
    while failure is None:
        state = backend.get_state(BYTES)
        for key in draw.sample(range(100), 50):
            harness.at(backend, key)
            values[key] = draw.randbytes(2000)
            state.update(values[key])
        try:
            handle, completed = harness.snapshot(backend).handle, dict(values)
        except Exception as error:
            failure = error
    backend.close()
    os.unlink(os.path.join(disk, "ballast"))
    results = []
    for following in (False, True):
        restored = harness.open(state_backend(name), handle, local="local")
        state = restored.get_state(BYTES)
        found = {}
        for key in restored.get_keys("bytes"):
            harness.at(restored, key)
            found[key] = state.value()
        results.append(found == completed)
        if not following:
            harness.at(restored, 1)
            completed[1] = b"after"
            state.update(completed[1])
            handle = harness.snapshot(restored).handle
        restored.close()
    connection.send((len(completed), type(failure).__name__, str(failure), results))


@pytest.mark.parametrize(("name", "place"), [("heap", "store"), ("rocksdb", "store"), ("rocksdb", "local")])
def test_a_small_disk_that_is_full(tmp_path, name, place):
    ours, theirs = FORK_SERVER.Pipe()
    child = FORK_SERVER.Process(target=write_until_the_disk_is_full, args=(name, str(tmp_path), place, theirs))
    child.start()
    theirs.close()
    answer = ours.recv()
    child.join()
    if answer is None:
        pytest.skip("this process may not mount a disk of its own")
    keys, failure, message, results = answer
    assert keys > 50
    assert failure == ("StorageError" if place == "store" else "RocksDBError")
    assert f"{tmp_path}/{place}/" in message
    assert "No space left on device" in message
    assert results == [True, True]
