"""Checkpoint stores with writes that wait or fail on request, and threads, for tests of asynchronous snapshots."""

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
"""The timeout of waiting tests, in seconds."""


class GatedFileSystem(CheckpointFileSystem):
    """A local store. While its gate is shut, writes of other threads than its creator wait.

    Writes of its creator never wait, because a backend that writes in the synchronous part would wait forever.
    """

    def __init__(self, uri: str, storage: object) -> None:
        super().__init__(uri, storage)  # type: ignore[arg-type]
        self._owner = threading.current_thread()
        self._gate = threading.Event()
        self._gate.set()
        self.waits = threading.Semaphore(0)
        """Released when a thread starts to wait."""
        self.fails_from_write: int | None = None
        """The number of writes that succeed before all fail; None if no write fails."""

    def shut(self) -> None:
        """Let writes of other threads wait from now on."""
        self._gate.clear()

    def open(self) -> None:
        """Let all waiting threads continue."""
        self._gate.set()

    def write_file(self, path: str, data: bytes, *, durable: bool = True) -> FileHandle:
        self._pass()
        return super().write_file(path, data, durable=durable)

    def upload(self, local_path: str | os.PathLike[str], path: str, *, may_link: bool = True) -> FileHandle:
        self._pass()
        return super().upload(local_path, path, may_link=may_link)

    def stored_paths(self) -> set[str]:
        """Return the paths of all files in the store."""
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
            raise StorageError("the test did not open the gate")


class GatedStoreContract(ContractBase):
    """The fixtures of tests with a gated store."""

    @pytest.fixture
    def store(self, harness: BackendHarness) -> Iterator[GatedFileSystem]:
        """Yield the store of all backends of the harness, with an open gate."""
        store = GatedFileSystem.from_uri(os.path.join(harness.directory, "store"))
        assert isinstance(store, GatedFileSystem)
        harness.file_system = store
        yield store
        store.open()

    @pytest.fixture
    def threads(self) -> Iterator[ThreadPoolExecutor]:
        """Yield enough threads for the snapshots of each test."""
        with ThreadPoolExecutor(10) as threads:
            yield threads

    @pytest.fixture
    def subject(self, harness: BackendHarness, store: GatedFileSystem) -> KeyedStateBackend:
        """Return a new backend in the store, at key 1."""
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        return backend


def await_waiting(store: GatedFileSystem, futures: list[Future[Any]]) -> None:
    """Wait until a thread waits for the gate, or all futures are done, as with a synchronous backend."""
    for future in futures:
        future.add_done_callback(lambda _: store.waits.release())
    assert store.waits.acquire(timeout=PATIENCE_S)
