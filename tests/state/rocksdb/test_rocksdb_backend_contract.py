"""RocksDB keeps the whole contract. Each backend has a file of its own, so that they run beside each other."""

from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.testing.backends import StateBackendContract


class TestRocksDBStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return RocksDBStateBackend()
