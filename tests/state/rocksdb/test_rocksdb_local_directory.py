"""The local database of a subtask: when it is reused, and how two attempts are separated."""

import multiprocessing
import os
import signal

import pytest
from local_epochs import KEYS, ROCKSDB, epoch, version_path

from statebackend import ValueStateDescriptor
from statebackend.state.key_batch import KeyBatch
from statebackend.state.rocksdb.local_directory import LocalStateDirectory, LocalVersion
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import VALUE, BackendHarness, contents, fill, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer
from typeserializers.scalars.fixed_width import ByteSerializer, LongSerializer


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def test_the_database_of_the_wanted_version_is_reused(harness):
    handle, _ = epoch(harness, None, 0)
    for offset in (1, 2):
        handle, is_local = epoch(harness, handle, offset)
        assert is_local
    assert contents(harness, harness.open(ROCKSDB, handle)) == filled(KEYS, 0, 1, 2)


def test_a_local_database_needs_no_file_of_the_store(harness):
    handle, _ = epoch(harness, None, 0)
    for file in handle.files:
        os.unlink(harness.store_path(file.path))
    backend = harness.open(ROCKSDB, handle, local="local")
    assert backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)


def test_the_scans_of_a_queue_start_at_its_first_element(harness):
    def opened(handle):
        backend = harness.open(ROCKSDB, *([handle] if handle else []), local="local")
        assert backend.is_local is (handle is not None)
        table = backend._store.tables.get("timers")
        return backend, None if table is None else table.queue_ends.lower_bound

    def after(backend):
        handle = harness.snapshot(backend).handle
        backend.close()
        return handle

    write = TIMERS.element_serializer.to_bytes
    backend, _ = opened(None)
    backend.get_priority_queue(TIMERS).add_all((timer(number), number % 10) for number in range(100))
    backend, bound = opened(after(backend))
    assert bound == write(timer(0))
    queue = backend.get_priority_queue(TIMERS)
    assert sum(1 for _ in queue.poll_while(lambda element: element.timestamp < 60)) == 60
    backend, bound = opened(after(backend))
    assert bound == write(timer(60))
    # An epoch that does not register the queue keeps the bound; an earlier element lowers it.
    backend, bound = opened(after(backend))
    assert bound == write(timer(60))
    assert backend.get_priority_queue(TIMERS).add(timer(3), 3) is True
    backend, bound = opened(after(backend))
    assert bound == write(timer(3))
    queue = backend.get_priority_queue(TIMERS)
    assert [element.timestamp for element, _ in queue.poll_while(lambda element: True)] == [3, *range(60, 100)]
    backend, bound = opened(after(backend))
    assert bound == write(timer(99))
    assert backend.get_priority_queue(TIMERS).add(timer(5), 5) is True
    backend, _ = opened(after(backend))
    assert list(backend.get_priority_queue(TIMERS)) == [timer(5)]


def test_the_largest_element_of_a_queue_is_known_only_for_its_own_database(harness):
    backend = harness.open(ROCKSDB, local="local")
    backend.get_priority_queue(TIMERS).add_all((timer(number), number % 10) for number in range(100))
    handle = harness.snapshot(backend).handle
    backend.close()
    largest = TIMERS.element_serializer.to_bytes(timer(99))
    for local, expected in (("local", largest), ("another", None)):
        backend = harness.open(ROCKSDB, handle, local=local)
        assert backend._store.tables["timers"].queue_ends.upper_bound == expected
        queue = backend.get_priority_queue(TIMERS)
        queue.add_all([(timer(99), 9), (timer(200), 0)])
        assert sorted(element.timestamp for element in queue) == [*range(100), 200]


