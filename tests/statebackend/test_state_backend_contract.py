"""Both backends keep the whole contract, whatever their configuration."""

from statebackend.contract import StateBackendContract
from statebackend.heap.keyed_backend import HeapStateBackend
from statebackend.keyed_state_backend import StateBackend
from statebackend.rocksdb.keyed_backend import RocksDBStateBackend


class TestHeapStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return HeapStateBackend()


class TestRocksDBStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return RocksDBStateBackend()
