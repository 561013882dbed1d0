"""The local database of a subtask: when it may be used as it is, and what keeps two attempts apart."""

import multiprocessing
import os
import signal
from dataclasses import make_dataclass

import pytest

from checkpointing.errors import MissingFileError
from statebackend import ListStateDescriptor, ValueStateDescriptor
from statebackend.api.errors import StateBackendClosedError, StateBackendError
from statebackend.rocksdb.local_directory import LocalStateDirectory, LocalVersion
from statebackend.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from testkit.backends.contract_base import VALUE, contents, fill, filled
from testkit.backends.harness import BackendHarness
from testkit.backends.priority_queue_contract import TIMERS, timer
from typeserializers.scalars.fixed_width import ByteSerializer

ROCKSDB = RocksDBStateBackend()
KEYS = range(20)


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def epoch(harness, handle, offset, local="local"):
    """Runs one epoch in the local directory as a task would; returns the handle and whether it was opened as it was."""
    backend = harness.open(ROCKSDB, *([handle] if handle else []), local=local)
    fill(harness, backend, KEYS, offset)
    snapshot = harness.snapshot(backend)
    is_local = backend.is_local
    backend.close()
    return snapshot.handle, is_local


def version_path(harness, local="local"):
    return os.path.join(harness.directory, "local", local, "VERSION")


def test_the_database_that_holds_the_wanted_version_is_opened_as_it_is(harness):
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


def test_the_scans_of_a_queue_begin_where_its_elements_do(harness):
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


@pytest.mark.parametrize("offset", [0, 1])
def test_any_other_version_is_restored_from_its_handle(harness, offset):
    first, _ = epoch(harness, None, 0)
    second, _ = epoch(harness, first, 1)
    epoch(harness, second, 2)
    wanted = (first, second)[offset]
    backend = harness.open(ROCKSDB, wanted, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, *range(offset + 1))


def test_a_database_is_without_version_while_it_is_open(harness):
    handle, _ = epoch(harness, None, 0)
    assert os.path.exists(version_path(harness))
    backend = harness.open(ROCKSDB, handle, local="local")
    fill(harness, backend, KEYS, 1)
    assert contents(harness, backend) == filled(KEYS, 0, 1)
    assert not os.path.exists(version_path(harness))
    backend.close()
    assert not os.path.exists(version_path(harness))


def test_a_database_of_which_nothing_is_asked_is_not_opened_and_holds_the_next_snapshot_too(harness, monkeypatch):
    def refuse(*arguments):
        raise AssertionError("opened")

    handle, _ = epoch(harness, None, 0)
    with monkeypatch.context() as patched:
        patched.setattr("statebackend.rocksdb.local_database.RocksDBEngine", refuse)
        for _ in range(3):
            backend = harness.open(ROCKSDB, handle, local="local")
            backend.get_state(VALUE)
            # What fails, or is killed, before its snapshot changes nothing.
            backend.close()
            backend = harness.open(ROCKSDB, handle, local="local")
            backend.get_state(VALUE)
            assert backend.is_local
            snapshot = harness.snapshot(backend)
            assert (snapshot.entries_written, snapshot.handle.files) == (0, handle.files)
            assert snapshot.handle.state_id != handle.state_id
            handle = snapshot.handle
            backend.close()
            assert os.path.exists(version_path(harness))
    handle, is_local = epoch(harness, handle, 1)
    assert is_local
    assert contents(harness, harness.open(ROCKSDB, handle, local="local")) == filled(KEYS, 0, 1)


def test_the_first_element_of_a_queue_is_known_without_the_database(harness):
    def next_epoch(handle, change):
        backend = harness.open(ROCKSDB, *([handle] if handle else []), local="local")
        queue = backend.get_priority_queue(TIMERS)
        first, key_group = queue.peek(), queue.peek_key_group()
        was_open = backend._store.database.is_open
        change(queue)
        handle = harness.snapshot(backend).handle
        backend.close()
        return handle, first, key_group, was_open

    def poll(queue):
        queue.poll()

    handle, first, _, _ = next_epoch(None, lambda queue: queue.add_all([(timer(5), 3), (timer(7), 4), (timer(9), 3)]))
    assert first is None
    for expected in [(timer(5), 3, False), (timer(7), 4, False), (timer(9), 3, False), (None, None, False)]:
        # A look, and nothing else, leaves all as it is.
        handle, *found = next_epoch(handle, lambda queue: None)
        assert tuple(found) == expected
        handle, *found = next_epoch(handle, poll)
        assert tuple(found) == expected
    handle, *found = next_epoch(handle, lambda queue: queue.add(timer(8), 1))
    assert found == [None, None, False]
    handle, *found = next_epoch(handle, lambda queue: queue.add(timer(2), 2))
    assert found == [timer(8), 1, False]
    handle, *found = next_epoch(handle, lambda queue: queue.remove(timer(2), 2))
    assert found == [timer(2), 2, False]
    # Nothing is known of a queue behind a restore, and nothing is said of one that was closed.
    backend = harness.open(ROCKSDB, handle)
    queue = backend.get_priority_queue(TIMERS)
    assert (queue.peek(), queue.peek_key_group()) == (timer(8), 1)
    backend.close()
    with pytest.raises(StateBackendClosedError):
        queue.peek()


