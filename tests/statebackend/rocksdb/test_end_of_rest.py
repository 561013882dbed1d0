"""What is asked of a database at rest when its backend is closed."""

import os

import pytest
from local_epochs import KEYS, ROCKSDB, version_path

from statebackend.api.errors import StateBackendClosedError
from statebackend.metrics.state_metrics import StateMetricsConfig
from testkit.backends.contract_base import VALUE, contents, fill, filled
from testkit.backends.harness import BackendHarness
from testkit.backends.priority_queue_contract import TIMERS, timer


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


@pytest.mark.parametrize("is_read", [False, True])
def test_what_is_asked_of_a_closed_backend_does_not_open_what_another_may_have_now(harness, is_read):
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
    # The closed one is held still.
    again = harness.open(ROCKSDB, handle, local="local")
    assert contents(harness, again) == filled(KEYS, 0)
    assert again.is_local
