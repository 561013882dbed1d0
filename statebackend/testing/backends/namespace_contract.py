"""The contract of namespaces: state of every kind is stored by key and namespace."""

from __future__ import annotations

import math
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind
from snapshots.errors import SerializationError
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.errors import StateBackendError, StateMigrationException, StateRegistrationError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.state_kind import StateDescriptor
from statebackend.testing.backends.evolving_records import (
    IMMUTABLE_SUM,
    MUTABLE_SUM,
    SUM,
    FlightV1,
    flight_v1,
    flight_v2,
)
from statebackend.testing.backends.evolving_serializers import WordSerializer
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import DoubleSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

NAMESPACES = ["", "a", "aa", "ab", "b\0", "é", "x" * 300]
TEXT = StringSerializer()
OLD_WORDS = WordSerializer("red", "green")
NEW_WORDS = WordSerializer("blue", "green", "red")

ALL_KINDS: list[StateDescriptor] = [VALUE, LIST, MAP, SUM, IMMUTABLE_SUM, MUTABLE_SUM]

WRITE: dict[str, Any] = {
    "value": lambda state, number: state.update(number),
    "list": lambda state, number: state.update([number, number]),
    "map": lambda state, number: (state.clear(), state.put("number", number)),
    "sum": lambda state, number: (state.clear(), state.add(number)),
    "immutable sum": lambda state, number: (state.clear(), state.add(number)),
    "mutable sum": lambda state, number: (state.clear(), state.add(number)),
}
READ: dict[str, Any] = {
    "value": lambda state: state.value(),
    "list": lambda state: next(iter(state.get()), None),
    "map": lambda state: state.get("number"),
    "sum": lambda state: state.get(),
    "immutable sum": lambda state: _number(state.get()),
    "mutable sum": lambda state: _number(state.get()),
}


def _number(text: str | None) -> int | None:
    return None if text is None else int(text)


def namespaced_content(
    harness: BackendHarness, backend: KeyedStateBackend, serializer: TypeSerializer[Any], descriptor: StateDescriptor
) -> dict[tuple[Any, Any], Any]:
    """Return the content of a state by key and namespace."""
    result = {}
    for key, namespace in list(backend.get_keys_and_namespaces(descriptor.name)):
        harness.at(backend, key)
        state = backend.get_partitioned_state(namespace, serializer, descriptor)
        result[key, namespace] = READ[descriptor.name](state)
    return result


def write_namespaces(
    harness: BackendHarness,
    backend: KeyedStateBackend,
    serializer: TypeSerializer[Any],
    descriptor: StateDescriptor,
    written: dict[tuple[Any, Any], int],
) -> None:
    """Write numbers by key and namespace."""
    for (key, namespace), number in written.items():
        harness.at(backend, key)
        WRITE[descriptor.name](backend.get_partitioned_state(namespace, serializer, descriptor), number)