def test_a_database_that_can_neither_be_opened_nor_filled_anew_is_an_error_each_time_and_has_no_version(harness):
    handle, _ = epoch(harness, None, 0)
    damage(harness)
    os.unlink(harness.store_path(handle.files[0].path))
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(VALUE)
    harness.at(backend, 1)
    with pytest.raises(MissingFileError):
        state.value()
    # A function may have caught it.
    for _ in range(2):
        with pytest.raises(StateBackendError, match="could not be opened"):
            state.value()
    with pytest.raises(StateBackendError, match="could not be opened"):
        contents(harness, backend)
    snapshot = harness.snapshot(backend)
    assert snapshot.handle.files == handle.files
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
    monkeypatch.setattr("statebackend.rocksdb.local_directory._boot_id", lambda: "after a crash of the machine")
    backend = harness.open(ROCKSDB, handle, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)


@pytest.mark.parametrize("content", ["", "{}", "[]", "not json", '{"state_id": 1, "boot_id": null}'])
def test_a_damaged_version_is_no_version(harness, content):
    handle, _ = epoch(harness, None, 0)
    with open(version_path(harness), "w") as stream:
        stream.write(content)
    backend = harness.open(ROCKSDB, handle, local="local")
    assert not backend.is_local
    assert contents(harness, backend) == filled(KEYS, 0)


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
    # What was filled anew is as good as what was damaged.
    for local in ("local", None):
        again = harness.open(ROCKSDB, snapshot.handle, local=local)
        assert again.is_local is (local is not None)
        assert contents(harness, again) == filled(KEYS, 0, 1)


def record(**fields):
    """A record class of these fields; another one of the same name takes its place."""
    made = make_dataclass("Record", [(name, int, default) for name, default in fields.items()])
    made.__module__ = __name__
    globals()["Record"] = made
    return made


def evolved(harness):
    """A handle whose database was migrated, so that its rows lie elsewhere than in a new one; a state and its value."""
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


def test_what_is_written_first_to_a_damaged_database_is_there_beside_what_is_restored(harness):
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


def damage(harness):
    database = os.path.join(harness.directory, "local", "local", "db")
    files = [name for name in os.listdir(database) if name.endswith(".sst")]
    os.unlink(os.path.join(database, files[0]))


def test_a_database_of_many_files_is_restored(harness, monkeypatch):
    handle, _ = epoch(harness, None, 0)
    # The first files find a place below level zero, one at each level.
    offsets = range(1, 9)
    for offset in offsets:
        handle, is_local = epoch(harness, handle, offset)
        assert is_local
    monkeypatch.setattr("statebackend.rocksdb.local_database.MAX_LOCAL_FILES", 0)
    backend = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, backend) == filled(KEYS, 0, *offsets)
    assert not backend.is_local


def test_another_parallelism_restores(harness):
    handle, _ = epoch(harness, None, 0)
    backend = harness.open(ROCKSDB, handle, local="local", subtask=0, parallelism=2)
    assert not backend.is_local
    assert contents(harness, backend) == filled([key for key in KEYS if key % 10 < 5], 0)


def test_a_zombie_keeps_its_directory_and_the_next_attempt_works_beside_it(harness):
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


def test_a_directory_that_was_wiped_has_no_version_though_a_database_is_begun_in_it(tmp_path):
    directory = LocalStateDirectory(str(tmp_path / "local"))
    os.makedirs(directory.database_path)
    directory.write_version(LocalVersion("state-1", {}))
    assert directory.read_version() is not None
    directory.wipe()
    # A restore that is killed half way leaves no more than this.
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


def test_files_on_their_way_go_when_the_directory_is_closed(tmp_path):
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


def test_an_attempt_that_was_killed_leaves_no_version(harness):
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


def test_what_a_killed_attempt_was_working_on_is_removed(tmp_path):
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


def test_private_directories_of_killed_attempts_are_removed_and_those_in_use_are_not(tmp_path):
    path = str(tmp_path / "subtask")
    zombie = LocalStateDirectory(path)
    in_use = LocalStateDirectory(path)
    abandoned = tmp_path / f"subtask-{'0a' * 16}"
    # Killed before it had its lock, and killed later.
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


def test_deleting_a_value_and_writing_the_byte_of_a_dash_have_different_digests(harness):
    digests = set()
    for value in (ord("-"), None):
        backend = harness.open(ROCKSDB)
        state = backend.get_state(ValueStateDescriptor("byte", ByteSerializer()))
        harness.at(backend, 1)
        state.update(1)
        state.update(value)
        digests.add(harness.snapshot(backend).digest)
    assert len(digests) == 2
