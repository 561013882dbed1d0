"""A read-only local database with an overlay of few changes."""

import multiprocessing
import os
import signal
import struct

import pytest
from local_epochs import KEYS, ROCKSDB, damage, epoch, version_path

from statebackend import ValueStateDescriptor
from statebackend.state.errors import StateBackendClosedError, StateBackendError
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.rocksdb import read_only_database as read_only_database
from statebackend.state.rocksdb.engine import RocksDBEngine, RocksDBError, SstWriter
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_files import MAX_FILES
from statebackend.testing.backends.harness import VALUE, BackendHarness, content, contents, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer

pytestmark = pytest.mark.slow


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def test_an_unused_database_is_not_opened_and_is_valid_for_the_next_snapshot(harness, monkeypatch):
    def reject(*arguments):
        raise AssertionError("opened")

    handle, _ = epoch(harness, None, 0)
    with monkeypatch.context() as patched:
        patched.setattr("statebackend.state.rocksdb.local_database.RocksDBEngine", reject)
        for _ in range(3):
            backend = harness.open(ROCKSDB, handle, local="local")
            backend.get_state(VALUE)
            # An attempt that fails or is killed before its snapshot changes nothing.
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
        # An epoch that only peeks changes nothing.
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
    # After a full restore the first element is unknown and must be read. A closed queue raises an error.
    backend = harness.open(ROCKSDB, handle)
    queue = backend.get_priority_queue(TIMERS)
    assert (queue.peek(), queue.peek_key_group()) == (timer(8), 1)
    backend.close()
    with pytest.raises(StateBackendClosedError):
        queue.peek()


def changed(harness, handle, change, local="local"):
    """Run one epoch that changes the value state; returns the handle and whether the database was opened to write."""
    backend = harness.open(ROCKSDB, *([handle] if handle else []), local=local)
    change(backend, backend.get_state(VALUE))
    handle = harness.snapshot(backend).handle
    was_opened = backend._store.database.is_open
    backend.close()
    return handle, was_opened


def updates(harness, values):
    """A change that sets these keys to these values, None to clear, and reads each before and after."""

    def change(backend, state):
        for key, value in values.items():
            harness.at(backend, key)
            state.value()
            state.update(value)
            assert state.value() == value

    return change


def values_at(harness, handle, local=None):
    backend = harness.open(ROCKSDB, handle, local=local)
    found = content(harness, backend, VALUE)
    backend.close()
    return found


def test_few_changes_leave_the_database_unchanged_and_are_in_the_next_epoch(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1, 2: 2, 3: 3}))
    database = os.path.join(harness.directory, "local", "local", "db")
    lying = sorted(os.listdir(database))
    for values in ({1: 10}, {2: None, 4: 40}, {1: 11, 4: None}, {2: 22}):
        handle, was_opened = changed(harness, handle, updates(harness, values))
        assert not was_opened
    assert sorted(os.listdir(database)) == lying
    seen = {}

    def look(backend, state):
        for key in range(1, 5):
            harness.at(backend, key)
            seen[key] = state.value()

    handle, was_opened = changed(harness, handle, look)
    assert (was_opened, seen) == (False, {1: 11, 2: 22, 3: 3, 4: None})
    for local in (None, "local"):
        assert values_at(harness, handle, local) == {1: 11, 2: 22, 3: 3}


@pytest.mark.parametrize(
    ("bound", "limit", "fitting"),
    [("MAX_KEPT_ROWS", 3, 3), ("MAX_KEPT_BYTES", 4 * (11 + 8), 4), ("MAX_KEPT_ROWS", 0, 0)],
)
def test_changes_beyond_the_overlay_limit_are_moved_into_the_database_with_the_overlay(
    harness, monkeypatch, bound, limit, fitting
):
    monkeypatch.setattr(read_only_database, bound, limit)
    handle, _ = changed(harness, None, updates(harness, {0: -1}))
    expected = {0: -1}
    for key in range(fitting, 0, -1):
        # A row that changes again counts once.
        for value in (key, key + 1):
            handle, was_opened = changed(harness, handle, updates(harness, {key: value}))
            expected[key] = value
            assert not was_opened
    handle, was_opened = changed(harness, handle, updates(harness, {fitting + 1: 99}))
    expected[fitting + 1] = 99
    assert was_opened
    # After that, the overlay has space for the same number of rows again.
    assert changed(harness, handle, updates(harness, {0: 0}))[1] is (fitting == 0)
    for local in ("local", None):
        assert values_at(harness, handle, local) == expected


