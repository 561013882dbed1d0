"""Metrics of a read-only database before it is closed, and closing it."""

import os

import pytest
from local_epochs import KEYS, ROCKSDB, version_path

from statebackend.state.errors import StateBackendClosedError
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.rocksdb import read_only_database as read_only_database
from statebackend.testing.backends.harness import VALUE, BackendHarness, contents, fill, filled
from statebackend.testing.backends.priority_queue_contract import TIMERS, timer


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.mark.parametrize("is_read", [False, True])
def test_queries_of_a_closed_backend_do_not_open_a_database_of_another(harness, is_read):
    backend = harness.open(ROCKSDB, local="local")
    fill(harness, backend, KEYS)
    backend.get_priority_queue(TIMERS).add(timer(1, 1), 1)
    handle = harness.snapshot(backend).handle
    backend.close()
    backend = harness.open(ROCKSDB, handle, local="local", metrics=StateMetricsConfig())
    state, queue = backend.get_state(VALUE), backend.get_priority_queue(TIMERS)
    if is_read:
        harness.at(backend, 1)
        assert state.value() == 1
    elements = queue.subset_of_key_group(1)
    handle = harness.snapshot(backend).handle
    assert not backend._store.database.is_open
    backend.close()
    for ask in (lambda: next(elements), backend.collect_metrics):
        with pytest.raises(StateBackendClosedError):
            ask()
    assert os.path.exists(version_path(harness))
    # A variable still references the closed backend.
    again = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, again) == filled(KEYS, 0)
    assert again.is_local


def test_metrics_count_the_overlay_by_its_effect_on_rows_on_the_disk(harness, monkeypatch):
    monkeypatch.setattr(read_only_database, "MAX_KEPT_ROWS", 3)

    def entries_after(values):
        nonlocal handle
        backend = harness.open(ROCKSDB, *([handle] if handle else []), local="local", metrics=StateMetricsConfig())
        state = backend.get_state(VALUE)
        for key, value in values.items():
            harness.at(backend, key)
            state.update(value)
        snapshot = harness.snapshot(backend)
        handle = snapshot.handle
        is_open, metrics = backend._store.database.is_open, backend.collect_metrics(snapshot)
        backend.close()
        return is_open, metrics.states["value"].entries

    handle = None
    assert entries_after({0: 0, 1: 1}) == (True, 2)
    assert entries_after({1: 10, 2: 2, 3: 3}) == (False, 4)
    assert entries_after({2: None, 3: None}) == (False, 2)
    assert entries_after({1: None}) == (False, 1)
    assert entries_after({4: 4})[0]
    # RocksDB estimates rows minus deletions. There are three deletions here, but only one of them removed a row.
    assert entries_after({0: None}) == (False, 0)
