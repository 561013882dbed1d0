"""Interleavings of two threads on the heap, each forced by a lock."""

import threading

import pytest
from heap_subtask import open_heap

from statebackend.testing.backends.gated_stores import PATIENCE_S
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, contents, fill, filled


@pytest.fixture
def harness(tmp_path):
    harness = BackendHarness(str(tmp_path))
    yield harness
    harness.close()


class HandedOverLock:
    """A lock after which other threads wait until they are released."""

    def __init__(self):
        self.owner = threading.current_thread()
        self.lock = threading.Lock()
        self.is_let_go = threading.Event()
        self.may_go_on = threading.Event()

    def __enter__(self):
        self.lock.acquire()

    def __exit__(self, *_):
        self.lock.release()
        if threading.current_thread() is not self.owner:
            self.is_let_go.set()
            self.may_go_on.wait(PATIENCE_S)


def test_a_snapshot_prepared_while_another_ends_has_consistent_files_and_changes(harness):
    backend = open_heap(harness)
    backend.store._lock = lock = HandedOverLock()
    fill(harness, backend, range(20))
    first = harness.prepare(backend)
    fill(harness, backend, range(20), 1)
    for key in range(5):
        harness.at(backend, key)
        for descriptor in (VALUE, LIST, MAP):
            backend.get_state(descriptor).clear()
    thread = threading.Thread(target=first.run)
    thread.start()
    assert lock.is_let_go.wait(PATIENCE_S)
    second = harness.prepare(backend)
    lock.may_go_on.set()
    thread.join()
    restored = open_heap(harness, second.run().handle)
    assert contents(harness, restored) == filled(range(5, 20), 0, 1)
