"""The store and the backends of one subtask, created as a runtime does, in a directory of the benchmark."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

from benchmarks.backends.setting import MAX_PARALLELISM, Record
from statebackend import KeyedStateBackend, KeyedStateBackendParameters, StateBackend, StateMetricsConfig
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.backend_parameters import RestoredHandle
from statebackend.state.canonical_files import export_canonical_handle
from statebackend.state.clock import StoppedClock, wall_clock
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.state_backend import state_backend
from typeserializers.scalars.fixed_width import LongSerializer

OPERATOR_UID = "benchmark"


class Subtask:
    """A subtask with all key groups of one operator; `close` closes every backend that it opened."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.file_system = CheckpointFileSystem.from_uri(os.path.join(directory, "store"))
        self._numbers = itertools.count(1)
        self._opened: list[KeyedStateBackend] = []

    def open(
        self,
        backend: str | StateBackend,
        *restore: KeyedStateHandle,
        metrics: StateMetricsConfig | None = None,
        local: str | None = None,
    ) -> KeyedStateBackend:
        """Return a backend restored from the handles, in a new local directory unless ``local`` names one."""
        parameters = KeyedStateBackendParameters(
            operator_uid=OPERATOR_UID,
            key_serializer=LongSerializer(),
            max_parallelism=MAX_PARALLELISM,
            key_group_range=key_group_range_of_subtask(0, 1, MAX_PARALLELISM),
            file_system=self.file_system,
            file_prefix=f"state/{OPERATOR_UID}-0",
            local_directory=os.path.join(self.directory, "local", local or str(next(self._numbers))),
            restore=tuple(RestoredHandle(handle, self.file_system) for handle in restore),
            metrics=metrics,
            # As in a job: the time of the epoch.
            clock=StoppedClock(wall_clock()),
        )
        opened = state_backend(backend).create_keyed_state_backend(parameters)
        self._opened.append(opened)
        return opened

    def prepare_snapshot(self, backend: KeyedStateBackend) -> Callable[[], KeyedStateHandle]:
        """Run the synchronous part of a snapshot, and return a function that finishes it and returns the handle."""
        number = next(self._numbers)
        task = backend.prepare_snapshot(number, f"state-{os.getpid()}-{number}")
        return lambda: task.run().handle

    def snapshot(self, backend: KeyedStateBackend) -> KeyedStateHandle:
        """Take a whole snapshot, and return its handle."""
        return self.prepare_snapshot(backend)()

    def savepoint(self, backend: KeyedStateBackend) -> KeyedStateHandle:
        """Take a canonical savepoint, and return its handle."""
        state_id = f"savepoint-{os.getpid()}-{next(self._numbers)}"
        return export_canonical_handle(backend, self.file_system, state_id, "part", state_id)[0]

    def local_paths(self, handle: KeyedStateHandle) -> list[str]:
        """Return the local paths of a handle's files."""
        paths = [self.file_system.local_path(file.path) for file in handle.files]
        return [path for path in paths if path is not None]

    def close(self) -> None:
        """Close all backends."""
        for backend in self._opened:
            backend.close()
        self._opened.clear()

    def __enter__(self) -> Subtask:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def fill(backend: KeyedStateBackend, state: Any, records: list[Record], value: Any = 0) -> None:
    """Set the value of each key of the records."""
    set_key, update = backend.key_setter(), state.update
    for key, key_group in records:
        set_key(key, key_group)
        update(value)
