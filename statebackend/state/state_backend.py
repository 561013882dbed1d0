"""The configuration of a state backend, and how a job finds one by name.

A `StateBackend` is made by the program, pickled to the workers, and makes the backends of the subtasks there. A backend
belongs to one subtask and, unless the configuration keeps it in the process, to one epoch.

Another distribution declares a backend as an entry point of the group ``statebackend.backends``. Its object is called
without arguments and returns a `StateBackend`:

    [project.entry-points."statebackend.backends"]
    paged = "paged_state:PagedStateBackend"

``docs/writing-a-backend.md`` describes what such a backend implements. Built-in names cannot be overridden.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from attrs import frozen

from snapshots.errors import format_value
from statebackend.state.backend_parameters import KeyedStateBackendParameters, read_restored_states
from statebackend.state.errors import StateBackendError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.state_meta import CANONICAL_BACKEND
from statebackend.state.state_store import StateStore
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class SubtaskIdentity:
    """The job and the subtask of a backend."""

    job_id: str
    subtask_index: int
    parallelism: int


class StateBackend(ABC):
    """The configuration of a backend: small, picklable, the same for all subtasks."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which the backend is found, and which its snapshots store."""

    def can_restore(self, written_by: str) -> bool:
        """Whether this backend restores handles of that backend; by default its own and canonical ones (savepoints)."""
        return written_by in (self.name, CANONICAL_BACKEND)

    @abstractmethod
    def create_store(self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]) -> StateStore:
        """Create an empty store for one subtask.

        Args:
            parameters: The subtask, its file systems and its limits.
            key_serializer: The key serializer of the parameters, or its reconfigured form.
        """

    def create_keyed_state_backend(self, parameters: KeyedStateBackendParameters) -> KeyedStateBackend:
        """Create a backend for one subtask, restored from ``parameters.restore``.

        Raises:
            StateRestoreError: A handle cannot be restored by this backend (`read_restored_states`).
            StateMigrationException: The key serializer is incompatible.
            StorageError: A file is missing or damaged.
        """
        restored = read_restored_states(parameters, (self.name, CANONICAL_BACKEND))
        store = self.create_store(parameters, restored.key_serializer)
        try:
            store.restore(restored)
        except BaseException:
            store.close()
            raise
        return KeyedStateBackend(parameters, store)

    def lease_keyed_state_backend(
        self, parameters: KeyedStateBackendParameters, subtask: SubtaskIdentity
    ) -> KeyedStateBackend:
        """Return a backend for one epoch of a subtask: a new one, or a kept one that caught up.

        Pass it to `return_keyed_state_backend` at the end of the epoch.
        """
        return self.create_keyed_state_backend(parameters)

    def return_keyed_state_backend(
        self, backend: KeyedStateBackend, subtask: SubtaskIdentity, *, succeeded: bool
    ) -> None:
        """Take back a leased backend: close it, or keep it if its last call was a snapshot (``succeeded``)."""
        backend.close()

    def worker_cache_bytes(self) -> int:
        """The bytes of memory that the processes of this host keep for later epochs; may be an estimate."""
        return 0


ENTRY_POINT_GROUP: Final = "statebackend.backends"

# A checkout has no distribution metadata, so the built-in backends are found without it.
_BUILT_IN: Final = {
    "heap": "statebackend.state.heap.heap_state_backend:HeapStateBackend",
    "rocksdb": "statebackend.state.rocksdb.rocksdb_state_backend:RocksDBStateBackend",
}


class UnknownStateBackendError(StateBackendError, LookupError):
    """No backend has that name, or the object with that name is not a backend."""


def state_backend(name_or_instance: str | StateBackend) -> StateBackend:
    """Return the backend of that name in its default configuration; return an instance unchanged.

    Raises:
        UnknownStateBackendError: No backend has that name, or it cannot be loaded. The message lists the known names.
    """
    if isinstance(name_or_instance, StateBackend):
        return name_or_instance
    if isinstance(name_or_instance, type):
        raise UnknownStateBackendError(f"{name_or_instance.__name__} is a class. Pass an instance or a name")
    if not isinstance(name_or_instance, str):
        raise UnknownStateBackendError(
            f"{format_value(name_or_instance)} is not a state backend. Pass a name or an instance"
        )
    # Reading the metadata of all distributions takes longer than opening a small state, so only other names need it.
    entry_point = _built_in().get(name_or_instance) or _known_backends().get(name_or_instance)
    if entry_point is None:
        known = ", ".join(known_state_backends())
        raise UnknownStateBackendError(
            f"there is no state backend {name_or_instance!r}; known are {known}. A distribution declares others as "
            f"entry points of the group {ENTRY_POINT_GROUP!r}"
        )
    try:
        backend = entry_point.load()()
    except Exception as error:
        raise UnknownStateBackendError(
            f"the state backend {name_or_instance!r} ({entry_point.value}) cannot be loaded: {error}"
        ) from error
    if not isinstance(backend, StateBackend):
        raise UnknownStateBackendError(
            f"the entry point {name_or_instance!r} ({entry_point.value}) returned {type(backend).__name__}, "
            f"which is not a StateBackend"
        )
    return backend


def known_state_backends() -> tuple[str, ...]:
    """The names of all backends that `state_backend` finds, sorted."""
    return tuple(sorted(_known_backends()))


def _known_backends() -> dict[str, EntryPoint]:
    declared = {entry_point.name: entry_point for entry_point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**declared, **_built_in()}


def _built_in() -> dict[str, EntryPoint]:
    return {name: EntryPoint(name, value, ENTRY_POINT_GROUP) for name, value in _BUILT_IN.items()}
