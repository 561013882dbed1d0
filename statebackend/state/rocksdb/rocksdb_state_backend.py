"""The configuration of the RocksDB backend."""

from __future__ import annotations

from typing import Any

from snapshots.errors import format_value
from statebackend.state.backend_parameters import KeyedStateBackendParameters
from statebackend.state.rocksdb.cached_state import DEFAULT_CACHE_BYTES, MIN_CACHE_BYTES
from statebackend.state.rocksdb.engine import DEFAULT_MEMORY_BUDGET_BYTES, MIN_MEMORY_BUDGET_BYTES
from statebackend.state.rocksdb.restore import ROCKSDB_BACKEND
from statebackend.state.rocksdb.rocksdb_state_store import DEFAULT_CACHE_ENTRIES, RocksDBStateStore
from statebackend.state.state_backend import StateBackend
from typeserializers.kernel.type_serializer import TypeSerializer


class RocksDBStateBackend(StateBackend):
    """State in RocksDB, through `rocksdict`: for state larger than memory, with incremental checkpoints.

    Args:
        cache_entries: The most entries per state in the write-back cache between two barriers.
        memory_budget_bytes: The bytes of blocks, indexes, filters and write buffers that RocksDB holds in memory, for
            all backends of a process together. The process has one cache, as large as the largest budget of its
            backends.
        cache_bytes: The bytes of all write-back caches of a process together. Caches above their share are written to
            disk early.

    Raises:
        ValueError: A cache of less than one entry or byte, or a budget of less than 1 MiB.
    """

    def __init__(
        self,
        cache_entries: int = DEFAULT_CACHE_ENTRIES,
        memory_budget_bytes: int = DEFAULT_MEMORY_BUDGET_BYTES,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
    ) -> None:
        if type(cache_entries) is not int or cache_entries < 1:
            raise ValueError(f"cache_entries is {format_value(cache_entries)}; it must be a whole number of 1 or more")
        if type(memory_budget_bytes) is not int or memory_budget_bytes < MIN_MEMORY_BUDGET_BYTES:
            raise ValueError(
                f"memory_budget_bytes is {format_value(memory_budget_bytes)}; it must be a whole number of at "
                f"least {MIN_MEMORY_BUDGET_BYTES}"
            )
        if type(cache_bytes) is not int or cache_bytes < MIN_CACHE_BYTES:
            raise ValueError(f"cache_bytes is {format_value(cache_bytes)}; it must be a whole number of 1 or more")
        self.cache_entries = cache_entries
        self.cache_bytes = cache_bytes
        self.memory_budget_bytes = memory_budget_bytes

    @property
    def name(self) -> str:
        return ROCKSDB_BACKEND

    def create_store(
        self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]
    ) -> RocksDBStateStore:
        return RocksDBStateStore(
            parameters, key_serializer, self.cache_entries, self.memory_budget_bytes, self.cache_bytes
        )
