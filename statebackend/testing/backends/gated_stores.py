"""Checkpoint stores whose writes wait or fail on request, and threads, for the contracts of asynchronous snapshots."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from statebackend.checkpoint.errors import StorageError
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import FileHandle
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.testing.backends.harness import BackendHarness, ContractBase

PATIENCE_S = 600.0
"""After this long a test that waits has failed."""


class GatedFileSystem(CheckpointFileSystem):
    """A local store in which writes of threads other than its maker's wait while the gate is shut.

    The maker's own writes never wait: a backend that writes in the synchronous part of a snapshot would wait for ever.
    """

    def __init__(self, uri: str, storage: object) -> None:
        super().__init__(uri, storage)  # type: ignore[arg-type]
        self._owner = threading.current_thread()
        self._gate = threading.Event()
        self._gate.set()
        self.waits = threading.Semaphore(0)
        """Released whenever a thread begins to wait."""
        self.fails_from_write: int | None = None
        """How many writes succeed before all fail; None for none failing."""

    def shut(self) -> None:
        """From now on other threads wait."""
        self._gate.clear()

    def open(self) -> None:
        """Lets everybody on."""
        self._gate.set()

    def write_file(self, path: str, data: bytes, *, durable: bool = True) -> FileHandle:
        self._pass()
        return super().write_file(path, data, durable=durable)

    def upload(self, local_path: str | os.PathLike[str], path: str, *, may_link: bool = True) -> FileHandle:
        self._pass()
        return super().upload(local_path, path, may_link=may_link)

    def stored_paths(self) -> set[str]:
        """The paths of all files in the store."""
        root = self.local_path()
        assert root is not None
        return {
            os.path.relpath(os.path.join(directory, name), root)
            for directory, _, names in os.walk(root)
            for name in names
        }

    def _pass(self) -> None:
        if self.fails_from_write is not None:
            self.fails_from_write -= 1
            if self.fails_from_write < 0:
                raise StorageError("the store fails on request")
        if threading.current_thread() is self._owner or self._gate.is_set():
            return
        self.waits.release()
        if not self._gate.wait(PATIENCE_S):
            raise StorageError("nobody has opened the gate")


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
