"""A process holds bounded bytes, and the size of a local database follows the live state."""

import gc
import itertools
import operator
import os
import tracemalloc

import pyarrow.parquet as pq
import pytest

from statebackend import ListStateDescriptor, MapStateDescriptor, ReducingStateDescriptor, ValueStateDescriptor
from statebackend.state import canonical as canonical_entries
from statebackend.state.canonical import SCHEMA, CanonicalBatch, batches_of, read_canonical, write_canonical
from statebackend.state.composite_key import KEY_GROUP
from statebackend.state.heap import entry_table
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.rocksdb.cached_state import ENTRY_BYTES
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_files import MAX_FILES, StateFiles, max_increment_ratio
from statebackend.testing.backends.harness import BackendHarness

pytestmark = pytest.mark.slow

ALL_GROUPS = KeyGroupRange(0, 9)
TEXT = ValueStateDescriptor("text", str)
TEXTS = ListStateDescriptor("texts", str)
TABLE = MapStateDescriptor("table", int, bytes)
JOINED = ReducingStateDescriptor("joined", operator.add, tuple[int, str])
FAT = 20_000


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


def held_bytes(backend):
    return backend._store.bounds.memory.held_bytes


@pytest.mark.parametrize("begins_small", [False, True])
def test_caches_are_flushed_when_they_hold_too_many_bytes(harness, begins_small):
    limit = 40 * FAT
    backend = harness.open(RocksDBStateBackend(cache_bytes=limit))
    highest = 0

    def touch(size):
        nonlocal highest
        for key in range(60):
            harness.at(backend, key)
            backend.get_state(TEXT).update("x" * size)
            backend.get_state(TEXTS).add("y" * size)
            backend.get_state(TABLE).put(key, b"z" * size)
            joined = backend.get_state(JOINED)
            joined.clear()
            joined.add((key, "j" * size))
            highest = max(highest, held_bytes(backend))

    if begins_small:
        # Entries that are already in the cache may grow.
        touch(1)
        assert held_bytes(backend) > 240 * ENTRY_BYTES
    touch(FAT)
    assert 0 < highest < limit + 4 * FAT
    handle = harness.snapshot(backend).handle
    assert held_bytes(backend) == 0
    restored = harness.open(RocksDBStateBackend(cache_bytes=limit), handle)
    for key in range(60):
        harness.at(restored, key)
        assert restored.get_state(TEXT).value() == "x" * FAT
        assert restored.get_state(TEXTS).get() == (["y"] if begins_small else []) + ["y" * FAT]
        assert dict(restored.get_state(TABLE).items()) == {key: b"z" * FAT}
        assert restored.get_state(JOINED).get() == (key, "j" * FAT)
        assert held_bytes(restored) < limit + 4 * FAT


def test_read_values_count_like_written_ones_and_are_evicted_with_the_cache(harness):
    backend = harness.open(RocksDBStateBackend())
    harness.at(backend, 1)
    backend.get_state(TABLE).put_all(dict.fromkeys(range(10), b"z" * FAT))
    backend.get_state(TEXTS).add_all(["y" * FAT] * 10)
    harness.snapshot(backend)
    assert held_bytes(backend) == 0
    backend.get_state(TEXTS).get()
    backend.get_state(TABLE).get(1)
    assert held_bytes(backend) > 22 * FAT
    backend.get_state(TABLE).clear()
    backend.get_state(TEXTS).clear()
    harness.snapshot(backend)
    assert held_bytes(backend) == 0


