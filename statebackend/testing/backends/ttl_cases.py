"""The kinds of state in the contracts of time-to-live, as in Flink's ``TtlStateTestBase``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve, frozen

from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import StateTtlConfig, TtlStateVisibility, TtlUpdateType
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import IMMUTABLE_SUM, MUTABLE_SUM, SUM
from statebackend.testing.backends.harness import BackendHarness, ContractBase, ManualClock

TTL_MS = 100

ON_WRITE = StateTtlConfig(TTL_MS, incremental_cleanup=None)
ON_READ = evolve(ON_WRITE, update_type=TtlUpdateType.ON_READ_AND_WRITE)
RELAXED_ON_WRITE = evolve(ON_WRITE, visibility=TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)
RELAXED_ON_READ = evolve(ON_READ, visibility=TtlStateVisibility.RETURN_EXPIRED_IF_NOT_CLEANED_UP)


@frozen
class TtlCase:
    """One kind of state. ``write(state, n)`` writes ``content(n)``, and ``read`` returns it, or ``nothing``."""

    descriptor: StateDescriptor
    write: Callable[[Any, int], object]
    read: Callable[[Any], Any]
    content: Callable[[int], Any]
    nothing: Any
    name: str

    def with_ttl(self, ttl: StateTtlConfig | None) -> StateDescriptor:
        """Return the descriptor with this time-to-live."""
        return evolve(self.descriptor, ttl=ttl)


def _cleared(state: Any) -> Any:
    state.clear()
    return state


CASES = [
    TtlCase(
        ValueStateDescriptor("ttl value", str),
        lambda state, n: state.update(f"value {n}"),
        lambda state: state.value(),
        lambda n: f"value {n}",
        None,
        "value",
    ),
    TtlCase(
        ListStateDescriptor("ttl fixed list", int),
        lambda state, n: state.update([n, n + 1, n]),
        lambda state: state.get(),
        lambda n: [n, n + 1, n],
        [],
        "list of fixed length",
    ),
    TtlCase(
        ListStateDescriptor("ttl list", list[str]),
        lambda state, n: (state.update([["x"] * n]), state.add_all([[], [str(n)]])),
        lambda state: state.get(),
        lambda n: [["x"] * n, [], [str(n)]],
        [],
        "list of variable length",
    ),
    TtlCase(
        MapStateDescriptor("ttl map", str, int),
        lambda state, n: _cleared(state).put_all({"n": n, str(n): 1, "none": None}),
        lambda state: dict(state.items()),
        lambda n: {"n": n, str(n): 1, "none": None},
        {},
        "map",
    ),
    TtlCase(
        MapStateDescriptor("ttl map entry", str, list[int]),
        lambda state, n: state.put("entry", [n]),
        lambda state: state.get("entry"),
        lambda n: [n],
        None,
        "map entry",
    ),
    TtlCase(
        MapStateDescriptor("ttl null entry", str, int),
        lambda state, n: state.put("null", None),
        lambda state: state.contains("null") and (state.get("null"),),
        lambda n: (None,),
        False,
        "null entry of a map",
    ),
    TtlCase(
        evolve(SUM, name="ttl sum"),
        lambda state, n: _cleared(state).add(n),
        lambda state: state.get(),
        lambda n: n,
        None,
        "reducing",
    ),
    TtlCase(
        evolve(IMMUTABLE_SUM, name="ttl immutable sum"),
        lambda state, n: _cleared(state).add(n),
        lambda state: state.get(),
        str,
        None,
        "aggregating",
    ),
    TtlCase(
        evolve(MUTABLE_SUM, name="ttl mutable sum"),
        lambda state, n: _cleared(state).add(n),
        lambda state: state.get(),
        str,
        None,
        "aggregating, mutable",
    ),
]

every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


class TtlContractBase(ContractBase):
    """Fixtures and steps for one state. The key is 1 by default, and the test sets the clock."""

    @pytest.fixture
    def clock(self, harness: BackendHarness) -> ManualClock:
        """Return the clock of all backends in the test."""
        clock = ManualClock()
        harness.clock = clock
        return clock

    def fresh(self, harness: BackendHarness) -> KeyedStateBackend:
        """Return an empty backend, at key 1."""
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        return backend

    def restored(
        self, harness: BackendHarness, backend: KeyedStateBackend, *, as_savepoint: bool = False
    ) -> KeyedStateBackend:
        """Return a backend that is restored from a snapshot of ``backend``, at key 1."""
        handle: KeyedStateHandle = harness.export(backend) if as_savepoint else harness.snapshot(backend).handle
        backend.close()
        return self.reopen(harness, handle)


def is_stored(backend: KeyedStateBackend, descriptor: StateDescriptor) -> bool:
    """Return whether anything is stored for the state, expired or not."""
    return next(backend.get_keys_and_namespaces(descriptor.name), None) is not None