class NamespaceContract(ContractBase):
    """State of every kind by key and namespace."""

    @pytest.mark.parametrize("descriptor", ALL_KINDS, ids=lambda descriptor: descriptor.name)
    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_each_key_has_its_own_state_in_each_namespace(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, after_a_barrier: bool
    ) -> None:
        expected = {
            (key, namespace): key * 100 + number for key in range(12) for number, namespace in enumerate(NAMESPACES)
        }
        write_namespaces(harness, backend, TEXT, descriptor, expected)
        if after_a_barrier:
            harness.snapshot(backend)
        assert namespaced_content(harness, backend, TEXT, descriptor) == expected
        changed = {(key, namespace): -number for (key, namespace), number in expected.items() if namespace == "a"}
        write_namespaces(harness, backend, TEXT, descriptor, changed)
        expected.update(changed)
        harness.at(backend, 3)
        backend.get_partitioned_state("ab", TEXT, descriptor).clear()
        del expected[3, "ab"]
        assert namespaced_content(harness, backend, TEXT, descriptor) == expected
        for handle in (harness.export(backend), harness.snapshot(backend).handle):
            restored = self.reopen(harness, handle)
            assert list(restored.get_keys_and_namespaces(descriptor.name)) == list(
                backend.get_keys_and_namespaces(descriptor.name)
            )
            assert namespaced_content(harness, restored, TEXT, descriptor) == expected
            unregistered = self.reopen(harness, handle)
            carried = self.reopen(harness, harness.snapshot(unregistered).handle)
            assert namespaced_content(harness, carried, TEXT, descriptor) == expected

    def test_a_handle_stays_in_its_namespace_whatever_the_key(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_or_create_keyed_state(TEXT, VALUE)
        other = backend.get_or_create_keyed_state(TEXT, LIST)
        state.set_current_namespace("a")
        other.set_current_namespace("b")
        for key in range(5):
            harness.at(backend, key)
            state.update(key)
            other.add(key)
        state.set_current_namespace("b")
        assert state.value() is None
        assert other.get() == [4]
        assert backend.get_partitioned_state("a", TEXT, VALUE) is state
        assert state.value() == 4
        assert sorted(backend.get_keys_and_namespaces("value")) == [(key, "a") for key in range(5)]
        assert sorted(backend.get_keys_and_namespaces("list")) == [(key, "b") for key in range(5)]

    def test_null_and_invalid_namespaces_are_rejected_and_the_current_one_stays(
        self, backend: KeyedStateBackend
    ) -> None:
        # The string serializer would write None, but a namespace must not be null.
        for descriptor in ALL_KINDS:
            state: Any = backend.get_partitioned_state("a", TEXT, descriptor)
            WRITE[descriptor.name](state, 5)
            for misfit in (None, 7, VOID_NAMESPACE):
                with pytest.raises(SerializationError, match=f"'{descriptor.name}'"):
                    backend.get_partitioned_state(misfit, TEXT, descriptor)
                with pytest.raises(SerializationError, match=f"'{descriptor.name}'"):
                    state.set_current_namespace(misfit)
            assert READ[descriptor.name](state) == 5

    def test_a_null_namespace_serializer_is_rejected(self, backend: KeyedStateBackend) -> None:
        missing: Any = None
        with pytest.raises(StateRegistrationError, match=r"'value'.*serializer of its namespaces"):
            backend.get_partitioned_state("a", missing, VALUE)
        assert backend.get_partitioned_state("a", TEXT, VALUE).value() is None

    @pytest.mark.parametrize("descriptor", ALL_KINDS, ids=lambda descriptor: descriptor.name)
    def test_access_without_a_current_namespace_raises(
        self, backend: KeyedStateBackend, descriptor: StateDescriptor
    ) -> None:
        state = backend.get_or_create_keyed_state(TEXT, descriptor)
        for access in (READ[descriptor.name], lambda state: WRITE[descriptor.name](state, 1)):
            with pytest.raises(StateBackendError, match="set_current_namespace"):
                access(state)
        assert list(backend.get_keys(descriptor.name)) == []

    def test_state_without_namespaces_has_only_the_void_namespace(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        assert backend.get_partitioned_state(VOID_NAMESPACE, VoidNamespaceSerializer(), VALUE) is state
        state.update(1)
        assert list(backend.get_keys_and_namespaces("value")) == [(1, VOID_NAMESPACE)]
        for misfit in (None, "a"):
            with pytest.raises(SerializationError):
                backend.get_partitioned_state(misfit, VoidNamespaceSerializer(), VALUE)
        assert state.value() == 1

    def test_a_state_cannot_be_registered_with_two_namespace_serializers(self, backend: KeyedStateBackend) -> None:
        backend.get_partitioned_state("a", TEXT, VALUE)
        with pytest.raises(StateRegistrationError, match="registered twice"):
            backend.get_partitioned_state(1, LongSerializer(), VALUE)
        with pytest.raises(StateRegistrationError, match="registered twice"):
            backend.get_state(VALUE)

    def test_namespaces_are_compared_by_their_bytes(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend(), key_serializer=DoubleSerializer())
        state = backend.get_or_create_keyed_state(DoubleSerializer(), VALUE)
        values = [math.nan, 0.0, -0.0]
        for epoch in range(2):
            for key in values:
                for number, namespace in enumerate([*values, float("nan")]):
                    backend.set_current_key(key, 1)
                    state.set_current_namespace(namespace)
                    state.update(number + epoch)
            assert len(list(backend.get_keys_and_namespaces("value"))) == 9
            for key in values:
                backend.set_current_key(key, 1)
                found = []
                for namespace in values:
                    state.set_current_namespace(namespace)
                    found.append(state.value())
                assert found == [3 + epoch, 1 + epoch, 2 + epoch]
            harness.snapshot(backend)

    @pytest.mark.parametrize("parallelism", [2, 3])
    def test_namespaces_are_rescaled_with_their_keys(self, harness: BackendHarness, parallelism: int) -> None:
        expected = {(key, namespace): key for key in range(30) for namespace in NAMESPACES}
        backend = harness.open(self.create_state_backend())
        for descriptor in ALL_KINDS:
            write_namespaces(harness, backend, TEXT, descriptor, expected)
        handle = harness.snapshot(backend).handle
        found: dict[str, dict[Any, Any]] = {descriptor.name: {} for descriptor in ALL_KINDS}
        for subtask in range(parallelism):
            part = harness.open(self.create_state_backend(), handle, subtask=subtask, parallelism=parallelism)
            for descriptor in ALL_KINDS:
                found[descriptor.name].update(namespaced_content(harness, part, TEXT, descriptor))
        assert found == {descriptor.name: expected for descriptor in ALL_KINDS}

    @pytest.mark.parametrize("descriptor", ALL_KINDS, ids=lambda descriptor: descriptor.name)
    def test_the_namespace_serializer_may_be_reconfigured(
        self, harness: BackendHarness, descriptor: StateDescriptor
    ) -> None:
        backend = harness.open(self.create_state_backend())
        expected = {(key, word): key for key in range(5) for word in ("red", "green")}
        write_namespaces(harness, backend, OLD_WORDS, descriptor, expected)
        handle = harness.snapshot(backend).handle
        for epoch in range(3):
            restored = self.reopen(harness, handle)
            state = restored.get_or_create_keyed_state(NEW_WORDS, descriptor)
            if epoch == 0:
                assert restored.restore_reports[0].compatibility.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER
            assert namespaced_content(harness, restored, NEW_WORDS, descriptor) == expected
            assert sorted(restored.get_keys(descriptor.name, "green")) == list(range(5))
            harness.at(restored, 2)
            state.set_current_namespace("blue")
            WRITE[descriptor.name](state, epoch)
            expected[2, "blue"] = epoch
            assert list(restored.get_keys(descriptor.name, "blue")) == [2]
            handle = harness.export(restored) if epoch == 1 else harness.snapshot(restored).handle

    def test_the_namespace_serializer_cannot_migrate_or_change(self, harness: BackendHarness) -> None:
        cases: list[tuple[TypeSerializer[Any], Any, list[TypeSerializer[Any]]]] = [
            (flight_v1(), FlightV1(1, 10, "UA"), [flight_v2(), TEXT, VoidNamespaceSerializer()]),
            (OLD_WORDS, "red", [WordSerializer("red"), TEXT]),
            (VoidNamespaceSerializer(), VOID_NAMESPACE, [TEXT]),
        ]
        for old, namespace, others in cases:
            backend = harness.open(self.create_state_backend())
            harness.at(backend, 1)
            backend.get_partitioned_state(namespace, old, VALUE).update(5)
            restored = self.reopen(harness, harness.snapshot(backend).handle)
            for other in others:
                with pytest.raises(StateMigrationException, match="state 'value'"):
                    restored.get_or_create_keyed_state(other, VALUE)
            assert self._carried(harness, restored).get_partitioned_state(namespace, old, VALUE).value() == 5
            assert restored.get_partitioned_state(namespace, old, VALUE).value() == 5

    def test_a_rejected_migration_of_namespaces_says_why(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        backend.get_partitioned_state(FlightV1(1, 10, "UA"), flight_v1(), VALUE).update(5)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match="the namespaces of the state decide where"):
            restored.get_or_create_keyed_state(flight_v2(), VALUE)

    def _carried(self, harness: BackendHarness, backend: KeyedStateBackend) -> KeyedStateBackend:
        handle: KeyedStateHandle = harness.snapshot(backend).handle
        return self.reopen(harness, handle)
