"""The configuration of a backend, from which subtasks make their backends.

It is made by the program, is pickled to wherever subtasks run, and is found by its name where a job names it. What it
makes belongs to one subtask and, unless the backend keeps it in the process, to one epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from attrs import frozen

from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.restored_states import read_restored_states
from statebackend.keyed.state_meta import CANONICAL_BACKEND
from statebackend.keyed.state_store import StateStore
from typeserializers.kernel.type_serializer import TypeSerializer


@frozen
class SubtaskIdentity:
    """Which subtask of which job a backend works for."""

    job_id: str
    subtask_index: int
    parallelism: int


class StateBackend(ABC):
    """The configuration of a backend: small, picklable, the same for all subtasks."""

    @property
    @abstractmethod
    def name(self) -> str:
        """The name under which snapshots say who wrote them, and under which the backend is found."""

    def can_restore(self, written_by: str) -> bool:
        """Whether handles of that backend can be restored: one's own and canonical ones, which savepoints have."""
        return written_by in (self.name, CANONICAL_BACKEND)

    @abstractmethod
    def create_store(self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]) -> StateStore:
        """An empty store for one subtask; ``key_serializer`` is that of the parameters, or its reconfigured form."""

    def create_keyed_state_backend(self, parameters: KeyedStateBackendParameters) -> KeyedStateBackend:
        """A backend for one subtask, restored from ``parameters.restore``.

        Raises `StateRestoreError` and `StateMigrationException` for handles that cannot be restored here
        (`read_restored_states`), and what the file system raises for missing and damaged files.
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
        """A backend for one epoch of a subtask: a new one, or one that this process has kept and that caught up.

        It must be given to `return_keyed_state_backend` at the end of the epoch.
        """
        return self.create_keyed_state_backend(parameters)

    def return_keyed_state_backend(
        self, backend: KeyedStateBackend, subtask: SubtaskIdentity, *, succeeded: bool
    ) -> None:
        """Takes a leased backend back: closes it, or keeps it if a snapshot was its last act (``succeeded``)."""
        backend.close()

    def kept_bytes_of_host(self) -> int:
        """The memory of the backends that processes of this host keep for later epochs; may be an estimate."""
        return 0
