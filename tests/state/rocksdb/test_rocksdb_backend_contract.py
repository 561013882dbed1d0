"""The backend contract on RocksDB. Each backend has its own file, so that they run in parallel."""

import pytest

from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_backend import StateBackend
from statebackend.testing.backends import StateBackendContract

pytestmark = pytest.mark.slow


@pytest.mark.extended_after(3)
class TestRocksDBStateBackend(StateBackendContract):
    def create_state_backend(self) -> StateBackend:
        return RocksDBStateBackend()
