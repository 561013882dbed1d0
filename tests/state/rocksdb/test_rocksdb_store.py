"""Pitfalls of rocksdict, and how our store avoids them."""

import contextlib
import os
import resource
import threading

import pytest

from statebackend.state.rocksdb import engine
from statebackend.state.rocksdb.engine import RocksDBEngine, RocksDBError, SstWriter
from statebackend.state.rocksdb.local_directory import LocalStateDirectory, LocalVersion
from statebackend.state.rocksdb.read_only_database import ReadOnlyDatabase
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, contents, fill, filled

ENTRIES = [(b"k%02d" % number, b"v%d" % number) for number in range(10)]


def written_file(path, entries=ENTRIES):
    writer = SstWriter(str(path))
    writer.write(entries)
    writer.finish()
    return writer.path


@pytest.fixture
def store(tmp_path):
    store = RocksDBEngine(str(tmp_path / "db"))
    store.column_family("a").ingest(written_file(tmp_path / "first.sst"))
    yield store
    store.close()


def test_a_scan_starts_at_the_given_key_and_goes_to_the_end(store):
    assert list(store.column_family("a").scan(b"k03")) == ENTRIES[3:]
    assert list(store.column_family("a").scan(b"k025")) == ENTRIES[3:]


@pytest.mark.parametrize("limit", [1, 3, 4, 10, 11, 100])
def test_keys_are_those_of_a_scan(store, tmp_path, limit):
    family = store.column_family("a")
    family.ingest(written_file(tmp_path / "second.sst", [(b"k03", None), (b"k035", b"more")]))
    for start in (b"", b"k02", b"k025", b"z"):
        for end in (b"k02", b"k03", b"k055", b"z"):
            assert family.keys(start, end, limit) == [key for key, _ in family.scan(start, end)][:limit]
    assert store.column_family("b").keys(b"", b"z", limit) == []


def test_a_prefix_scan_has_only_keys_with_the_prefix(store, tmp_path):
    neighbours = [(b"k0", b"0"), (b"k0\xff", b"1"), (b"k1", b"2"), (b"l", b"3")]
    store.column_family("a").ingest(written_file(tmp_path / "more.sst", neighbours))
    assert list(store.column_family("a").scan_prefix(b"k0")) == [(b"k0", b"0"), *ENTRIES, (b"k0\xff", b"1")]
    assert list(store.column_family("a").scan_prefix(b"\xff")) == []


def test_a_later_file_overrides_an_earlier_one_and_deletes(store, tmp_path):
    family = store.column_family("a")
    family.ingest(written_file(tmp_path / "second.sst", [(b"k01", None), (b"k02", b"new")]))
    assert (family.get(b"k01"), family.get(b"k02"), family.get(b"k03")) == (None, b"new", b"v3")


def test_a_scan_shows_the_content_of_its_start(store, tmp_path):
    family = store.column_family("a")
    scan, dropped = family.scan(b""), family.scan_prefix(b"k")
    read = []
    started = [next(scan), next(dropped)]
    family.ingest(written_file(tmp_path / "second.sst", [(b"k05", None), (b"k06", b"new"), (b"k065", b"more")]))
    store.drop("a")
    reader = threading.Thread(target=lambda: read.extend([list(scan), list(dropped)]))
    reader.start()
    reader.join()
    assert started == [ENTRIES[0], ENTRIES[0]]
    assert read == [ENTRIES[1:], ENTRIES[1:]]


