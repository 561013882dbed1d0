"""What the parts of the contract share: the fixtures, and the one method that the author of a backend writes."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from checkpointing.handles.state_handles import KeyedStateHandle
from statebackend import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from statebackend.keyed.state_backend import StateBackend
from testkit.backends.harness import BackendHarness
from testkit.backends.manual_clock import ManualClock

VALUE: ValueStateDescriptor[int] = ValueStateDescriptor("value", int)
LIST: ListStateDescriptor[int] = ListStateDescriptor("list", int)
MAP: MapStateDescriptor[str, int] = MapStateDescriptor("map", str, int)


class ContractBase:
    """Subclass `StateBackendContract`, not this."""

    def create_state_backend(self) -> StateBackend:
        """The backend under test, in a configuration of the author's choice."""
        raise NotImplementedError(f"{type(self).__name__} must implement create_state_backend")

    @pytest.fixture
    def harness(self, tmp_path: pathlib.Path) -> Iterator[BackendHarness]:
        """An operator with ten key groups. Its clock stands still: nothing expires however long a test takes."""
        harness = BackendHarness(str(tmp_path))
        harness.clock = ManualClock(1_700_000_000_000)
        yield harness
        harness.close()

    @pytest.fixture
    def backend(self, harness: BackendHarness) -> KeyedStateBackend:
        """A fresh backend for all key groups, at key 1."""
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        return backend

    def reopen(self, harness: BackendHarness, handle: KeyedStateHandle, **options: Any) -> KeyedStateBackend:
        """A backend restored from a handle, at key 1."""
        backend = harness.open(self.create_state_backend(), handle, **options)
        if "key_serializer" not in options:
            harness.at(backend, 1)
        return backend


def content(harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor) -> dict[Any, Any]:
    """Everything a state holds, by key: values, lists, maps as dicts, and what was folded."""
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
    """Writes all three kinds of state for the keys; ``offset`` makes another epoch write other values."""
    value, elements, entries = backend.get_state(VALUE), backend.get_state(LIST), backend.get_state(MAP)
    for key in keys:
        harness.at(backend, key)
        value.update(key + offset)
        elements.add(offset)
        entries.put("key", key)
        entries.put(f"offset-{offset}", offset)


def filled(keys: range, *offsets: int) -> tuple[dict[int, int], dict[int, list[int]], dict[int, dict[str, int]]]:
    """What value, list and map state hold after `fill` with these offsets."""
    return (
        {key: key + offsets[-1] for key in keys},
        {key: list(offsets) for key in keys},
        {key: {"key": key, **{f"offset-{offset}": offset for offset in offsets}} for key in keys},
    )


def contents(harness: BackendHarness, backend: KeyedStateBackend) -> tuple[Any, Any, Any]:
    """What value, list and map state hold."""
    return tuple(content(harness, backend, descriptor) for descriptor in (VALUE, LIST, MAP))  # type: ignore[return-value]
