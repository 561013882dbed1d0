"""The heap keeps the whole contract. Each backend has a file of its own, so that they run beside each other."""

from statebackend.heap.heap_state_backend import HeapStateBackend
from statebackend.keyed.state_backend import StateBackend
from testkit.backends import StateBackendContract


class TestHeapStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return HeapStateBackend()
