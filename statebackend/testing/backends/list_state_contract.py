"""The contract of list state."""

from __future__ import annotations

from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.testing.backends.evolving_records import LegV1, leg_v1
from statebackend.testing.backends.harness import LIST, BackendHarness, ContractBase, content
from typeserializers.scalars.strings import StringSerializer

LEGS: ListStateDescriptor[LegV1] = ListStateDescriptor("legs", leg_v1())


class ListStateContract(ContractBase):
    """List state on a backend."""

    def test_an_unset_list_is_empty(self, backend: KeyedStateBackend) -> None:
        assert backend.get_state(LIST).get() == []

    def test_elements_keep_their_order_and_duplicates_across_barriers(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(LIST)
        expected = []
        for epoch in range(4):
            state.add(epoch)
            state.add_all([7, 7, -epoch])
            expected += [epoch, 7, 7, -epoch]
            assert state.get() == expected
            handle = harness.snapshot(backend).handle
            assert state.get() == expected
        assert self.reopen(harness, handle).get_state(LIST).get() == expected

    def test_appends_without_a_read_follow_the_restored_elements(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        backend.get_state(LIST).add_all([1, 2])
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        restored.get_state(LIST).add(3)
        again = self.reopen(harness, harness.snapshot(restored).handle)
        assert again.get_state(LIST).get() == [1, 2, 3]

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_update_replaces_and_an_empty_list_clears(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(LIST)
        state.add_all([1, 2, 3])
        if after_a_barrier:
            harness.snapshot(backend)
        state.update([9])
        state.add(10)
        assert state.get() == [9, 10]
        assert self.reopen(harness, harness.snapshot(backend).handle).get_state(LIST).get() == [9, 10]
        state.update([])
        assert state.get() == []
        assert content(harness, self.reopen(harness, harness.snapshot(backend).handle), LIST) == {}

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_a_cleared_list_starts_empty(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(LIST)
        state.add_all([1, 2, 3])
        if after_a_barrier:
            harness.snapshot(backend)
        state.clear()
        assert state.get() == []
        state.add(4)
        assert state.get() == [4]
        assert self.reopen(harness, harness.snapshot(backend).handle).get_state(LIST).get() == [4]

    def test_adding_nothing_changes_nothing(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(LIST)
        state.add_all([])
        assert content(harness, backend, LIST) == {}
        harness.at(backend, 1)
        state.add(1)
        state.add_all(iter(()))
        assert state.get() == [1]

    def test_null_elements_and_null_lists_are_rejected_and_change_nothing(self, backend: KeyedStateBackend) -> None:
        # The string serializer would write None, but a list must reject it.
        texts: Any = backend.get_state(ListStateDescriptor("texts", StringSerializer()))
        numbers: Any = backend.get_state(LIST)
        for state, first, second in ((numbers, 1, 2), (texts, "1", "2")):
            state.add(first)
            with pytest.raises(SerializationError):
                state.add(None)
            with pytest.raises(SerializationError, match=r"\[1\]"):
                state.add_all([second, None])
            with pytest.raises(SerializationError):
                state.update([None])
            for method in (state.add_all, state.update):
                with pytest.raises(TypeError):
                    method(None)
            assert state.get() == [first]

    def test_one_element_that_does_not_fit_rejects_all_elements(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state, legs = backend.get_state(LIST), backend.get_state(LEGS)
        state.add(1)
        legs.add(LegV1("EWR", 1))
        for method in (state.add_all, state.update):
            with pytest.raises(SerializationError, match="'list'"):
                method([2, "three"])  # type: ignore[list-item]
        with pytest.raises(SerializationError, match="'legs'"):
            legs.add_all([LegV1("JFK", 1), LegV1("LGA", "late")])  # type: ignore[arg-type]
        assert (state.get(), legs.get()) == ([1], [LegV1("EWR", 1)])
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert (restored.get_state(LIST).get(), restored.get_state(LEGS).get()) == ([1], [LegV1("EWR", 1)])

    def test_lists_and_elements_belong_to_the_caller(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        numbers, legs = backend.get_state(LIST), backend.get_state(LEGS)
        given, leg = [1, 2], LegV1("EWR", 1)
        numbers.update(given)
        given.append(3)
        legs.add(leg)
        leg.minutes = 5
        for _ in range(2):
            numbers.get().append(4)
            legs.get()[0].minutes = 6
            assert numbers.get() == [1, 2]
            assert legs.get() == [LegV1("EWR", 1)]
            harness.snapshot(backend)

    def test_an_append_writes_only_the_new_elements(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state, legs = backend.get_state(LIST), backend.get_state(LEGS)
        state.add_all(range(100_000))
        legs.add_all([LegV1("EWR", minute) for minute in range(5_000)])
        first = harness.snapshot(backend)
        state.add(1)
        legs.add(LegV1("EWR", -1))
        second = harness.snapshot(backend)
        assert second.entries_written == 2
        assert second.bytes_written < first.bytes_written / 5
        restored = self.reopen(harness, second.handle)
        assert restored.get_state(LIST).get() == [*range(100_000), 1]
        assert restored.get_state(LEGS).get()[-2:] == [LegV1("EWR", 4_999), LegV1("EWR", -1)]
