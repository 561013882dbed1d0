"""The base of the backend contracts: the factory method of a backend, fixtures, a clock and a harness.

The harness creates, snapshots and restores the backends of one operator in a temporary directory, as a runtime does.
"""

from __future__ import annotations

import itertools
import os
import pathlib
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from attrs import evolve

from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshot,
    KeyedStateSnapshotTask,
    RestoredHandle,
)
from statebackend.state.canonical_files import export_canonical_handle
from statebackend.state.clock import Clock, wall_clock
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.key_groups import key_group_range_of_subtask
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.metrics import StateMetricsConfig
from statebackend.state.progress import ProgressListener
from statebackend.state.state_backend import StateBackend
from statebackend.state.state_kind import StateDescriptor, StateKind
from statebackend.state.value_state import ValueStateDescriptor
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer


class ManualClock:
    """A clock that changes only when ``now_ms`` is set."""

    def __init__(self, now_ms: int = 0) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


OPERATOR_UID = "operator-under-test"


class BackendHarness:
    """The store and local directories of one operator. Closes all backends that it has opened.

    ``clock`` is the clock of backends that are opened later.
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
        """Open a backend, restored from handles. It has a new local directory unless ``local`` names one."""
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
        """Return the parameters of `open`."""
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
        """Return the key group of a key. Integers are assigned in order, so that tests know their key groups."""
        return key % self.max_parallelism if type(key) is int else zlib.crc32(repr(key).encode()) % self.max_parallelism

    def at(self, backend: KeyedStateBackend, key: Any) -> None:
        """Set the current key."""
        backend.set_current_key(key, self.key_group(key))

    def snapshot(self, backend: KeyedStateBackend) -> KeyedStateSnapshot:
        """Take a snapshot with unique ids."""
        number = next(self._numbers)
        return backend.snapshot(number, f"state-{number}")

    def prepare(self, backend: KeyedStateBackend) -> KeyedStateSnapshotTask:
        """Run the synchronous part of a snapshot with unique ids."""
        number = next(self._numbers)
        return backend.prepare_snapshot(number, f"state-{number}")

    def export(self, backend: KeyedStateBackend, part: str = "part") -> KeyedStateHandle:
        """Export a canonical savepoint of one subtask."""
        number = next(self._numbers)
        directory = f"savepoint-{number}/{OPERATOR_UID}"
        return export_canonical_handle(backend, self.file_system, directory, part, f"savepoint-{number}")[0]

    def store_path(self, path: str) -> str:
        """Return the local path of a file in the store."""
        local = self.file_system.local_path(path)
        assert local is not None
        return local

    def close(self, backends: Iterable[KeyedStateBackend] | None = None) -> None:
        """Close these backends, or all that were opened."""
        for backend in list(self._opened if backends is None else backends):
            backend.close()


VALUE: ValueStateDescriptor[int] = ValueStateDescriptor("value", int)
LIST: ListStateDescriptor[int] = ListStateDescriptor("list", int)
MAP: MapStateDescriptor[str, int] = MapStateDescriptor("map", str, int)


class ContractBase:
    """The base of the contracts. Derive from `StateBackendContract` instead."""

    def create_state_backend(self) -> StateBackend:
        """Return the backend under test, in any configuration."""
        raise NotImplementedError(f"{type(self).__name__} must implement create_state_backend")

    @pytest.fixture
    def harness(self, tmp_path: pathlib.Path) -> Iterator[BackendHarness]:
        """Yield a harness with ten key groups. Its clock does not move, so nothing expires during a slow test."""
        harness = BackendHarness(str(tmp_path))
        harness.clock = ManualClock(1_700_000_000_000)
        yield harness
        harness.close()

    @pytest.fixture
    def backend(self, harness: BackendHarness) -> KeyedStateBackend:
        """Return a new backend for all key groups, at key 1."""
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        return backend

    def reopen(self, harness: BackendHarness, handle: KeyedStateHandle, **options: Any) -> KeyedStateBackend:
        """Return a backend restored from a handle, at key 1."""
        backend = harness.open(self.create_state_backend(), handle, **options)
        if "key_serializer" not in options:
            harness.at(backend, 1)
        return backend


def content(harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor) -> dict[Any, Any]:
    """Return the content of a state by key: values, lists, maps as dicts, and folded values."""
    state: Any = backend.get_state(descriptor)
    result = {}
    for key in list(backend.get_keys(descriptor.name)):
        harness.at(backend, key)
        result[key] = _READERS[descriptor.kind](state)
    return result


_READERS: dict[StateKind, Any] = {
    ValueStateDescriptor.kind: lambda state: state.value(),
    ListStateDescriptor.kind: lambda state: state.get(),
    MapStateDescriptor.kind: lambda state: dict(state.items()),
    ReducingStateDescriptor.kind: lambda state: state.get(),
    AggregatingStateDescriptor.kind: lambda state: state.get(),
}


def fill(harness: BackendHarness, backend: KeyedStateBackend, keys: range, offset: int = 0) -> None:
    """Write value, list and map state for the keys. Use another ``offset`` for other values."""
    value, elements, entries = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
    for key in keys:
        harness.at(backend, key)
        value.update(key + offset)
        elements.add(offset)
        entries.put("key", key)
        entries.put(f"offset-{offset}", offset)


def filled(keys: range, *offsets: int) -> tuple[dict[int, int], dict[int, list[int]], dict[int, dict[str, int]]]:
    """Return the content of value, list and map state after `fill` with these offsets."""
    return (
        {key: key + offsets[-1] for key in keys},
        {key: list(offsets) for key in keys},
        {key: {"key": key, **{f"offset-{offset}": offset for offset in offsets}} for key in keys},
    )


def contents(harness: BackendHarness, backend: KeyedStateBackend) -> tuple[Any, Any, Any]:
    """Return the content of value, list and map state."""
    return tuple(content(harness, backend, descriptor) for descriptor in (VALUE, LIST, MAP))  # type: ignore[return-value]
