"""The contract of merging namespaces in list, reducing and aggregating state."""

from __future__ import annotations

from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.errors import NoCurrentKeyError
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.state.state_kind import StateDescriptor
from statebackend.testing.backends.evolving_records import (
    IMMUTABLE_SUM,
    MUTABLE_SUM,
    SUM,
    ImmutableSum,
    MutableSum,
    Tally,
)
from statebackend.testing.backends.harness import LIST, BackendHarness, ContractBase
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE

TEXT = StringSerializer()

# The added values by key and namespace. All are merged into "first".
ADDED: dict[str, dict[str, list[int]]] = {
    "abc": {"first": [33, 55], "second": [22, 11], "third": [44]},
    "def": {"first": [11, 44], "third": [22, 55, 33]},
    "ghi": {},
    "jkl": {"first": [11, 22, 33, 44, 55]},
    "mno": {"third": [11, 22, 33, 44, 55]},
}

MERGING = pytest.mark.parametrize(
    ("descriptor", "summary"),
    [
        (LIST, lambda values: values),
        (SUM, lambda values: sum(values) if values else None),
        (IMMUTABLE_SUM, lambda values: str(sum(values)) if values else None),
        (MUTABLE_SUM, lambda values: str(sum(values)) if values else None),
    ],
    ids=["list", "reducing", "aggregating, immutable", "aggregating, mutable"],
)


def _merge_fails(left: Any, right: Any) -> Any:
    raise ZeroDivisionError("merging")


class UnmergeableImmutableSum(ImmutableSum):
    def merge(self, left: int, right: int) -> int:
        raise ZeroDivisionError("merging")


class UnmergeableMutableSum(MutableSum):
    def merge(self, left: Tally, right: Tally) -> Tally:
        super().merge(left, right)
        raise ZeroDivisionError("merging")