@pytest.mark.parametrize(
    ("local", "misses"), [("local", [2, 4, 4, 6]), ("another", [2, 4, 6, 8])], ids=["its own", "restored"]
)
def test_a_later_namespace_needs_no_look_up_in_its_own_database(harness, local, misses):
    def opened(*handle, local):
        backend = harness.open(ROCKSDB, *handle, local=local)
        backend.access_in_bulk()
        return backend, backend.get_or_create_keyed_state(LongSerializer(), VALUE)

    def keys(backend):
        return KeyBatch([1, 2], [harness.key_group(1), harness.key_group(2)], backend.key_setter())

    backend, state = opened(local="local")
    state.set_current_namespace(5)
    state.put_many(keys(backend), [1, 2])
    handle = harness.snapshot(backend).handle
    backend.close()
    backend, state = opened(handle, local=local)
    counted = []
    for namespace in (5, 4, 6, 3):
        state.set_current_namespace(namespace)
        assert state.get_many(keys(backend)) == ([1, 2] if namespace == 5 else [None, None])
        counted.append(state.cache_misses)
    assert counted == misses


@pytest.mark.parametrize("offset", [0, 1])
def test_any_other_version_is_restored_from_its_handle(harness, offset):
    first, _ = epoch(harness, None, 0)
    second, _ = epoch(harness, first, 1)
    epoch(harness, second, 2)
    wanted = (first, second)[offset]
    backend = harness.open(ROCKSDB, wanted, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, *range(offset + 1))


def test_a_database_has_no_version_while_it_is_open(harness):
    handle, _ = epoch(harness, None, 0)
    assert os.path.exists(version_path(harness))
    backend = harness.open(ROCKSDB, handle, local="local")
    fill(harness, backend, KEYS, 1)
    assert contents(harness, backend) == filled(KEYS, 0, 1)
    assert not os.path.exists(version_path(harness))
    backend.close()
    assert not os.path.exists(version_path(harness))


def test_changes_after_the_snapshot_leave_no_version(harness):
    backend = harness.open(RocksDBStateBackend(cache_entries=1), local="local")
    fill(harness, backend, KEYS)
    handle = harness.snapshot(backend).handle
    fill(harness, backend, KEYS, 1)
    backend.close()
    assert not os.path.exists(version_path(harness))
    assert contents(harness, harness.open(ROCKSDB, handle, local="local")) == filled(KEYS, 0)


def test_a_version_of_another_boot_is_not_trusted(harness, monkeypatch):
    handle, _ = epoch(harness, None, 0)
    monkeypatch.setattr("statebackend.state.rocksdb.local_directory._boot_id", lambda: "after a crash of the machine")
    backend = harness.open(ROCKSDB, handle, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"state_id": 1, "boot_id": null}'])
def test_a_damaged_version_is_invalid(harness, content):
    handle, _ = epoch(harness, None, 0)
    with open(version_path(harness), "w") as stream:
        stream.write(content)
    backend = harness.open(ROCKSDB, handle, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)


def test_another_parallelism_restores(harness):
    handle, _ = epoch(harness, None, 0)
    backend = harness.open(ROCKSDB, handle, local="local", subtask=0, parallelism=2)
    assert not backend.is_local
    assert contents(harness, backend) == filled([key for key in KEYS if key % 10 < 5], 0)


def test_a_zombie_keeps_its_directory_and_the_next_attempt_uses_another(harness):
    handle, _ = epoch(harness, None, 0)
    zombie = harness.open(ROCKSDB, handle, local="local")
    fill(harness, zombie, KEYS, 7)
    attempt = harness.open(ROCKSDB, handle, local="local")
    assert not attempt.is_local
    fill(harness, attempt, KEYS, 1)
    newer = harness.snapshot(attempt).handle
    assert len(os.listdir(os.path.join(harness.directory, "local"))) == 2
    attempt.close()
    assert os.listdir(os.path.join(harness.directory, "local")) == ["local"]
    assert contents(harness, zombie) == filled(KEYS, 0, 7)
    zombie.close()
    assert contents(harness, harness.open(ROCKSDB, newer, local="local")) == filled(KEYS, 0, 1)