@pytest.mark.parametrize(("bound", "limit"), [("MAX_KEPT_ROWS", 3), ("MAX_KEPT_BYTES", 3 * (11 + 8))])
def test_the_overlays_of_all_states_of_a_subtask_are_bounded_together(harness, monkeypatch, bound, limit):
    monkeypatch.setattr(read_only_database, bound, limit)
    others = ValueStateDescriptor("other", int)

    def both(keys, other_keys):
        def change(backend, state):
            updates(harness, dict.fromkeys(keys, 5))(backend, state)
            updates(harness, dict.fromkeys(other_keys, 6))(backend, backend.get_state(others))

        return change

    handle, _ = changed(harness, None, both([0], [0]))
    handle, was_opened = changed(harness, handle, both([1], [2, 1]))
    assert not was_opened
    handle, was_opened = changed(harness, handle, both([2], []))
    assert was_opened
    for local in ("local", None):
        backend = harness.open(ROCKSDB, handle, local=local)
        assert content(harness, backend, VALUE) == dict.fromkeys(range(3), 5)
        assert content(harness, backend, others) == dict.fromkeys(range(3), 6)
        backend.close()


def test_a_row_deleted_in_the_overlay_stays_deleted_when_increments_are_merged(harness):
    # Enough rows that the increments stay smaller than the base.
    many = dict.fromkeys(range(3, 5_000), 3)
    handle, _ = changed(harness, None, updates(harness, {1: 1, 2: 2, **many}))
    handle, _ = changed(harness, handle, updates(harness, {1: None}))
    for number in range(MAX_FILES):
        handle, was_opened = changed(harness, handle, updates(harness, {2: number}))
        assert not was_opened
    assert len(handle.files) < MAX_FILES
    assert values_at(harness, handle) == {2: MAX_FILES - 1, **many}


def test_rows_are_looked_up_in_the_overlay_and_on_the_disk_together(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1, 2: 2, 3: 3}))
    handle, _ = changed(harness, handle, updates(harness, {1: 10, 3: None}))
    backend = harness.open(ROCKSDB, handle, local="local", metrics=StateMetricsConfig())
    backend.get_state(VALUE)
    rows = backend._store.tables["value"]._family
    # Key group, key, and the namespace of a state without namespaces.
    keys = {number: struct.pack(">HqB", number, number, 0) for number in range(1, 5)}
    expected = [struct.pack(">q", 10), struct.pack(">q", 2), None, None]
    assert rows.get_all([keys[1], keys[3]]) == [expected[0], None]
    assert not backend._store.database.is_open
    for is_open in (False, True):
        assert rows.get_all(list(keys.values())) == [rows.get(key) for key in keys.values()] == expected
        assert rows.get_all([]) == []
        if not is_open:
            read = rows._stored_rows()
            assert backend.collect_metrics().states["value"].entries == 2
            assert len(list(rows.scan(b""))) == 2
            # A writer must have the database for itself.
            with pytest.raises(RocksDBError, match="closed"):
                read.get(keys[2])
        assert backend._store.database.is_open


def test_a_database_opened_for_reading_is_closed_with_the_backend(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1}))
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(VALUE)
    harness.at(backend, 1)
    assert state.value() == 1
    read = backend._store.tables["value"]._family._stored_rows()
    assert not backend._store.database.is_open
    backend.close()
    with pytest.raises(RocksDBError, match="closed"):
        read.get(b"k")


def test_one_epoch_of_many_changes_is_moved_into_the_database(harness):
    handle, _ = changed(harness, None, updates(harness, {0: -1}))
    handle, _ = changed(harness, handle, updates(harness, {1: 1}))
    many = dict.fromkeys(range(1, read_only_database.MAX_KEPT_ROWS + 2), 5)
    handle, was_opened = changed(harness, handle, updates(harness, many))
    assert was_opened
    for local in ("local", None):
        assert values_at(harness, handle, local) == {0: -1, **many}