class MergingContract(ContractBase):
    """Merging namespaces keeps all elements of the sources and the target."""

    def open_filled(self, harness: BackendHarness, descriptor: StateDescriptor, barrier: bool) -> KeyedStateBackend:
        """Return a backend with the values above, restored from a snapshot if ``barrier`` is True."""
        backend = harness.open(self.create_state_backend(), key_serializer=TEXT)
        for key, namespaces in ADDED.items():
            harness.at(backend, key)
            for namespace, values in namespaces.items():
                state: Any = backend.get_partitioned_state(namespace, TEXT, descriptor)
                for value in values:
                    state.add(value)
        if not barrier:
            return backend
        return harness.open(self.create_state_backend(), harness.snapshot(backend).handle, key_serializer=TEXT)

    @MERGING
    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_sources_are_folded_into_the_target_and_deleted(
        self, harness: BackendHarness, descriptor: StateDescriptor, summary: Any, after_a_barrier: bool
    ) -> None:
        backend = self.open_filled(harness, descriptor, after_a_barrier)
        state: Any = backend.get_or_create_keyed_state(TEXT, descriptor)
        state.set_current_namespace("elsewhere")
        for key in ADDED:
            harness.at(backend, key)
            state.merge_namespaces("first", ["second", "third"])
        state.set_current_namespace("first")
        expected = {key: summary([value for values in ADDED[key].values() for value in values]) for key in ADDED}
        for backend_now in (backend, self._reopened(harness, backend)):
            again: Any = backend_now.get_partitioned_state("first", TEXT, descriptor)
            for key, merged in expected.items():
                harness.at(backend_now, key)
                assert again.get() == merged
            addresses = list(backend_now.get_keys_and_namespaces(descriptor.name))
            assert sorted(addresses) == [(key, "first") for key in ("abc", "def", "jkl", "mno")]
        for key in ADDED:
            harness.at(backend, key)
            state.clear()
        assert list(backend.get_keys_and_namespaces(descriptor.name)) == []
        assert list(self._reopened(harness, backend).get_keys_and_namespaces(descriptor.name)) == []

    @MERGING
    def test_a_target_among_the_sources_and_a_source_given_twice_count_once(
        self, harness: BackendHarness, descriptor: StateDescriptor, summary: Any
    ) -> None:
        backend = self.open_filled(harness, descriptor, barrier=False)
        harness.at(backend, "abc")
        state: Any = backend.get_partitioned_state("first", TEXT, descriptor)
        state.merge_namespaces("first", iter(["third", "first", "third", "unknown"]))
        assert state.get() == summary([33, 55, 44])
        state.merge_namespaces("first", [])
        state.merge_namespaces("first", ["first"])
        assert state.get() == summary([33, 55, 44])
        state.set_current_namespace("second")
        assert state.get() == summary([22, 11])

    @MERGING
    def test_merging_keeps_the_current_namespace(
        self, harness: BackendHarness, descriptor: StateDescriptor, summary: Any
    ) -> None:
        backend = self.open_filled(harness, descriptor, barrier=False)
        harness.at(backend, "abc")
        state: Any = backend.get_partitioned_state("second", TEXT, descriptor)
        state.merge_namespaces("first", ["third"])
        assert state.get() == summary([22, 11])
        state.merge_namespaces("first", ["second"])
        assert state.get() == summary([])

    @MERGING
    def test_null_and_invalid_namespaces_are_rejected_before_anything_is_merged(
        self, harness: BackendHarness, descriptor: StateDescriptor, summary: Any
    ) -> None:
        backend = self.open_filled(harness, descriptor, barrier=False)
        harness.at(backend, "abc")
        state: Any = backend.get_partitioned_state("first", TEXT, descriptor)
        for target, sources in ((None, ["second"]), (5, ["second"]), ("first", ["second", None]), ("first", [5])):
            with pytest.raises(SerializationError, match=f"'{descriptor.name}'"):
                state.merge_namespaces(target, sources)
        for namespace, values in ADDED["abc"].items():
            state.set_current_namespace(namespace)
            assert state.get() == summary(values)

    @pytest.mark.parametrize(
        ("descriptor", "failing"),
        [
            (SUM, ReducingStateDescriptor("sum", _merge_fails, int)),
            (IMMUTABLE_SUM, AggregatingStateDescriptor("immutable sum", UnmergeableImmutableSum(), int)),
            (
                MUTABLE_SUM,
                AggregatingStateDescriptor(
                    "mutable sum",
                    UnmergeableMutableSum(),
                    AttrsSerializer(Tally, name="statebackend.contract.Tally"),
                ),
            ),
        ],
        ids=["reducing", "aggregating, immutable", "aggregating, mutable"],
    )
    def test_a_merge_that_fails_changes_nothing(
        self, harness: BackendHarness, descriptor: StateDescriptor, failing: StateDescriptor
    ) -> None:
        filled = self.open_filled(harness, descriptor, barrier=False)
        handle = harness.snapshot(filled).handle
        backend = harness.open(self.create_state_backend(), handle, key_serializer=TEXT)
        harness.at(backend, "abc")
        state: Any = backend.get_partitioned_state("first", TEXT, failing)
        with pytest.raises(ZeroDivisionError):
            state.merge_namespaces("first", ["second", "third"])
        kind = int if descriptor is SUM else str
        for namespace, values in ADDED["abc"].items():
            state.set_current_namespace(namespace)
            assert state.get() == kind(sum(values))
        assert harness.snapshot(backend).entries_written == 0

    @MERGING
    def test_merging_needs_a_current_key(
        self, harness: BackendHarness, descriptor: StateDescriptor, summary: Any
    ) -> None:
        backend = self.open_filled(harness, descriptor, barrier=False)
        state: Any = backend.get_partitioned_state("first", TEXT, descriptor)
        backend.leave_key()
        with pytest.raises(NoCurrentKeyError):
            state.merge_namespaces("first", ["second"])

    @MERGING
    def test_merging_state_without_namespaces_is_rejected(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, summary: Any
    ) -> None:
        state: Any = backend.get_or_create_keyed_state(VOID_NAMESPACE_SERIALIZER, descriptor)
        state.add(5)
        state.merge_namespaces(VOID_NAMESPACE, [VOID_NAMESPACE])
        assert state.get() == summary([5])
        with pytest.raises(SerializationError):
            state.merge_namespaces(VOID_NAMESPACE, ["first"])

    def _reopened(self, harness: BackendHarness, backend: KeyedStateBackend) -> KeyedStateBackend:
        handle = harness.snapshot(backend).handle
        return harness.open(self.create_state_backend(), handle, key_serializer=TEXT)
