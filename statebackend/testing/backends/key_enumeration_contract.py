"""The contract of listing keys and namespaces, and of applying a function to all keys."""

from __future__ import annotations

from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.errors import NoCurrentKeyError, StateBackendClosedError
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.state.state_kind import StateDescriptor
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase, content, fill
from statebackend.testing.backends.namespace_contract import ALL_KINDS, WRITE
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE

TEXT = StringSerializer()


class KeyEnumerationContract(ContractBase):
    """Listing keys and namespaces, and applying a function to all keys."""

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_only_the_keys_of_the_namespace_are_listed(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state = backend.get_or_create_keyed_state(TEXT, VALUE)
        for namespace, keys in (("first", range(1000)), ("second", range(1000, 2000))):
            state.set_current_namespace(namespace)
            for key in keys:
                harness.at(backend, key)
                state.update(key * 2)
        if after_a_barrier:
            harness.snapshot(backend)
        assert sorted(backend.get_keys("value", "first")) == list(range(1000))
        assert sorted(backend.get_keys("value", "second")) == list(range(1000, 2000))
        assert list(backend.get_keys("value", "third")) == []
        assert sorted(backend.get_keys("value")) == list(range(2000))

    @pytest.mark.parametrize("descriptor", ALL_KINDS, ids=lambda descriptor: descriptor.name)
    def test_pairs_of_key_and_namespace_are_listed_once_and_the_same_after_a_restore(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor
    ) -> None:
        expected = []
        for namespace in ("first", "second"):
            state: Any = backend.get_partitioned_state(namespace, TEXT, descriptor)
            for key in range(200):
                harness.at(backend, key)
                WRITE[descriptor.name](state, key)
                expected.append((key, namespace))
        assert sorted(backend.get_keys_and_namespaces(descriptor.name)) == sorted(expected)
        assert sorted(backend.get_keys(descriptor.name)) == list(range(200))
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        for _ in range(2):
            assert sorted(restored.get_keys_and_namespaces(descriptor.name)) == sorted(expected)
            assert sorted(restored.get_keys(descriptor.name, "second")) == list(range(200))
            restored.get_or_create_keyed_state(TEXT, descriptor)

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_a_key_with_several_map_entries_or_chunks_is_listed_once(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        expected = []
        for namespace in ("first", "second"):
            entries = backend.get_partitioned_state(namespace, TEXT, MAP)
            elements = backend.get_partitioned_state(namespace, TEXT, LIST)
            for key in range(50):
                harness.at(backend, key)
                for user_key in "abc":
                    entries.put(user_key, key)
                elements.add(key)
                if after_a_barrier and key % 25 == 0:
                    harness.snapshot(backend)
                    elements.add(key)
                expected.append((key, namespace))
        for name in ("map", "list"):
            assert sorted(backend.get_keys(name, "first")) == list(range(50))
            assert sorted(backend.get_keys_and_namespaces(name)) == sorted(expected)

    def test_keys_of_a_state_without_namespaces_have_the_void_namespace(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, range(10))
        assert sorted(backend.get_keys("map", VOID_NAMESPACE)) == list(range(10))
        with pytest.raises(SerializationError):
            list(backend.get_keys("map", "first"))
        with pytest.raises(SerializationError):
            list(backend.get_keys("map", None))

    def test_an_unknown_state_has_no_keys(self, backend: KeyedStateBackend) -> None:
        assert list(backend.get_keys("unknown", "first")) == []
        assert list(backend.get_keys_and_namespaces("unknown")) == []

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    @pytest.mark.parametrize("descriptor", ALL_KINDS, ids=lambda descriptor: descriptor.name)
    def test_applying_to_all_keys_may_change_that_state(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, after_a_barrier: bool
    ) -> None:
        write = WRITE[descriptor.name]
        for key in range(100):
            for namespace in ("first", "second"):
                harness.at(backend, key)
                write(backend.get_partitioned_state(namespace, TEXT, descriptor), key)
        if after_a_barrier:
            harness.snapshot(backend)
        met: list[int] = []

        def clear_and_write_again(key: int, state: Any) -> None:
            met.append(key)
            state.clear()
            if key % 2:
                write(state, key)

        backend.apply_to_all_keys("first", TEXT, descriptor, clear_and_write_again)
        assert sorted(met) == list(range(100))
        assert sorted(backend.get_keys(descriptor.name, "first")) == list(range(1, 100, 2))
        assert sorted(backend.get_keys(descriptor.name, "second")) == list(range(100))
        backend.apply_to_all_keys("first", TEXT, descriptor, lambda _, state: state.clear())
        assert list(backend.get_keys(descriptor.name, "first")) == []

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    @pytest.mark.parametrize("descriptor", ALL_KINDS, ids=lambda descriptor: descriptor.name)
    def test_applying_to_all_keys_visits_the_keys_at_its_start(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: StateDescriptor, after_a_barrier: bool
    ) -> None:
        # This also applies to backends that list keys lazily.
        write = WRITE[descriptor.name]
        state: Any = backend.get_partitioned_state("first", TEXT, descriptor)
        for key in range(200):
            harness.at(backend, key)
            write(state, key)
        if after_a_barrier:
            harness.snapshot(backend)
        met: list[int] = []

        def disturb(key: int, state: Any) -> None:
            met.append(key)
            for other in (key + 1, 199 - key):
                harness.at(backend, other)
                state.clear()
            harness.at(backend, key + 1000)
            write(state, key)
            if len(met) % 50 == 0:
                harness.snapshot(backend)

        backend.apply_to_all_keys("first", TEXT, descriptor, disturb)
        assert sorted(met) == list(range(200))
        assert sorted(backend.get_keys(descriptor.name, "first")) == list(range(1000, 1200))

    def test_applying_to_all_keys_may_write_other_keys(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, range(20))

        def move(key: int, state: Any) -> None:
            value = state.value()
            state.clear()
            harness.at(backend, key + 100)
            state.update(value)

        backend.apply_to_all_keys(VOID_NAMESPACE, VOID_NAMESPACE_SERIALIZER, VALUE, move)
        assert content(harness, backend, VALUE) == {key + 100: key for key in range(20)}

    def test_applying_to_all_keys_restores_key_and_namespace(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_partitioned_state("first", TEXT, VALUE)
        for key in range(5):
            harness.at(backend, key)
            state.update(key)
        harness.at(backend, 3)
        current = backend.get_partitioned_state("second", TEXT, VALUE)
        current.update(33)
        backend.apply_to_all_keys("first", TEXT, VALUE, lambda key, state: None)
        assert current.value() == 33

        def fail(key: int, state: Any) -> None:
            raise ZeroDivisionError(key)

        with pytest.raises(ZeroDivisionError):
            backend.apply_to_all_keys("first", TEXT, VALUE, fail)
        assert current.value() == 33
        backend.leave_key()
        backend.apply_to_all_keys("first", TEXT, VALUE, lambda key, state: state.update(key * 2))
        with pytest.raises(NoCurrentKeyError):
            current.value()
        harness.at(backend, 4)
        assert backend.get_partitioned_state("first", TEXT, VALUE).value() == 8

    def test_applying_to_all_keys_registers_restored_state(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, range(30))
        restored = harness.open(self.create_state_backend(), harness.snapshot(backend).handle)
        found: dict[int, int] = {}
        restored.apply_to_all_keys(
            VOID_NAMESPACE, VOID_NAMESPACE_SERIALIZER, VALUE, lambda key, state: found.update({key: state.value()})
        )
        assert found == {key: key for key in range(30)}

    def test_applying_to_all_keys_rejects_a_null_namespace_and_a_closed_backend(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        with pytest.raises(SerializationError):
            backend.apply_to_all_keys(None, TEXT, VALUE, lambda key, state: None)
        with pytest.raises(SerializationError):
            backend.get_keys("value", None)
        backend.close()
        for call in (
            lambda: backend.apply_to_all_keys("first", TEXT, VALUE, lambda key, state: None),
            lambda: list(backend.get_keys_and_namespaces("value")),
            lambda: list(backend.get_keys("value", "first")),
        ):
            with pytest.raises(StateBackendClosedError):
                call()
