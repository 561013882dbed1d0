"""The heap keeps the whole contract. Each backend has a file of its own, so that they run beside each other."""

from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.testing.backends import StateBackendContract


class TestHeapStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return HeapStateBackend()
