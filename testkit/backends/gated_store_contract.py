"""What the contracts of snapshots in two parts share: a store whose writes wait at a gate, and threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from testkit.backends.contract_base import ContractBase
from testkit.backends.gated_file_system import PATIENCE_S, GatedFileSystem
from testkit.backends.harness import BackendHarness


class GatedStoreContract(ContractBase):
    """The fixtures."""

    @pytest.fixture
    def store(self, harness: BackendHarness) -> Iterator[GatedFileSystem]:
        """The store of all backends of the harness; its gate is open."""
        store = GatedFileSystem.from_uri(os.path.join(harness.directory, "store"))
        assert isinstance(store, GatedFileSystem)
        harness.file_system = store
        yield store
        store.open()

    @pytest.fixture
    def threads(self) -> Iterator[ThreadPoolExecutor]:
        """As many threads as there are snapshots in any test."""
        with ThreadPoolExecutor(10) as threads:
            yield threads

    @pytest.fixture
    def subject(self, harness: BackendHarness, store: GatedFileSystem) -> KeyedStateBackend:
        """A fresh backend in the store, at key 1."""
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        return backend


def await_waiting(store: GatedFileSystem, futures: list[Future[Any]]) -> None:
    """Until a thread waits for the gate, or all futures are done: a synchronous backend has nothing to wait for."""
    for future in futures:
        future.add_done_callback(lambda _: store.waits.release())
    assert store.waits.acquire(timeout=PATIENCE_S)