def test_the_first_read_opens_the_database_for_writing_only_after_an_epoch_of_many_changes(harness):
    """Two openings cost more than one, and an epoch is usually similar to the one before."""
    many = dict.fromkeys(range(read_only_database.MAX_KEPT_ROWS + 1), 5)
    handle, _ = changed(harness, None, updates(harness, many))
    openings = []
    for _ in range(3):
        handle, was_opened = changed(harness, handle, updates(harness, {1: 6}))
        openings.append(was_opened)
    assert openings == [True, False, False]
    assert values_at(harness, handle, "local") == {**many, 1: 6}


def test_a_backend_closed_before_its_snapshot_leaves_its_local_state_unchanged(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1}))
    handle, _ = changed(harness, handle, updates(harness, {2: 2}))
    backend = harness.open(ROCKSDB, handle, local="local")
    updates(harness, {1: None, 2: 20, 3: 30})(backend, backend.get_state(VALUE))
    # Written out early, as a full cache does.
    backend._store.tables["value"].write_out()
    backend.close()
    again = harness.open(ROCKSDB, handle, local="local")
    assert again.is_local
    assert content(harness, again, VALUE) == {1: 1, 2: 2}


@pytest.mark.parametrize(("wanted", "value"), [(0, 1), (1, 2)])
def test_changes_after_the_snapshot_are_not_part_of_it(harness, wanted, value):
    first, _ = changed(harness, None, updates(harness, {1: 1}))
    backend = harness.open(ROCKSDB, first, local="local")
    state = backend.get_state(VALUE)
    updates(harness, {1: 2})(backend, state)
    second = harness.snapshot(backend).handle
    updates(harness, {1: 3})(backend, state)
    backend._store.tables["value"].write_out()
    backend.close()
    backend = harness.open(ROCKSDB, (first, second)[wanted], local="local")
    # The database on the disk is unchanged.
    assert backend.is_local is (wanted == 0)
    assert content(harness, backend, VALUE) == {1: value}


def die_before_the_snapshot(harness, handle, connection):
    backend = harness.open(RocksDBStateBackend(cache_entries=1), handle, local="local")
    assert backend.is_local
    updates(harness, {1: None, 2: 20, 3: 30})(backend, backend.get_state(VALUE))
    assert not backend._store.database.is_open
    connection.send("in the middle")
    connection.recv()


def test_a_killed_attempt_with_few_changes_leaves_its_local_state_unchanged(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1}))
    handle, _ = changed(harness, handle, updates(harness, {2: 2}))
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    child = context.Process(target=die_before_the_snapshot, args=(BackendHarness(harness.directory), handle, theirs))
    child.start()
    assert ours.recv() == "in the middle"
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    again = harness.open(ROCKSDB, handle, local="local")
    assert again.is_local
    assert content(harness, again, VALUE) == {1: 1, 2: 2}


def test_the_overlay_is_applied_to_a_rebuilt_database(harness):
    first, _ = changed(harness, None, updates(harness, {1: 1, 2: 2, 3: 3}))
    second, _ = changed(harness, first, updates(harness, {1: 10, 2: None}))
    damage(harness)
    backend = harness.open(ROCKSDB, second, local="local")
    state = backend.get_state(VALUE)
    # None of these accesses reads the disk, and the handles contain none of the changes.
    harness.at(backend, 1)
    state.update(11)
    harness.at(backend, 2)
    assert state.value() is None
    backend._store.tables["value"].write_out()
    assert backend.is_local
    harness.at(backend, 3)
    assert state.value() == 3
    assert not backend.is_local
    handle = harness.snapshot(backend).handle
    backend.close()
    for local in ("local", None):
        assert values_at(harness, handle, local) == {1: 11, 3: 3}


@pytest.mark.parametrize("reads_one", [True, False])
def test_a_database_with_an_unreadable_row_is_rebuilt(harness, reads_one):
    asked = []

    def reject(key):
        asked.append(key)
        raise RocksDBError("block checksum mismatch")

    handle, _ = changed(harness, None, updates(harness, {1: 1, 2: 2, 3: 3}))
    handle, _ = changed(harness, handle, updates(harness, {1: 10, 2: None}))
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(VALUE)
    rows = backend._store.tables["value"]._family
    stored = rows._stored_rows()
    read = stored.get
    harness.at(backend, 3)
    if reads_one:
        stored.get = reject
        assert state.value() == 3
    else:
        stored.get = lambda key: asked.append(key) or read(key)
        assert state.value() == 3
        raw_key, stored.get_all = asked.pop(), reject
        expected = read(raw_key)
        assert rows.get_all([raw_key]) == [expected]
    assert len(asked) == 1
    assert backend._store.database.is_open
    assert content(harness, backend, VALUE) == {1: 10, 3: 3}
    handle = harness.snapshot(backend).handle
    backend.close()
    # The rebuilt database equals the damaged one.
    again = harness.open(ROCKSDB, handle, local="local")
    assert again.is_local
    again.close()
    assert values_at(harness, handle) == {1: 10, 3: 3}