@pytest.mark.parametrize("per_key", [1, 2, 3, 10])
@pytest.mark.parametrize("value_bytes", [8, 50_000])
def test_sorted_look_ups_return_the_values_of_single_ones(store, tmp_path, monkeypatch, per_key, value_bytes):
    monkeypatch.setattr(engine, "_MIN_SCANNED_KEYS", 5)
    monkeypatch.setattr(engine, "_SAMPLED_ROWS", 4)
    monkeypatch.setattr(engine, "_MOST_SCANNED_ROWS", 16)
    family = store.column_family("a")
    rows = [(b"m%04d" % number, b"%d" % number * (value_bytes // 8)) for number in range(200)]
    family.ingest(written_file(tmp_path / "more.sst", rows))
    family.ingest(written_file(tmp_path / "gone.sst", [(key, None) for key, _ in rows[50:60]]))
    present = [key for key, _ in rows][::per_key]
    # Some keys are between the rows, and the last ones are after all rows.
    every = sorted([*present, *(key + b"x" for key in present[::7]), b"n", b"o"])
    for keys in (
        every,
        every[:60],
        every[::-1],
        [*every, every[0]],
        [every[3]] * 9,
        [b"z%d" % end for end in range(9)],
    ):
        assert family.get_all(keys) == [family.get(key) for key in keys]


def test_an_unknown_property_is_an_error(store):
    assert store.column_family("a").property_value("estimate-num-keys") == len(ENTRIES)
    with pytest.raises(RocksDBError, match="no property 'shoe-size'"):
        store.column_family("a").property_value("shoe-size")


def test_closing_releases_the_lock_though_families_and_scans_are_still_held(store):
    family = store.column_family("a")
    scan = family.scan(b"")
    prefix_scan = family.scan_prefix(b"k")
    next(scan)
    next(prefix_scan)
    store.close()
    store.close()
    reopened = RocksDBEngine(store.path)
    assert list(reopened.column_family("a").scan(b"")) == ENTRIES
    reopened.close()
    with pytest.raises(RocksDBError, match="closed"):
        family.get(b"k01")
    assert list(scan) == []


def test_a_second_store_on_the_same_directory_is_rejected_by_name(store):
    with pytest.raises(RocksDBError, match=r"could not open at .*db"):
        RocksDBEngine(store.path)


def test_an_error_of_a_read_that_cannot_open_the_database_keeps_its_cause(store):
    """A cyclic cause would make error handlers loop forever."""

    def no_space(*names):
        try:
            raise OSError(28, "No space left on device")
        except OSError as error:
            raise RocksDBError("could not open for a") from error

    def read(family, get):
        try:
            get(b"k")
        except Exception as error:
            family.reading_failed(error)

    unopened = ReadOnlyDatabase(LocalVersion("state", {"a": "0:a"}), no_space, no_space, list).rows["a"]
    for family in (unopened, store.column_family("a")):
        with pytest.raises(RocksDBError, match="could not open for a") as caught:
            read(family, unopened.get)
        assert isinstance(caught.value.__cause__, OSError)


def test_a_dropped_column_family_is_gone_and_its_name_can_be_reused(store):
    family = store.column_family("a")
    store.drop("a")
    with pytest.raises(RocksDBError):
        family.get(b"k01")
    assert list(store.column_family("a").scan(b"")) == []


def test_column_families_are_found_again_without_being_listed(store):
    store.column_family("b:with any name / é")
    store.close()
    reopened = RocksDBEngine(store.path)
    assert sorted(reopened.column_family_names) == ["a", "b:with any name / é"]
    reopened.close()


def test_keys_out_of_order_are_an_error_that_names_the_file(tmp_path):
    writer = SstWriter(str(tmp_path / "unsorted.sst"))
    with pytest.raises(RocksDBError, match=r"unsorted\.sst"):
        writer.write([(b"b", b""), (b"a", b"")])


def test_all_entries_are_written_at_once_in_order_or_rejected_with_the_file_name(store, tmp_path):
    writer = SstWriter(str(tmp_path / "all.sst"))
    writer.put_all([b"x", b"y"], [b"1", b""])
    writer.finish()
    assert writer.entry_count == 2
    store.column_family("a").ingest(writer.path)
    assert list(store.column_family("a").scan(b"x")) == [(b"x", b"1"), (b"y", b"")]
    with pytest.raises(RocksDBError, match=r"unsorted\.sst"):
        SstWriter(str(tmp_path / "unsorted.sst")).put_all([b"b", b"a"], [b"", b""])


@pytest.mark.parametrize("values", [[b"1", None, b"3"], [None, None, None], [b"1", b"2", b"3"]])
def test_deletions_are_written_with_values_and_alone(store, tmp_path, values):
    family, keys = store.column_family("a"), [b"x", b"y", b"z"]
    for number, content in enumerate(([b"old"] * 3, values)):
        writer = SstWriter(str(tmp_path / f"{number}.sst"))
        writer.put_all(keys, content)
        writer.finish()
        family.ingest(writer.path)
    assert list(map(family.get, keys)) == values
    assert family.get_all(keys) == values
    assert family.get_all([]) == []


@pytest.mark.parametrize("damage", ["unfinished", "truncated", "flipped", "missing"])
def test_a_file_that_is_not_sorted_is_rejected_by_name(store, tmp_path, damage):
    path = tmp_path / "damaged.sst"
    if damage == "unfinished":
        SstWriter(str(path)).write(ENTRIES)
    elif damage != "missing":
        written_file(path)
        data = bytearray(path.read_bytes())
        data[len(data) - 20] ^= 0xFF
        path.write_bytes(data if damage == "flipped" else data[:50])
    with pytest.raises(RocksDBError, match=r"damaged\.sst"):
        store.column_family("a").ingest(str(path))
    assert list(store.column_family("a").scan(b"")) == ENTRIES


def test_an_error_of_the_entries_is_not_reported_as_one_of_the_library(tmp_path):
    class StorageFullError(RocksDBError):
        pass

    def entries():
        yield b"a", b""
        raise StorageFullError("from the entries")

    with pytest.raises(StorageFullError):
        SstWriter(str(tmp_path / "file.sst")).write(entries())


def in_child(function):
    """The result of the function, or the name of its exception, in a forked child."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = str(function())
        except BaseException as error:
            result = type(error).__name__
        os.write(write_end, result.encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write_end)
    with os.fdopen(read_end) as stream:
        return stream.read()


def test_a_forked_child_can_neither_read_nor_write_nor_close(store, tmp_path):
    family = store.column_family("a")
    file = written_file(tmp_path / "child.sst", [(b"child", b"")])
    assert in_child(lambda: family.get(b"k01")) == "RocksDBError"
    assert in_child(lambda: list(family.scan(b""))) == "RocksDBError"
    assert in_child(lambda: list(family.scan_prefix(b"k"))) == "RocksDBError"
    assert in_child(lambda: family.ingest(file)) == "RocksDBError"
    assert in_child(lambda: store.column_family("new")) == "RocksDBError"
    assert in_child(store.close) == "None"
    assert family.get(b"k01") == b"v1"
    assert list(family.scan(b"")) == ENTRIES


def test_a_forked_child_of_a_backend_leaves_its_directory_unchanged(tmp_path):
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(RocksDBStateBackend(), local="shared")
    fill(harness, backend, range(10))
    harness.snapshot(backend)
    fill(harness, backend, range(10), 1)
    assert in_child(backend.close) == "None"
    assert contents(harness, backend) == filled(range(10), 0, 1)
    handle = harness.snapshot(backend).handle
    harness.close()
    assert contents(harness, harness.open(RocksDBStateBackend(), handle, local="shared")) == filled(range(10), 0, 1)
    harness.close()


@pytest.mark.parametrize("is_private", [False, True])
def test_a_forked_child_leaves_files_in_progress_to_its_parent(tmp_path, is_private):
    with contextlib.ExitStack() as stack:
        for _ in range(1 + is_private):
            directory = LocalStateDirectory(str(tmp_path / "local"))
            stack.callback(directory.close)
        assert (directory.path != str(tmp_path / "local")) is is_private
        path = written_file(directory.new_file(".sst"))
        assert in_child(directory.close) == "None"
        assert os.path.exists(path)


def test_a_forked_child_does_not_open_what_its_parent_has_not_opened(tmp_path):
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(RocksDBStateBackend(), local="shared")
    fill(harness, backend, range(10))
    handle = harness.snapshot(backend).handle
    backend.close()
    backend = harness.open(RocksDBStateBackend(), handle, local="shared")
    assert in_child(lambda: contents(harness, backend)) == "RocksDBError"
    assert in_child(backend.close) == "None"
    assert backend.is_local
    assert contents(harness, backend) == filled(range(10), 0)
    harness.close()


def test_a_full_cache_is_flushed_early_without_visible_effect(tmp_path):
    harness = BackendHarness(str(tmp_path))
    small = RocksDBStateBackend(cache_entries=3)
    backend = harness.open(small)
    for epoch in range(3):
        fill(harness, backend, range(20), epoch)
        harness.at(backend, 5)
        assert backend.get_state(VALUE).value() == 5 + epoch
        assert backend.get_state(LIST).get() == list(range(epoch + 1))
        assert backend.get_state(MAP).get("key") == 5
        handle = harness.snapshot(backend).handle
    assert contents(harness, backend) == filled(range(20), 0, 1, 2)
    assert contents(harness, harness.open(small, handle)) == filled(range(20), 0, 1, 2)
    harness.close()


def test_a_cache_without_capacity_is_rejected():
    with pytest.raises(ValueError, match="whole number of 1 or more"):
        RocksDBStateBackend(cache_entries=0)
    with pytest.raises(ValueError, match=r"cache_entries is 1\.5; it must be a whole number"):
        RocksDBStateBackend(cache_entries=1.5)  # type: ignore[arg-type]
    for name, least in (("memory_budget_bytes", 1 << 20), ("cache_bytes", 1), ("cache_entries", 1)):
        assert getattr(RocksDBStateBackend(**{name: least}), name) == least
        for wrong in (least - 1, True, float(least)):
            with pytest.raises(ValueError, match=f"{name} is "):
                RocksDBStateBackend(**{name: wrong})
    with pytest.raises(ValueError, match="memory_budget_bytes is '64MB'; it must be a whole number"):
        RocksDBStateBackend(memory_budget_bytes="64MB")  # type: ignore[arg-type]


def test_an_error_of_a_full_disk_has_advice(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(RocksDBError, match=r"first\.sst: .*too large.*Free space, or use another disk"):
            written_file(tmp_path / "first.sst")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
