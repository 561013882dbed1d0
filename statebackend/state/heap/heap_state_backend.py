"""The configuration of the heap backend, and the cache of heap stores that a worker process keeps between epochs.

A subtask that returns to a worker need not restore. The runtime takes the store of a subtask out of the cache, lets it
catch up with the handle to continue from, and puts it back after a successful snapshot. A store is in the cache or in
use, never both. The cache does not decide whether a store is current: `HeapStateStore.catch_up` compares files.

Spark moves subtasks between workers, so each worker would in time hold each subtask. `WorkerCacheLimits` bounds the
copies: in bytes over all workers of a host, with an equal share for each, and in epochs since a copy was current.
There is at most one store per subtask of a job. Stores of another parallelism are dropped. Beyond a share, or beyond
`MAX_STORES`, the oldest store is dropped. A forked child starts with an empty cache.

The processes of a host count their bytes in files:

    <root>/heap-copies/lock            held while a process counts
    <root>/heap-copies/<pid>-<32 hex>  decimal: the bytes that this process keeps

A process locks its file for as long as it lives. An unlocked file belongs to a dead process; any process removes it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

from attrs import frozen

from snapshots.errors import format_value
from statebackend.checkpoint.fs.file_lock import FileLock, open_lock_file
from statebackend.state.backend_parameters import KeyedStateBackendParameters
from statebackend.state.heap.heap_state_store import HEAP_BACKEND, HeapStateStore
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.private_directory import (
    LOCK_NAME,
    PrivateDirectoryError,
    default_local_root,
    make_private_directory,
)
from statebackend.state.state_backend import StateBackend, SubtaskIdentity
from typeserializers.kernel.type_serializer import TypeSerializer

DIRECTORY_NAME: Final = "heap-copies"

_MAX_DIGITS: Final = 20


@frozen
class OtherProcesses:
    """The other processes of this host that use the cache, or have used it: their number, and the bytes of all."""

    count: int
    kept_bytes: int


class HostLedger:
    """One process's view of the bytes that all processes of the host keep. Used by one thread at a time.

    ``root`` returns the root directory. It is called when the directory is needed.
    """

    def __init__(self, root: Callable[[], str]) -> None:
        self._root = root
        self._directory: str | None = None
        self._own: tuple[str, FileLock] | None = None
        _ledgers.add(self)

    @contextlib.contextmanager
    def counted(self) -> Iterator[OtherProcesses]:
        """Count what other processes keep, and lock the count within the context; `note` sets this process's bytes.

        If the directory cannot be made, assume as many processes as there are CPUs.
        """
        self._directory = None
        try:
            root = self._root()
            directory = os.path.join(root, DIRECTORY_NAME)
            make_private_directory(root)
            make_private_directory(directory)
            path = os.path.join(directory, LOCK_NAME)
            descriptor = open_lock_file(path)
        except (OSError, PrivateDirectoryError):
            yield OtherProcesses((os.cpu_count() or 1) - 1, 0)
            return
        lock = FileLock(descriptor, fcntl.LOCK_EX)
        try:
            self._directory = directory
            yield self._count(directory)
        finally:
            self._directory = None
            lock.release()

    def note(self, kept_bytes: int) -> None:
        """Set what this process keeps, within `counted`."""
        if self._directory is None:
            return
        with contextlib.suppress(OSError):
            if self._own is not None and not os.path.lexists(self._own[0]):
                self.close()
            if self._own is None:
                path = os.path.join(self._directory, f"{os.getpid()}-{uuid.uuid4().hex}")
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
                self._own = path, FileLock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(self._own[1].descriptor, str(kept_bytes).zfill(_MAX_DIGITS).encode(), 0)

    def close(self) -> None:
        """Remove this process from the ledger. A forked child closes only its copy, never its parent's entry."""
        own, self._own = self._own, None
        if own is not None:
            own[1].release()

    def _count(self, directory: str) -> OtherProcesses:
        count = kept_bytes = 0
        for name in os.listdir(directory):
            path = os.path.join(directory, name)
            if name == LOCK_NAME or (self._own is not None and path == self._own[0]):
                continue
            with contextlib.suppress(FileNotFoundError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    left = FileLock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    with open(path, "rb") as file:
                        kept_bytes += int(file.read(_MAX_DIGITS) or b"0")
                    count += 1
                else:
                    try:
                        os.unlink(path)
                    finally:
                        left.release()
        return OtherProcesses(count, kept_bytes)


_ledgers: weakref.WeakSet[HostLedger] = weakref.WeakSet()


def _close_all_in_child() -> None:
    for ledger in list(_ledgers):
        ledger.close()


os.register_at_fork(after_in_child=_close_all_in_child)


MAX_STORES: Final = 256
"""The limit of stores that one process keeps over all jobs. It also drops stores of jobs that have ended."""

_CGROUP_LIMIT_PATH: Final = "/sys/fs/cgroup/memory.max"


@frozen
class WorkerCacheKey:
    """The subtask that a store belongs to."""

    job_id: str
    operator_uid: str
    subtask_index: int
    parallelism: int


@frozen
class WorkerCacheLimits:
    """The limits of the cache: bytes for all workers of a host, and epochs since a copy was current."""

    bytes_per_host: int
    epochs: int


@frozen
class _Kept:
    store: HeapStateStore
    estimated_bytes: int
    checkpoint_id: int


class WorkerCache:
    """The heap stores that one process keeps between epochs. Used by one thread at a time."""

    def __init__(self, ledger: HostLedger, max_stores: int = MAX_STORES) -> None:
        self._ledger = ledger
        self._max_stores = max_stores
        self._process = os.getpid()
        self._kept: dict[WorkerCacheKey, _Kept] = {}
        self.bytes_of_host = 0
        """What all workers of the host kept at this worker's last count; an estimate."""

    def take(self, key: WorkerCacheKey) -> HeapStateStore | None:
        """Remove and return the store of a subtask, or None; the caller then owns it."""
        self._forget_parent()
        kept = self._kept.pop(key, None)
        return None if kept is None else kept.store

    def put(self, key: WorkerCacheKey, store: HeapStateStore, limits: WorkerCacheLimits) -> None:
        """Keep a store after a successful snapshot, or close it; its state handles can no longer be used."""
        self._forget_parent()
        store.release_states()
        self._drop(key)
        current = store.last_checkpoint_id
        for known in [
            known
            for known, kept in self._kept.items()
            if known.job_id == key.job_id
            and (
                kept.checkpoint_id < current - limits.epochs
                or (known.operator_uid == key.operator_uid and known.parallelism != key.parallelism)
            )
        ]:
            self._drop(known)
        self._kept[key] = _Kept(store, store.estimated_bytes(), current)
        while len(self._kept) > self._max_stores:
            self._drop(next(iter(self._kept)))
        with self._ledger.counted() as others:
            share = min(limits.bytes_per_host // (others.count + 1), limits.bytes_per_host - others.kept_bytes)
            while self._kept and self._own_bytes() > share:
                self._drop(next(iter(self._kept)))
            self._ledger.note(self._own_bytes())
            self.bytes_of_host = others.kept_bytes + self._own_bytes()

    def clear(self) -> None:
        """Close all stores."""
        self._forget_parent()
        for key in list(self._kept):
            self._drop(key)

    def __len__(self) -> int:
        self._forget_parent()
        return len(self._kept)

    def _own_bytes(self) -> int:
        return sum(kept.estimated_bytes for kept in self._kept.values())

    def _drop(self, key: WorkerCacheKey) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            kept.store.close()

    def _forget_parent(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._kept = {}


def memory_of_host_bytes() -> int:
    """The memory of this host, or the limit of the process's container if that is less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open(_CGROUP_LIMIT_PATH, encoding="ascii") as file:
            return min(physical, int(file.read()))
    except (OSError, ValueError):
        return physical


worker_cache: Final = WorkerCache(HostLedger(default_local_root))
"""The cache of this process."""


DEFAULT_KEPT_EPOCHS: Final = 16
"""Epochs after which a worker drops a copy of a subtask that now runs on other workers."""


class HeapStateBackend(StateBackend):
    """State in Python dicts: the fastest backend, for state that fits into memory, with incremental checkpoints.

    Spark's workers keep the state of a subtask for its next epoch on the same worker, and then read only the changes
    since.

    Args:
        kept_bytes_per_host: The estimated bytes that all workers of a host keep, besides the state in use. By default a
            quarter of the host's memory. With 0 nothing is kept, and every epoch restores.
        kept_epochs: The number of epochs after which a copy that is not current is dropped.

    Raises:
        ValueError: An argument is not a whole number, or is negative.
    """

    def __init__(self, kept_bytes_per_host: int | None = None, kept_epochs: int = DEFAULT_KEPT_EPOCHS) -> None:
        for name, number in (("kept_bytes_per_host", kept_bytes_per_host), ("kept_epochs", kept_epochs)):
            if not (type(number) is int and number >= 0) and (name, number) != ("kept_bytes_per_host", None):
                raise ValueError(f"{name} is {format_value(number)}; it must be a whole number of 0 or more")
        self.kept_bytes_per_host = kept_bytes_per_host
        self.kept_epochs = kept_epochs

    @property
    def name(self) -> str:
        return HEAP_BACKEND

    def create_store(
        self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]
    ) -> HeapStateStore:
        return HeapStateStore(parameters, key_serializer)

    def lease_keyed_state_backend(
        self, parameters: KeyedStateBackendParameters, subtask: SubtaskIdentity
    ) -> KeyedStateBackend:
        kept = worker_cache.take(_cache_key(parameters, subtask))
        if kept is not None:
            if len(parameters.restore) == 1 and kept.catch_up(parameters.restore[0], parameters):
                return KeyedStateBackend(parameters, kept)
            kept.close()
        return self.create_keyed_state_backend(parameters)

    def return_keyed_state_backend(
        self, backend: KeyedStateBackend, subtask: SubtaskIdentity, *, succeeded: bool
    ) -> None:
        if not succeeded:
            backend.close()
            return
        store = backend.release()
        if not isinstance(store, HeapStateStore):
            store.close()
            return
        given = self.kept_bytes_per_host
        limits = WorkerCacheLimits(memory_of_host_bytes() // 4 if given is None else given, self.kept_epochs)
        worker_cache.put(_cache_key(backend.parameters, subtask), store, limits)

    def worker_cache_bytes(self) -> int:
        return worker_cache.bytes_of_host


def _cache_key(parameters: KeyedStateBackendParameters, subtask: SubtaskIdentity) -> WorkerCacheKey:
    return WorkerCacheKey(subtask.job_id, parameters.operator_uid, subtask.subtask_index, subtask.parallelism)
