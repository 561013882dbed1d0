"""Rarely reached guards of the RocksDB store."""

import itertools
import random

import pytest

from statebackend import ValueStateDescriptor
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb import map_state
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_files import MIN_MERGE_BYTES
from statebackend.state.ttl_config import IncrementalCleanup, StateTtlConfig, TtlUpdateType
from statebackend.testing.backends.harness import (
    LIST,
    MAP,
    VALUE,
    BackendHarness,
    ManualClock,
    content,
    contents,
    fill,
    filled,
)

HEAP = HeapStateBackend()
KEYS = range(20)


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.mark.parametrize("newer_ends_first", [False, True])
def test_a_base_has_the_former_content_after_clears_and_a_newer_snapshot(harness, newer_ends_first):
    backend = harness.open(HEAP)
    fill(harness, backend, KEYS)
    restored = harness.open(HEAP, harness.export(backend))
    for descriptor in (VALUE, LIST, MAP):
        restored.get_state(descriptor)
    # After a savepoint the first snapshot writes everything.
    base = harness.prepare(restored)
    for key in KEYS:
        harness.at(restored, key)
        for descriptor in (VALUE, LIST, MAP):
            restored.get_state(descriptor).clear()
    fill(harness, restored, range(3), 1)
    newer = harness.prepare(restored)
    if newer_ends_first:
        second = newer.run()
        first = base.run()
    else:
        first = base.run()
        second = newer.run()
    third = harness.snapshot(restored)
    assert contents(harness, harness.open(HEAP, first.handle)) == filled(KEYS, 0)
    assert contents(harness, harness.open(HEAP, second.handle)) == filled(range(3), 1)
    assert contents(harness, harness.open(HEAP, third.handle)) == filled(range(3), 1)


def test_a_snapshot_leaves_the_changes_of_another_prepared_task(harness):
    backend = harness.open(HEAP)
    fill(harness, backend, KEYS)
    prepared = harness.prepare(backend)
    fill(harness, backend, KEYS, 1)
    # The end of this snapshot must keep the changes that the other task needs.
    harness.snapshot(backend)
    fill(harness, backend, KEYS, 2)
    for key in range(10):
        harness.at(backend, key)
        for descriptor in (VALUE, LIST, MAP):
            backend.get_state(descriptor).clear()
    assert contents(harness, harness.open(HEAP, prepared.run().handle)) == filled(KEYS, 0)
    last = harness.snapshot(backend)
    assert contents(harness, harness.open(HEAP, last.handle)) == filled(range(10, 20), 0, 1, 2)


@pytest.mark.parametrize("state_backend", [HEAP, RocksDBStateBackend()], ids=lambda backend: backend.name)
def test_increments_that_outgrow_the_base_become_one_base(harness, state_backend):
    texts = ValueStateDescriptor("text", bytes)
    backend = harness.open(state_backend)
    size = MIN_MERGE_BYTES // 2
    written = []
    for epoch in range(6):
        harness.at(backend, 1)
        backend.get_state(texts).update(bytes([epoch]) + bytes(range(256)) * 3 + _noise(size, epoch))
        snapshot = harness.snapshot(backend)
        written.append(len(snapshot.handle.files))
    # A base, then two increments of more than half a mebibyte. That exceeds the limit, so a base follows again.
    assert written == [1, 2, 3, 1, 2, 3]
    assert content(harness, harness.open(state_backend, snapshot.handle), texts)[1][0] == 5


def _noise(size, seed):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize("state_backend", [HEAP, RocksDBStateBackend()], ids=lambda backend: backend.name)
def test_a_clock_that_goes_back_renews_nothing(harness, state_backend):
    harness.clock = clock = ManualClock()
    clock.now_ms = 1000
    ttl = StateTtlConfig(100, update_type=TtlUpdateType.ON_READ_AND_WRITE, incremental_cleanup=None)
    value = ValueStateDescriptor("value", int, ttl=ttl)
    backend = harness.open(state_backend)
    harness.at(backend, 1)
    state = backend.get_state(value)
    state.update(7)
    harness.snapshot(backend)
    clock.now_ms = 950
    assert state.value() == 7
    assert harness.snapshot(backend).entries_written == 0
    clock.now_ms = 1099
    assert state.value() == 7


def test_cleanup_passes_start_again_after_their_pause(harness):
    harness.clock = clock = ManualClock()
    clock.now_ms = 0
    ttl = StateTtlConfig(1000, incremental_cleanup=IncrementalCleanup(entries_per_access=10))
    backend = harness.open(HEAP)
    passes = []
    state = backend.get_state(ValueStateDescriptor("value", int, ttl=ttl))
    table = backend._store.tables["value"]
    begin = table.cleanup_pass
    table.cleanup_pass = lambda start: passes.append(clock.now_ms) or begin(start)
    for moment in range(0, 1000, 10):
        clock.now_ms = moment
        harness.at(backend, 1)
        state.update(moment)
    between = {after - before for before, after in itertools.pairwise(passes)}
    assert len(between) == 1
    assert between.pop() * len(passes) == pytest.approx(1000, abs=200)


def test_maps_are_cleared_in_parts_of_limited_bytes(harness, monkeypatch):
    monkeypatch.setattr(map_state, "DELETED_BYTES_AT_ONCE", 90)
    backend = harness.open(RocksDBStateBackend())
    harness.at(backend, 1)
    state = backend.get_state(MAP)
    state.put_all({f"{number}": number for number in range(100)})
    harness.snapshot(backend)
    parts = []
    database = backend._store.database
    ingest = database.ingest_changes
    database.ingest_changes = lambda table, keys, values: parts.append(len(keys)) or ingest(table, keys, values)
    state.clear()
    state.put("left", 1)
    handle = harness.snapshot(backend).handle
    # A value takes nine bytes: its flag and the number.
    assert parts == [10] * 9 + [11]
    assert content(harness, harness.open(RocksDBStateBackend(), handle), MAP) == {1: {"left": 1}}
