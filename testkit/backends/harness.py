"""Makes, snapshots and restores the backends of one operator, as a runtime would, in a temporary directory."""

from __future__ import annotations

import itertools
import os
import zlib
from collections.abc import Iterable
from typing import Any

from attrs import evolve

from checkpointing.handles.state_handles import KeyedStateHandle
from checkpointing.storage.file_system import CheckpointFileSystem
from statebackend.api.clock import Clock, wall_clock
from statebackend.api.key_groups import key_group_range_of_subtask
from statebackend.api.progress import ProgressListener
from statebackend.keyed.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    RestoredHandle,
)
from statebackend.keyed.canonical_export import export_canonical_handle
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_backend import StateBackend
from statebackend.metrics.state_metrics import StateMetricsConfig
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer

OPERATOR_UID = "operator-under-test"


class BackendHarness:
    """One operator's store and local directories; closes every backend it has opened.

    ``clock`` is that of the backends opened from then on.
    """

    def __init__(self, directory: str, max_parallelism: int = 10) -> None:
        self.directory = directory
        self.max_parallelism = max_parallelism
        self.file_system = CheckpointFileSystem.from_uri(os.path.join(directory, "store"))
        self.clock: Clock = wall_clock
        self._opened: list[KeyedStateBackend] = []
        self._numbers = itertools.count(1)

    def open(
        self,
        state_backend: StateBackend,
        *restore: KeyedStateHandle,
        subtask: int = 0,
        parallelism: int = 1,
        key_serializer: TypeSerializer[Any] | None = None,
        local: str | None = None,
        progress: ProgressListener | None = None,
        metrics: StateMetricsConfig | None = None,
    ) -> KeyedStateBackend:
        """A backend restored from handles, in a fresh local directory unless ``local`` names one."""
        backend = state_backend.create_keyed_state_backend(
            self.parameters(
                *restore,
                subtask=subtask,
                parallelism=parallelism,
                key_serializer=key_serializer,
                local=local,
                progress=progress,
                metrics=metrics,
            )
        )
        self._opened.append(backend)
        return backend

    def parameters(
        self,
        *restore: KeyedStateHandle,
        subtask: int = 0,
        parallelism: int = 1,
        key_serializer: TypeSerializer[Any] | None = None,
        local: str | None = None,
        progress: ProgressListener | None = None,
        metrics: StateMetricsConfig | None = None,
    ) -> KeyedStateBackendParameters:
        """What `open` makes a backend from."""
        parameters = KeyedStateBackendParameters(
            operator_uid=OPERATOR_UID,
            key_serializer=LongSerializer() if key_serializer is None else key_serializer,
            max_parallelism=self.max_parallelism,
            key_group_range=key_group_range_of_subtask(subtask, parallelism, self.max_parallelism),
            file_system=self.file_system,
            file_prefix=f"state/{OPERATOR_UID}-{subtask}",
            local_directory=os.path.join(self.directory, "local", local or f"fresh-{next(self._numbers)}"),
            restore=tuple(RestoredHandle(handle, self.file_system) for handle in restore),
            clock=self.clock,
            metrics=metrics,
        )
        return parameters if progress is None else evolve(parameters, progress=progress)

    def key_group(self, key: Any) -> int:
        """The key group of a key: of an int in order, so that tests can foresee it; of anything else by its text."""
        return key % self.max_parallelism if type(key) is int else zlib.crc32(repr(key).encode()) % self.max_parallelism

    def at(self, backend: KeyedStateBackend, key: Any) -> None:
        """Makes a key current."""
        backend.set_current_key(key, self.key_group(key))

    def snapshot(self, backend: KeyedStateBackend) -> KeyedStateSnapshot:
        """A snapshot with ids that are used once."""
        number = next(self._numbers)
        return backend.snapshot(number, f"state-{number}")

    def prepare(self, backend: KeyedStateBackend) -> KeyedStateSnapshotTask:
        """The synchronous part of a snapshot with ids that are used once."""
        number = next(self._numbers)
        return backend.prepare_snapshot(number, f"state-{number}")

    def export(self, backend: KeyedStateBackend, part: str = "part") -> KeyedStateHandle:
        """A canonical savepoint of one subtask."""
        number = next(self._numbers)
        directory = f"savepoint-{number}/{OPERATOR_UID}"
        return export_canonical_handle(backend, self.file_system, directory, part, f"savepoint-{number}")[0]

    def store_path(self, path: str) -> str:
        """Where a file of the store is on the local disk."""
        local = self.file_system.local_path(path)
        assert local is not None
        return local

    def close(self, backends: Iterable[KeyedStateBackend] | None = None) -> None:
        """Closes the given backends, or all that were opened."""
        for backend in list(self._opened if backends is None else backends):
            backend.close()
