"""The backend contract on the heap. Each backend has its own file, so that they run in parallel."""

import pytest

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.testing.backends import StateBackendContract

pytestmark = pytest.mark.slow


@pytest.mark.extended_after(3)
class TestHeapStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return HeapStateBackend()
