"""Both backends keep the whole contract, whatever their configuration."""

from statebackend.heap.keyed_backend import HeapStateBackend
from statebackend.keyed.state_backend import StateBackend
from statebackend.rocksdb.keyed_backend import RocksDBStateBackend
from testkit.backends import StateBackendContract


class TestHeapStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return HeapStateBackend()


class TestRocksDBStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return RocksDBStateBackend()