@pytest.mark.usefixtures("own_cache_shares")
def test_the_backends_of_a_process_share_the_cache_bytes(harness):
    budget = 90 * FAT
    backends = [harness.open(RocksDBStateBackend(cache_bytes=budget)) for _ in range(3)]
    limits = {backend._store.bounds.memory.limit_bytes for backend in backends}
    assert limits == {budget // 3}
    backends[0].close()
    backends[0].close()
    assert backends[1]._store.bounds.memory.limit_bytes == budget // 2


@pytest.mark.parametrize("descriptor", [TEXT, TEXTS, TABLE])
def test_a_flush_caused_by_a_clear_writes_the_clear(harness, descriptor):
    limit = 40 * FAT
    backend = harness.open(RocksDBStateBackend(cache_bytes=limit))
    fat = backend.get_state(ValueStateDescriptor("fat", str))
    state = backend.get_state(descriptor)
    for key in range(2):
        harness.at(backend, key)
        {TEXT: lambda: state.update("x"), TEXTS: lambda: state.add("x"), TABLE: lambda: state.put(1, b"x")}[
            descriptor
        ]()
    fat.update("x" * (limit // 3))
    # A second backend halves the share of the first, which is then over its limit. It notices at its next access.
    other = harness.open(RocksDBStateBackend(cache_bytes=limit))
    state.clear()
    assert sorted(backend.get_keys(descriptor.name)) == [0]
    assert not {TEXT: lambda: state.value(), TEXTS: lambda: state.get(), TABLE: lambda: list(state.items())}[
        descriptor
    ]()
    other.close()


def test_a_map_of_few_large_entries_is_not_read_into_the_cache(harness):
    backend = harness.open(RocksDBStateBackend())
    harness.at(backend, 1)
    state = backend.get_state(TABLE)
    state.put_all(dict.fromkeys(range(40), b"z" * 100000))
    harness.snapshot(backend)
    assert sum(len(value) for value in state.values()) == 4_000_000
    assert held_bytes(backend) < 100_000


def rows_of_size(count, size):
    return [(number % 10, number.to_bytes(8, "big"), b"\0", None, b"v" * size) for number in range(count)]


def test_batches_and_row_groups_end_at_their_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(canonical_entries, "BATCH_BYTES", 10_000)
    rows = [*rows_of_size(10, 100), *rows_of_size(1, 50_000), *rows_of_size(30, 1000)]
    batches = list(batches_of(rows))
    assert [row for batch in batches for row in zip(*batch, strict=True)] == rows
    sizes = [sum(len(value) for value in batch.values) for batch in batches]
    assert max(sizes) < 50_000 + 10_000
    assert len(batches) >= 4
    path = str(tmp_path / "rows.parquet")
    assert write_canonical(path, batches) == len(rows)
    assert pq.ParquetFile(path).num_row_groups == len(batches)


@pytest.mark.parametrize("column", ["key", "namespace", "user_key", "value"])
def test_the_bytes_of_each_column_bound_a_batch(monkeypatch, column):
    monkeypatch.setattr(canonical_entries, "BATCH_BYTES", 10_000)
    small = {"key_group": 0, "key": b"k", "namespace": b"\0", "user_key": b"u", "value": b"v"}
    rows = [tuple({**small, column: b"x" * 1000}[name] for name in SCHEMA.names)] * 40
    assert [len(batch.values) for batch in batches_of(rows)] == [10] * 4


def test_a_large_row_group_of_an_earlier_release_is_read_in_small_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(canonical_entries, "BATCH_BYTES", 10_000)
    rows = [(row[0], row[1], row[2], row[3], os.urandom(1000)) for row in rows_of_size(300, 1)]
    path = str(tmp_path / "rows.parquet")
    write_canonical(path, [CanonicalBatch(*(list(column) for column in zip(*rows, strict=True)))])
    assert pq.ParquetFile(path).num_row_groups == 1
    batches = list(read_canonical(path, ALL_GROUPS))
    assert [row for batch in batches for row in zip(*batch, strict=True)] == rows
    assert max(batch.row_count for batch in batches) <= 10
    assert SCHEMA.names == pq.ParquetFile(path).schema_arrow.names


@pytest.mark.parametrize(
    "state_backend", [HeapStateBackend(), RocksDBStateBackend(cache_bytes=1 << 20)], ids=lambda backend: backend.name
)
def test_large_values_pass_checkpoint_savepoint_and_both_restores(harness, state_backend, monkeypatch):
    monkeypatch.setattr(canonical_entries, "BATCH_BYTES", 1 << 20)
    backend = harness.open(state_backend)
    expected = {key: chr(97 + key % 26) * (36 << 10) for key in range(100)} | {100: "w" * (5 << 20)}
    for key, value in expected.items():
        harness.at(backend, key)
        backend.get_state(TEXT).update(value)
        backend.get_state(TABLE).put(key, value.encode())
    for handle in (harness.snapshot(backend).handle, harness.export(backend)):
        restored = harness.open(state_backend, handle)
        for key, value in expected.items():
            harness.at(restored, key)
            assert restored.get_state(TEXT).value() == value
            assert restored.get_state(TABLE).get(key) == value.encode()
        restored.close()


@pytest.mark.parametrize("merged", [False, True], ids=["an increment", "merged increments"])
@pytest.mark.extended
def test_changes_of_an_epoch_on_the_heap_are_encoded_in_pieces(harness, monkeypatch, merged):
    piece = 1 << 18
    monkeypatch.setattr(canonical_entries, "BATCH_BYTES", piece)
    monkeypatch.setattr(entry_table, "PIECE_BYTES", piece)
    backend = harness.open(HeapStateBackend())
    # The values are immutable, so they are kept as objects until they are written.
    number_of_bytes = 200 * 36 << 10

    def write(epoch):
        for key in range(200 * epoch, 200 * (epoch + 1)):
            harness.at(backend, key)
            backend.get_state(TEXT).update(chr(97 + key % 26) * (12 << 10))
            backend.get_state(TEXTS).add(chr(97 + key % 26) * (12 << 10))
            backend.get_state(TABLE).put(key, chr(97 + key % 26).encode() * (12 << 10))

    epochs = MAX_FILES + 2 if merged else 1
    for epoch in range(epochs):
        write(epoch)
        if epoch < epochs - 1:
            harness.snapshot(backend)
    gc.collect()
    tracemalloc.start()
    try:
        held = harness.snapshot(backend)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert held.entries_written == 600
    # At any time, memory holds one piece of each merged file.
    assert peak < (number_of_bytes if merged else number_of_bytes // 3)
    restored = harness.open(HeapStateBackend(), held.handle)
    for key in (0, 199):
        harness.at(restored, key)
        assert restored.get_state(TEXT).value() == chr(97 + key % 26) * (12 << 10)


def marks_of(backend, name):
    return sum(1 for _ in backend._store.tables[name].marks())


def test_deduplication_leaves_no_tombstones(harness):
    seen = ValueStateDescriptor("seen", int)
    handle, alive, last = None, 150, 0
    for epoch in range(60):
        restore = () if handle is None else (handle,)
        backend = harness.open(RocksDBStateBackend(), *restore, local="local", metrics=StateMetricsConfig())
        assert backend.is_local is (epoch > 0)
        state = backend.get_state(seen)
        for key in range(epoch * alive, (epoch + 1) * alive):
            harness.at(backend, key)
            state.update(key)
            if epoch:
                harness.at(backend, key - alive)
                state.clear()
        snapshot = harness.snapshot(backend)
        handle = snapshot.handle
        assert marks_of(backend, "seen") == 0
        last = backend.collect_metrics(snapshot).states["seen"].entries
        backend.close()
    assert last == alive
    # When there were too many increments, a base of the live entries replaced them.
    assert len(handle.files) <= 60 - MAX_FILES
    # A restore from a handle also creates deletion marks. They are removed, in rescaled subtasks too.
    for parallelism in (1, 2):
        backend = harness.open(RocksDBStateBackend(), handle, parallelism=parallelism)
        assert backend.get_state(seen) is not None
        assert marks_of(backend, "seen") == 0
        assert len(list(backend.get_keys("seen"))) == alive // parallelism
        backend.close()


def test_a_subtask_of_a_rescaled_job_restores_its_own_range_only(harness):
    backend = harness.open(RocksDBStateBackend())
    for key in range(200):
        harness.at(backend, key)
        backend.get_state(TEXT).update(str(key))
        backend.get_state(TEXTS).add(str(key))
    harness.snapshot(backend)
    harness.at(backend, 7)
    backend.get_state(TEXT).clear()
    handle = harness.snapshot(backend).handle
    subtasks = [harness.open(RocksDBStateBackend(), handle, subtask=index, parallelism=4) for index in range(4)]
    held = {}
    for subtask in subtasks:
        rows = list(subtask._store.tables["text"].scan())
        groups = {KEY_GROUP.unpack_from(raw_key)[0] for raw_key, _ in rows}
        assert groups == set(subtask.key_group_range)
        for key in list(subtask.get_keys("text")):
            harness.at(subtask, key)
            held[key] = subtask.get_state(TEXT).value()
            assert subtask.get_state(TEXTS).get() == [str(key)]
    assert held == {key: str(key) for key in range(200) if key != 7}
    # Scale in again: each handle covers only its own keys.
    handles = [harness.snapshot(subtask).handle for subtask in subtasks]
    whole = harness.open(RocksDBStateBackend(), *handles)
    assert len(list(whole.get_keys("text"))) == 199


def test_subtasks_with_equal_growth_write_their_bases_in_different_epochs():
    ratios = [max_increment_ratio(KeyGroupRange(16 * index, 16 * index + 15)) for index in range(8)]
    assert ratios[0] == 1
    assert all(1 <= ratio < 2 for ratio in ratios)
    ordered = sorted(ratios)
    assert min(after - before for before, after in itertools.pairwise(ordered)) > 0.05


def test_increments_must_outgrow_their_base():
    class File:
        def __init__(self, size_bytes):
            self.handle = self
            self.size_bytes = size_bytes

    mebibyte = 1 << 20
    for sizes, ratio, expected in (
        ([10 * mebibyte], 1, False),
        ([2 * mebibyte, mebibyte, mebibyte], 1, False),
        ([2 * mebibyte, mebibyte, mebibyte + 1], 1, True),
        ([2 * mebibyte, mebibyte, mebibyte + 1], 1.5, False),
        ([2 * mebibyte, 3 * mebibyte + 1], 1.5, True),
        ([10, mebibyte], 1, False),
        ([10, mebibyte + 1], 1, True),
    ):
        assert StateFiles([File(size) for size in sizes]).increments_exceed(ratio) is expected
    for sizes, expected in (
        ([4000], False),
        ([4000, *[8000] * MAX_FILES], True),
        ([4000, *[8000] * (MAX_FILES - 1)], False),
        ([4000, *[24_000] * MAX_FILES], True),
        ([24_000 * MAX_FILES, *[8000] * MAX_FILES], False),
    ):
        assert StateFiles([File(size) for size in sizes]).is_mostly_deleted is expected
