"""The configuration of the heap backend, and how its stores are kept in a worker from epoch to epoch."""

from __future__ import annotations

from typing import Any, Final

from snapshots.value_text import shown
from statebackend.heap.heap_state_store import HEAP_BACKEND, HeapStateStore
from statebackend.heap.worker_cache import KeptLimits, WorkerCacheKey, memory_of_host_bytes, worker_cache
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_backend import StateBackend, SubtaskIdentity
from typeserializers.kernel.type_serializer import TypeSerializer

DEFAULT_KEPT_EPOCHS: Final = 16
"""Epochs after which a worker drops a copy of a subtask that other workers have had since."""


class HeapStateBackend(StateBackend):
    """State in Python dicts: fastest, for state that fits into memory; checkpoints are incremental all the same.

    Spark's workers keep the state of a subtask for the next epoch that comes their way, and then read only what has
    changed since. ``kept_bytes_per_host`` bounds, as an estimate, what all workers of a host keep like that, beside
    what they work on; by default it is a quarter of the host's memory. What was not current for ``kept_epochs`` epochs
    goes. With 0 bytes nothing is kept, and every epoch restores. Raises `ValueError` for what is no whole number, or
    negative.
    """

    def __init__(self, kept_bytes_per_host: int | None = None, kept_epochs: int = DEFAULT_KEPT_EPOCHS) -> None:
        for name, number in (("kept_bytes_per_host", kept_bytes_per_host), ("kept_epochs", kept_epochs)):
            if not (type(number) is int and number >= 0) and (name, number) != ("kept_bytes_per_host", None):
                raise ValueError(f"{name} is {shown(number)}; it is a whole number, at least 0")
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
        limits = KeptLimits(memory_of_host_bytes() // 4 if given is None else given, self.kept_epochs)
        worker_cache.put(_cache_key(backend.parameters, subtask), store, limits)

    def kept_bytes_of_host(self) -> int:
        return worker_cache.bytes_of_host


def _cache_key(parameters: KeyedStateBackendParameters, subtask: SubtaskIdentity) -> WorkerCacheKey:
    return WorkerCacheKey(subtask.job_id, parameters.operator_uid, subtask.subtask_index, subtask.parallelism)
