"""The contract of reducing and aggregating state."""

from __future__ import annotations

import operator
from typing import Any

import pytest
from attrs import evolve

from snapshots.errors import SerializationError
from statebackend.state.errors import StateRegistrationError
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.states import AggregateFunction
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.testing.backends.evolving_records import IMMUTABLE_SUM, MUTABLE_SUM, SUM, ImmutableSum, LegV1, leg_v1
from statebackend.testing.backends.harness import BackendHarness, ContractBase, content
from typeserializers.scalars.fixed_width import LongSerializer

FOLDING = pytest.mark.parametrize(
    ("descriptor", "result"),
    [(SUM, int), (IMMUTABLE_SUM, str), (MUTABLE_SUM, str)],
    ids=["reducing", "aggregating, immutable", "aggregating, mutable"],
)


class FailingFunction(ImmutableSum):
    """Fails for 13, and returns None for 14."""

    def add(self, value: int, accumulator: int) -> int:
        if value == 13:
            raise ZeroDivisionError("thirteen")
        return None if value == 14 else accumulator + value  # type: ignore[return-value]


def _failing_reduce(left: int, right: int) -> int:
    return FailingFunction().add(right, left)


class FoldingStateContract(ContractBase):
    """Reducing and aggregating state on a backend."""

    @FOLDING
    def test_added_values_are_folded_per_key(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, result: Any
    ) -> None:
        state: Any = backend.get_state(descriptor)
        added = {"def": [17, 11], "g": [1, 2, 3, 2, 1]}
        for number, values in enumerate(added.values()):
            harness.at(backend, number)
            assert state.get() is None
            for value in values:
                state.add(value)
        for number, values in enumerate(added.values()):
            harness.at(backend, number)
            assert state.get() == state.get() == result(sum(values))
        assert content(harness, backend, descriptor) == {0: result(28), 1: result(9)}
        for number in range(2):
            harness.at(backend, number)
            state.clear()
            assert state.get() is None
        assert list(backend.get_keys(descriptor.name)) == []

    @FOLDING
    def test_an_accumulator_can_be_read_folded_elsewhere_and_written_back(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, result: Any
    ) -> None:
        state: Any = backend.get_or_create_keyed_state(LongSerializer(), descriptor)
        state.set_current_namespace(1)
        assert state.get_internal() is None
        with pytest.raises(SerializationError):
            state.update_internal(None)
        state.add(3)
        folded = state.get_internal()
        state.set_current_namespace(2)
        state.update_internal(folded)
        state.add(4)
        assert state.get() == result(7)
        state.set_current_namespace(1)
        assert state.get() == result(3)

    @FOLDING
    def test_folding_none_is_rejected_with_and_without_time_to_live(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, result: Any
    ) -> None:
        timed = evolve(descriptor, ttl=StateTtlConfig(1000))
        state: Any = backend.get_or_create_keyed_state(LongSerializer(), timed)
        state.set_current_namespace(1)
        state.add(3)
        with pytest.raises(SerializationError, match=rf"{descriptor.name}.*: None cannot be a folded value"):
            state.update_internal(None)
        assert state.get() == result(3)

    @FOLDING
    def test_folding_goes_on_across_barriers_and_every_snapshot_restores_the_state_of_its_epoch(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, result: Any
    ) -> None:
        state: Any = backend.get_state(descriptor)
        handles = []
        for value in (1, 10, 100):
            state.add(value)
            handles.append(harness.snapshot(backend).handle)
        state.clear()
        cleared = harness.snapshot(backend).handle
        state.add(1000)
        for handle, expected in zip(handles, (1, 11, 111), strict=True):
            restored = self.reopen(harness, handle)
            again: Any = restored.get_state(descriptor)
            assert again.get() == result(expected)
            again.add(5)
            assert again.get() == result(expected + 5)
        assert content(harness, self.reopen(harness, cleared), descriptor) == {}
        assert content(harness, self.reopen(harness, harness.export(backend)), descriptor) == {1: result(1000)}

    @FOLDING
    def test_an_epoch_writes_one_entry_per_key_for_any_number_of_added_values(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, result: Any
    ) -> None:
        state: Any = backend.get_state(descriptor)
        for _ in range(2):
            for _ in range(50):
                state.add(1)
            snapshot = harness.snapshot(backend)
            assert snapshot.entries_written == 1
        assert state.get() == result(100)

    def test_values_are_reduced_in_the_order_in_which_they_are_added(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(ReducingStateDescriptor("text", operator.add, str))
        for text in ("a", "b", "", "c"):
            state.add(text)
        assert state.get() == "abc"

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_a_failing_function_changes_nothing(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        reducing: Any = backend.get_state(ReducingStateDescriptor("reducing", _failing_reduce, int))
        aggregating: Any = backend.get_state(AggregatingStateDescriptor("aggregating", FailingFunction(), int))
        for state, result in ((reducing, int), (aggregating, str)):
            state.add(7)
            if after_a_barrier:
                harness.snapshot(backend)
            with pytest.raises(ZeroDivisionError):
                state.add(13)
            for misfit in (None, 14, 2**63):
                with pytest.raises(SerializationError, match=r"'(reducing|aggregating)'"):
                    state.add(misfit)
            assert state.get() == result(7)
            state.add(1)
            assert state.get() == result(8)

    def test_a_first_value_that_does_not_fit_is_rejected(self, backend: KeyedStateBackend) -> None:
        for descriptor in (SUM, IMMUTABLE_SUM, MUTABLE_SUM):
            state: Any = backend.get_state(descriptor)
            with pytest.raises(SerializationError, match=f"'{descriptor.name}'"):
                state.add(2**63)
            assert state.get() is None
        assert list(backend.get_keys("sum")) == []

    def test_mutable_values_belong_to_the_caller(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        def longer(left: LegV1, right: LegV1) -> LegV1:
            left.minutes += right.minutes
            return left

        descriptor: ReducingStateDescriptor[LegV1] = ReducingStateDescriptor("leg", longer, leg_v1())
        state = backend.get_state(descriptor)
        given = LegV1("EWR", 1)
        state.add(given)
        state.add(given)
        given.minutes = 50
        for _ in range(2):
            returned = state.get()
            assert returned == LegV1("EWR", 2)
            assert returned is not None
            returned.minutes = 3
            assert state.get() == LegV1("EWR", 2)
            harness.snapshot(backend)

    def test_the_function_may_change_between_two_runs(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        backend.get_state(SUM).add(5)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        highest: ReducingStateDescriptor[int] = ReducingStateDescriptor("sum", max, int)
        state = restored.get_state(highest)
        state.add(3)
        assert state.get() == 5

    def test_the_kinds_of_functions_are_checked(self) -> None:
        with pytest.raises(StateRegistrationError, match="function of two values"):
            ReducingStateDescriptor("sum", 5, int)  # type: ignore[arg-type]
        for function in (operator.add, ImmutableSum):
            with pytest.raises(StateRegistrationError, match="AggregateFunction"):
                AggregatingStateDescriptor("sum", function, int)  # type: ignore[arg-type]

    def test_another_function_under_the_same_name_is_rejected(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(SUM)
        assert backend.get_state(ReducingStateDescriptor("sum", operator.add, int)) is state
        others: list[StateDescriptor] = [
            ReducingStateDescriptor("sum", max, int),
            AggregatingStateDescriptor("sum", ImmutableSum(), int),
        ]
        for other in others:
            with pytest.raises(StateRegistrationError, match="registered twice"):
                backend.get_state(other)

    def test_a_merge_without_a_merge_method_raises_an_error_that_names_the_class(self) -> None:
        class Unmergeable(AggregateFunction[int, int, int]):
            def create_accumulator(self) -> int:
                return 0

            def add(self, value: int, accumulator: int) -> int:
                return accumulator + value

            def get_result(self, accumulator: int) -> int:
                return accumulator

        with pytest.raises(NotImplementedError, match="Unmergeable has no merge"):
            Unmergeable().merge(1, 2)