def test_a_wiped_directory_has_no_version_even_with_a_new_database(tmp_path):
    directory = LocalStateDirectory(str(tmp_path / "local"))
    os.makedirs(directory.database_path)
    directory.write_version(LocalVersion("state-1", {}))
    assert directory.read_version() is not None
    directory.wipe()
    # A restore that is killed halfway leaves only this.
    os.makedirs(directory.database_path)
    assert directory.read_version() is None
    directory.close()


def test_a_directory_can_be_locked_again_once_it_is_closed(tmp_path):
    path = str(tmp_path / "subtask")
    for number in range(2):
        directory = LocalStateDirectory(path)
        assert directory.path == path
        os.makedirs(directory.database_path, exist_ok=True)
        directory.write_version(LocalVersion(f"state-{number}", {"a": "0:a"}))
        assert directory.read_version() == LocalVersion(f"state-{number}", {"a": "0:a"})
        directory.close()
        directory.close()


def test_files_in_progress_are_removed_when_the_directory_is_closed(tmp_path):
    path = str(tmp_path / "subtask")
    directory = LocalStateDirectory(path)
    with open(directory.new_file(".sst"), "w") as file:
        file.write("that nobody has taken")
    directory.close()
    assert os.listdir(path) == ["lock"]


def die_in_the_middle_of_an_epoch(harness, handle, connection):
    backend = harness.open(RocksDBStateBackend(cache_entries=1), handle, local="local")
    assert backend.is_local
    fill(harness, backend, KEYS, 1)
    connection.send("in the middle")
    connection.recv()


def test_a_killed_attempt_leaves_no_version(harness):
    handle, _ = epoch(harness, None, 0)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(
        target=die_in_the_middle_of_an_epoch, args=(BackendHarness(harness.directory), handle, theirs)
    )
    child.start()
    assert ours.recv() == "in the middle"
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    assert not os.path.exists(version_path(harness))
    backend = harness.open(ROCKSDB, handle, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)
    assert backend.get_state(VALUE) is not None


def test_files_in_progress_of_a_killed_attempt_are_removed(tmp_path):
    path = str(tmp_path / "subtask")
    directory = LocalStateDirectory(path)
    with directory.scratch() as scratch:
        kept = f"{scratch}-killed"
        os.mkdir(kept)
        assert os.stat(scratch).st_dev == os.stat(path).st_dev
    assert not os.path.exists(scratch)
    directory.wipe()
    assert not os.path.exists(kept)
    directory.close()
    assert os.listdir(path) == ["lock"]


def test_only_unused_private_directories_of_killed_attempts_are_removed(tmp_path):
    path = str(tmp_path / "subtask")
    zombie = LocalStateDirectory(path)
    in_use = LocalStateDirectory(path)
    abandoned = tmp_path / f"subtask-{'0a' * 16}"
    # One attempt was killed before it had its lock, and the others after it.
    for directory in (tmp_path / f"subtask-{'1b' * 16}", abandoned, abandoned / "db"):
        directory.mkdir(mode=0o700)
    (abandoned / "lock").touch()
    others = ["subtask-of-another-kind", f"subtask-{'0a' * 16}-kept", f"my-subtask-{'0a' * 16}"]
    for name in others:
        (tmp_path / name).mkdir()
    zombie.close()
    LocalStateDirectory(path).close()
    left = sorted(os.listdir(tmp_path))
    assert left == sorted(["subtask", *others, os.path.basename(in_use.path)])
    in_use.close()
    assert sorted(os.listdir(tmp_path)) == sorted(["subtask", *others])


def test_deleting_a_value_and_writing_a_dash_byte_have_different_digests(harness):
    digests = set()
    for value in (ord("-"), None):
        backend = harness.open(ROCKSDB)
        state = backend.get_state(ValueStateDescriptor("byte", ByteSerializer()))
        harness.at(backend, 1)
        state.update(1)
        state.update(value)
        digests.add(harness.snapshot(backend).digest)
    assert len(digests) == 2
