"""Heap backends that a worker process keeps between two epochs, so that a subtask which comes back need not restore.

A runtime takes the backend of a subtask out, asks it to catch up with the handle that it is to continue from, and puts
it back after a successful snapshot. A backend is in the cache or in use, never both. Nothing here decides whether a
backend is fresh enough: that is `HeapKeyedStateBackend.catch_up`, which compares files, not epochs.

There is at most one backend per subtask of a job, those of another parallelism are dropped, and beyond `MAX_BACKENDS`
the one that was put first goes. A forked child begins with an empty cache.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from attrs import frozen

if TYPE_CHECKING:
    from statebackend.heap.keyed_backend import HeapKeyedStateBackend

MAX_BACKENDS: Final = 256
"""Backends kept by one process over all jobs: what is left of jobs that have ended must go some day."""


@frozen
class WorkerCacheKey:
    """Whose backend it is."""

    job_id: str
    operator_uid: str
    subtask_index: int
    parallelism: int


class WorkerCache:
    """The cache of one process; see the module. Used by one thread at a time."""

    def __init__(self, max_backends: int = MAX_BACKENDS) -> None:
        self._max_backends = max_backends
        self._process = os.getpid()
        self._backends: dict[WorkerCacheKey, HeapKeyedStateBackend] = {}

    def take(self, key: WorkerCacheKey) -> HeapKeyedStateBackend | None:
        """Removes and returns the backend of a subtask, or None; the caller owns it from here on."""
        self._forget_parent()
        return self._backends.pop(key, None)

    def put(self, key: WorkerCacheKey, backend: HeapKeyedStateBackend) -> None:
        """Keeps a backend after a successful snapshot; its state handles are dead from here on."""
        self._forget_parent()
        backend.release_states()
        outdated = [
            known
            for known in self._backends
            if (known.job_id, known.operator_uid) == (key.job_id, key.operator_uid)
            and (known.parallelism != key.parallelism or known == key)
        ]
        for known in outdated:
            self._backends.pop(known).close()
        self._backends[key] = backend
        while len(self._backends) > self._max_backends:
            self._backends.pop(next(iter(self._backends))).close()

    def clear(self) -> None:
        """Closes everything that is kept."""
        self._forget_parent()
        while self._backends:
            self._backends.popitem()[1].close()

    def __len__(self) -> int:
        self._forget_parent()
        return len(self._backends)

    def _forget_parent(self) -> None:
        if self._process != os.getpid():
            self._process = os.getpid()
            self._backends = {}


worker_cache: Final = WorkerCache()
"""The cache of this process."""