def test_a_database_that_can_neither_be_read_nor_rebuilt_is_not_reused(harness):
    def reject(*arguments):
        raise RocksDBError("block checksum mismatch")

    handle, _ = changed(harness, None, updates(harness, {1: 1}))
    backend = harness.open(ROCKSDB, handle, local="local")
    state = backend.get_state(VALUE)
    backend._store.tables["value"]._family._stored_rows().get = reject
    backend._store.database._rebuild = reject
    harness.at(backend, 1)
    with pytest.raises(RocksDBError, match="block checksum"):
        state.value()
    backend.close()
    assert not os.path.exists(version_path(harness))
    assert not harness.open(ROCKSDB, handle, local="local").is_local


def test_a_forked_child_can_read_neither_overlay_nor_disk(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1, 2: 2}))
    handle, _ = changed(harness, handle, updates(harness, {2: 20}))
    for is_read_before in (False, True):
        backend = harness.open(ROCKSDB, handle, local="local")
        state = backend.get_state(VALUE)
        if is_read_before:
            harness.at(backend, 3)
            assert state.value() is None
        ours, theirs = os.pipe()
        child = os.fork()
        if not child:
            reported = b""
            for key in (1, 2):
                harness.at(backend, key)
                try:
                    state.value()
                except StateBackendError as error:
                    reported += b"rejected " if b"belongs to process" in str(error).encode() else b"otherwise "
            backend.close()
            os.write(theirs, reported or b"nothing rejected")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(ours, 100) == b"rejected rejected "
        os.close(ours)
        os.close(theirs)
        for key, value in ((1, 1), (2, 20)):
            harness.at(backend, key)
            assert state.value() == value
        handle = harness.snapshot(backend).handle
        backend.close()
    assert values_at(harness, handle, "local") == {1: 1, 2: 20}


def test_a_version_with_a_changed_byte_is_invalid(harness):
    handle, _ = changed(harness, None, updates(harness, {1: 1}))
    handle, _ = changed(harness, handle, updates(harness, {2: 2}))
    with open(version_path(harness), "rb") as file:
        written = file.read()
    directory = harness.open(ROCKSDB, handle, local="local")._store.database.directory
    assert directory.read_version().kept == {"value": {struct.pack(">HqB", 2, 2, 0): struct.pack(">q", 2)}}
    for place in range(len(written)):
        for other in (written[place] ^ 1, ord("0"), ord('"')):
            if other != written[place]:
                with open(version_path(harness), "wb") as file:
                    file.write(written[:place] + bytes([other]) + written[place + 1 :])
                assert directory.read_version() is None, place
    for length in range(len(written)):
        with open(version_path(harness), "wb") as file:
            file.write(written[:length])
        assert directory.read_version() is None


def test_a_read_only_database_rejects_writes_and_needs_its_column_families(tmp_path):
    path = str(tmp_path / "db")
    store = RocksDBEngine(path)
    store.column_family("a")
    store.close()
    writer = SstWriter(str(tmp_path / "one.sst"))
    writer.write([(b"k", b"v")])
    writer.finish()
    reader = RocksDBEngine(path, only_read=["a"])
    with pytest.raises(RocksDBError, match="could not ingest"):
        reader.column_family("a").ingest(writer.path)
    with pytest.raises(RocksDBError, match="open to be read and has no column family 'b'"):
        reader.column_family("b")
    reader.close()
    with pytest.raises(RocksDBError, match="could not open"):
        RocksDBEngine(path, only_read=["a", "b"])
    with pytest.raises(RocksDBError, match="could not open"):
        RocksDBEngine(str(tmp_path / "nothing"), only_read=["a"])
    assert not os.path.exists(tmp_path / "nothing" / "CURRENT")
