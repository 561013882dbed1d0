"""Heap stores that a worker process keeps between two epochs, so that a subtask which comes back need not restore.

A runtime takes the store of a subtask out, asks it to catch up with the handle that it is to continue from, and puts
it back after a successful snapshot. A store is in the cache or in use, never both. Nothing here decides whether a
store is fresh enough: that is `HeapStateStore.catch_up`, which compares files, not epochs.

Spark deals subtasks to other workers in every epoch, so by and by each worker would hold a copy of each. What is kept
is therefore bounded, by `KeptLimits`: in bytes over all workers of a host, of which each has an equal share, and in
epochs since a copy was current. There is at most one store per subtask of a job, those of another parallelism are
dropped, and beyond a share, or `MAX_STORES`, the one that was put first goes. A forked child begins with an empty
cache.
"""

from __future__ import annotations

import os
from typing import Final

from attrs import frozen

from statebackend.heap.heap_state_store import HeapStateStore
from statebackend.heap.host_ledger import HostLedger
from statebackend.keyed.private_directory import default_local_root

MAX_STORES: Final = 256
"""Stores kept by one process over all jobs: what is left of jobs that have ended must go some day."""

_CGROUP_LIMIT_PATH: Final = "/sys/fs/cgroup/memory.max"


@frozen
class WorkerCacheKey:
    """Whose store it is."""

    job_id: str
    operator_uid: str
    subtask_index: int
    parallelism: int


@frozen
class KeptLimits:
    """How much is kept: bytes on a host, over all of its workers, and for how many epochs after a copy was current."""

    bytes_per_host: int
    epochs: int


@frozen
class _Kept:
    store: HeapStateStore
    estimated_bytes: int
    checkpoint_id: int


class WorkerCache:
    """The cache of one process; see the module. Used by one thread at a time."""

    def __init__(self, ledger: HostLedger, max_stores: int = MAX_STORES) -> None:
        self._ledger = ledger
        self._max_stores = max_stores
        self._process = os.getpid()
        self._kept: dict[WorkerCacheKey, _Kept] = {}
        self.bytes_of_host = 0
        """What all workers of the host kept together when this one last counted; an estimate."""

    def take(self, key: WorkerCacheKey) -> HeapStateStore | None:
        """Removes and returns the store of a subtask, or None; the caller owns it from here on."""
        self._forget_parent()
        kept = self._kept.pop(key, None)
        return None if kept is None else kept.store

    def put(self, key: WorkerCacheKey, store: HeapStateStore, limits: KeptLimits) -> None:
        """Keeps a store after a successful snapshot, or closes it; its state handles are dead from here on."""
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
        """Closes everything that is kept."""
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
    """The memory of this host, or of the container that the process runs in where that has less."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        with open(_CGROUP_LIMIT_PATH, encoding="ascii") as file:
            return min(physical, int(file.read()))
    except (OSError, ValueError):
        return physical


worker_cache: Final = WorkerCache(HostLedger(default_local_root))
"""The cache of this process."""
