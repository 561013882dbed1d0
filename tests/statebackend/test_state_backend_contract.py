"""Both backends keep the whole contract, whatever their configuration."""

from statebackend.contract import StateBackendContract
from statebackend.heap.keyed_backend import HeapStateBackend
from statebackend.rocksdb.keyed_backend import RocksDBStateBackend
from statebackend.state_backend import StateBackend


class TestHeapStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return HeapStateBackend()


class TestRocksDBStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return RocksDBStateBackend()
