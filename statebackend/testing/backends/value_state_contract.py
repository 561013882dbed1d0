"""The contract of value state."""

from __future__ import annotations

from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.states import ValueState
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import FlightV1, LegV1, flight_v1, leg_v1
from statebackend.testing.backends.harness import VALUE, BackendHarness, ContractBase, content
from typeserializers.scalars.fixed_width import FloatSerializer

LEG: ValueStateDescriptor[LegV1] = ValueStateDescriptor("leg", leg_v1())


class ValueStateContract(ContractBase):
    """Value state on a backend."""

    def test_a_value_is_none_until_it_is_set(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        assert state.value() is None
        state.update(5)
        assert state.value() == 5

    def test_each_key_has_its_own_value(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        for key in range(50):
            harness.at(backend, key)
            assert state.value() is None
            state.update(key * 10)
        assert content(harness, backend, VALUE) == {key: key * 10 for key in range(50)}

    def test_states_of_different_names_are_independent(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        other: ValueStateDescriptor[str] = ValueStateDescriptor("second", str)
        first, second = backend.get_state(VALUE), backend.get_state(other)
        first.update(1)
        assert second.value() is None
        second.update("two")
        first.clear()
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert restored.get_state(VALUE).value() is None
        assert restored.get_state(other).value() == "two"

    def test_clear_removes_the_value_of_the_current_key_only(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(VALUE)
        state.update(1)
        harness.at(backend, 2)
        state.update(2)
        state.clear()
        assert state.value() is None
        assert content(harness, backend, VALUE) == {1: 1}

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_update_with_none_clears_even_if_the_serializer_rejects_none(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        descriptor = ValueStateDescriptor("with default", int, 42)
        state = backend.get_state(descriptor)
        state.update(7)
        if after_a_barrier:
            harness.snapshot(backend)
        state.update(None)
        assert state.value() == 42
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert restored.get_state(descriptor).value() == 42
        assert list(restored.get_keys("with default")) == []

    def test_update_with_none_clears_a_mutable_value_too(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(LEG)
        state.update(None)
        state.update(LegV1("JFK", 1))
        handle = harness.snapshot(backend).handle
        state.update(None)
        assert state.value() is None
        assert content(harness, self.reopen(harness, harness.snapshot(backend).handle), LEG) == {}
        assert content(harness, self.reopen(harness, handle), LEG) == {1: LegV1("JFK", 1)}

    def test_an_unset_value_reads_as_a_copy_of_the_default(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        descriptor = ValueStateDescriptor("leg with default", leg_v1(), LegV1("JFK", 0))
        state = backend.get_state(descriptor)
        first, second = state.value(), state.value()
        assert first == second == LegV1("JFK", 0)
        assert first is not second
        assert first is not None
        first.minutes = 99
        assert state.value() == LegV1("JFK", 0)
        state.update(LegV1("LGA", 1))
        state.clear()
        assert state.value() == LegV1("JFK", 0)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert restored.get_state(descriptor).value() == LegV1("JFK", 0)

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_a_value_that_does_not_fit_is_rejected_at_once_and_changes_nothing(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state, leg = backend.get_state(VALUE), backend.get_state(LEG)
        flight: ValueState[Any] = backend.get_state(ValueStateDescriptor("flight", flight_v1()))
        state.update(1)
        leg.update(LegV1("EWR", 1))
        if after_a_barrier:
            harness.snapshot(backend)
        for misfit in (2**63, -(2**63) - 1, "1", 1.5, [1]):
            with pytest.raises(SerializationError, match="'value'"):
                state.update(misfit)  # type: ignore[arg-type]
        for record in (LegV1("EWR", 2**63), LegV1(5, 1), LegV1("EWR", None), FlightV1(1, 2, "UA")):  # type: ignore[arg-type]
            with pytest.raises(SerializationError, match="'leg'"):
                leg.update(record)  # type: ignore[arg-type]
        with pytest.raises(SerializationError, match=r"\.late"):
            flight.update(FlightV1(1, "late", "UA"))  # type: ignore[arg-type]
        assert (state.value(), leg.value(), flight.value()) == (1, LegV1("EWR", 1), None)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert (restored.get_state(VALUE).value(), restored.get_state(LEG).value()) == (1, LegV1("EWR", 1))

    @pytest.mark.parametrize("extreme", [2**63 - 1, -(2**63), 0])
    def test_extreme_values_fit(self, harness: BackendHarness, backend: KeyedStateBackend, extreme: int) -> None:
        backend.get_state(VALUE).update(extreme)
        assert self.reopen(harness, harness.snapshot(backend).handle).get_state(VALUE).value() == extreme

    def test_returned_and_passed_objects_belong_to_the_caller(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(LEG)
        given = LegV1("EWR", 1)
        state.update(given)
        given.minutes = 2
        for _ in range(2):
            returned = state.value()
            assert returned == LegV1("EWR", 1)
            assert returned is not None
            returned.minutes = 3
            assert state.value() == LegV1("EWR", 1)
            harness.snapshot(backend)

    def test_nested_values_belong_to_the_caller(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        lists: ValueStateDescriptor[list[list[int]]] = ValueStateDescriptor("nested", list[list[int]])
        state = backend.get_state(lists)
        given = [[1], [2]]
        state.update(given)
        given[0].append(5)
        returned = state.value()
        assert returned == [[1], [2]]
        assert returned is not None
        returned[1].append(6)
        assert state.value() == [[1], [2]]

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_a_value_has_the_stored_form_from_the_first_read(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        number = backend.get_state(VALUE)
        single: ValueState[float] = backend.get_state(ValueStateDescriptor("single", FloatSerializer()))
        number.update(True)
        single.update(0.1)
        if after_a_barrier:
            harness.snapshot(backend)
        assert type(number.value()) is int
        assert single.value() == 0.10000000149011612

    def test_the_last_of_many_updates_counts(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        for _ in range(3):
            for _ in range(100):
                state.update((state.value() or 0) + 1)
            snapshot = harness.snapshot(backend)
        assert state.value() == 300
        assert snapshot.entries_written == 1
        assert self.reopen(harness, snapshot.handle).get_state(VALUE).value() == 300
