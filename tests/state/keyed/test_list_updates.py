"""Lists updated with their own elements are stored without a second check, others are checked."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from statebackend import ListStateDescriptor, StateTtlConfig
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from typeserializers import LongSerializer, TtlSerializer, TtlValue

UPDATES = st.lists(
    st.tuples(
        # The elements that stay, and the appended ones. Appended ints are stored as floats.
        st.one_of(st.just("all"), st.just("newest"), st.lists(st.integers(0, 9), max_size=6)),
        st.lists(st.integers(-3, 3), max_size=3),
    ),
    max_size=6,
)


@pytest.mark.extended_after(1)
@pytest.mark.parametrize("ttl", [None, StateTtlConfig(1_000)], ids=["without TTL", "with TTL"])
@pytest.mark.parametrize("state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
@settings(max_examples=examples(40))
@given(updates=UPDATES)
def test_every_element_is_stored_as_state_returns_it(
    state_backend: Any, ttl: StateTtlConfig | None, updates: list[tuple[Any, list[int]]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        harness = BackendHarness(directory)
        harness.clock = ManualClock()
        backend = harness.open(state_backend)
        descriptor = ListStateDescriptor("list", float, ttl=ttl)
        state = backend.get_state(descriptor)
        harness.at(backend, 1)
        model: list[float] = []
        for kept, appended in updates:
            current: list[Any] = state.get()
            if kept == "newest":
                current = current[-2:]
            elif kept != "all":
                current = [current[place] for place in kept if place < len(current)]
            state.update([*current, *appended])
            model = [*map(float, current), *map(float, appended)]
            assert list(map(repr, state.get())) == list(map(repr, model))
        rows = [value for batch in backend.export_state("list") for value in batch.values]
        other = harness.open(state_backend)
        fresh = other.get_state(descriptor)
        harness.at(other, 1)
        fresh.update(model)
        assert [value for batch in other.export_state("list") for value in batch.values] == rows
        harness.close()


@pytest.mark.parametrize("state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=["heap", "rocksdb"])
def test_a_list_without_ttl_may_hold_values_with_their_times(state_backend: Any, tmp_path: Path) -> None:
    harness = BackendHarness(str(tmp_path))
    backend = harness.open(state_backend)
    state = backend.get_state(ListStateDescriptor("list", TtlSerializer(LongSerializer())))
    harness.at(backend, 1)
    state.add(TtlValue(1, 10))
    state.add_all([TtlValue(2, 20), TtlValue(3, 30)])
    assert state.get() == [TtlValue(1, 10), TtlValue(2, 20), TtlValue(3, 30)]
    state.update(state.get()[1:])
    assert [(one.value, one.last_access_timestamp) for one in state.get()] == [(2, 20), (3, 30)]
    harness.close()
