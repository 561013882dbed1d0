"""The contract of registration, of the current key, and of the life of handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.errors import (
    NoCurrentKeyError,
    StateBackendClosedError,
    StateBackendError,
    StateRegistrationError,
)
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import IMMUTABLE_SUM, MUTABLE_SUM, SUM
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase, content, fill
from typeserializers.scalars.fixed_width import DoubleSerializer
from typeserializers.scalars.strings import StringSerializer

ACCESSES: list[tuple[Any, Callable[[Any], Any]]] = [
    (VALUE, lambda state: state.value()),
    (VALUE, lambda state: state.update(1)),
    (VALUE, lambda state: state.clear()),
    (LIST, lambda state: state.get()),
    (LIST, lambda state: state.add(1)),
    (LIST, lambda state: state.add_all([1])),
    (LIST, lambda state: state.update([1])),
    (LIST, lambda state: state.clear()),
    (MAP, lambda state: state.get("a")),
    (MAP, lambda state: state.contains("a")),
    (MAP, lambda state: state.put("a", 1)),
    (MAP, lambda state: state.put_all({"a": 1})),
    (MAP, lambda state: state.remove("a")),
    (MAP, lambda state: state.is_empty()),
    (MAP, lambda state: state.clear()),
    (MAP, lambda state: list(state.items())),
    (MAP, lambda state: list(state.keys())),
    (MAP, lambda state: list(state.values())),
    *(
        (descriptor, access)
        for descriptor in (SUM, IMMUTABLE_SUM, MUTABLE_SUM)
        for access in (lambda state: state.get(), lambda state: state.add(1), lambda state: state.clear())
    ),
]


class KeyedContextContract(ContractBase):
    """Registration, the current key, and closed handles."""

    @pytest.mark.parametrize(("descriptor", "access"), ACCESSES)
    def test_access_without_a_current_key_raises(
        self, harness: BackendHarness, descriptor: Any, access: Callable[[Any], Any]
    ) -> None:
        backend = harness.open(self.create_state_backend())
        state = backend.get_state(descriptor)
        with pytest.raises(NoCurrentKeyError, match="process_element"):
            access(state)
        harness.at(backend, 1)
        access(state)
        backend.leave_key()
        with pytest.raises(NoCurrentKeyError):
            access(state)

    @pytest.mark.parametrize(("descriptor", "access"), ACCESSES)
    def test_access_after_the_backend_is_closed_raises(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: Any, access: Callable[[Any], Any]
    ) -> None:
        state = backend.get_state(descriptor)
        access(state)
        backend.close()
        backend.close()
        with pytest.raises(StateBackendClosedError):
            access(state)
        for call in (
            lambda: backend.get_state(descriptor),
            lambda: harness.snapshot(backend),
            lambda: list(backend.get_keys(descriptor.name)),
            lambda: list(backend.export_state(descriptor.name)),
        ):
            with pytest.raises(StateBackendClosedError):
                call()

    def test_a_key_enumeration_ends_with_an_error_when_the_backend_is_closed(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, range(100))
        harness.snapshot(backend)
        keys = backend.get_keys(VALUE.name)
        next(keys)
        backend.close()
        try:
            rest = sum(1 for _ in keys)
        except StateBackendError:
            return
        assert rest == 99

    def test_a_record_of_another_subtasks_key_group_is_rejected(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend(), subtask=1, parallelism=2)
        for descriptor in (VALUE, LIST, MAP, SUM, MUTABLE_SUM):
            state: Any = backend.get_state(descriptor)
            for key_group in (4, 10):
                backend.set_current_key(4, key_group)
                with pytest.raises(StateBackendError, match=f"key group {key_group} does not belong to this subtask"):
                    _write(state)
        assert harness.snapshot(backend).entries_written == 0

    def test_a_key_of_another_type_is_rejected_by_each_write(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        for descriptor in (VALUE, LIST, MAP, SUM, MUTABLE_SUM):
            state: Any = backend.get_state(descriptor)
            backend.set_current_key("one", 1)
            with pytest.raises(SerializationError):
                _write(state)
        assert harness.snapshot(backend).entries_written == 0

    def test_keys_are_compared_by_their_bytes(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend(), key_serializer=DoubleSerializer())
        state = backend.get_state(VALUE)
        for value, key in enumerate((float("nan"), float("nan"), 0.0, -0.0)):
            backend.set_current_key(key, 1)
            state.update(value)
        for _ in range(2):
            found = []
            for key in (float("nan"), 0.0, -0.0):
                backend.set_current_key(key, 1)
                found.append(state.value())
            assert found == [1, 2, 3]
            assert len(list(backend.get_keys(VALUE.name))) == 3
            harness.snapshot(backend)

    def test_text_keys_of_any_length_are_distinct(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend(), key_serializer=StringSerializer())
        keys = ["", "a", "aa", "ab", "a\0", "b", "é", "x" * 300, "x" * 301]
        state, entries = backend.get_state(VALUE), backend.get_state(MAP)
        for number, key in enumerate(keys):
            backend.set_current_key(key, 3)
            state.update(number)
            entries.put(key, number)
        restored = harness.open(
            self.create_state_backend(), harness.snapshot(backend).handle, key_serializer=StringSerializer()
        )
        for number, key in enumerate(keys):
            restored.set_current_key(key, 3)
            assert restored.get_state(VALUE).value() == number
            assert dict(restored.get_state(MAP).items()) == {key: number}
        assert sorted(restored.get_keys(VALUE.name)) == sorted(keys)

    def test_get_keys_returns_each_key_once(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, range(30))
        harness.snapshot(backend)
        fill(harness, backend, range(20, 40), 1)
        harness.at(backend, 5)
        for descriptor in (VALUE, LIST, MAP):
            backend.get_state(descriptor).clear()
        for descriptor in (VALUE, LIST, MAP):
            keys = list(backend.get_keys(descriptor.name))
            assert sorted(keys) == [key for key in range(40) if key != 5]
        assert list(backend.get_keys("no such state")) == []

    def test_a_state_is_registered_once(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(VALUE)
        assert backend.get_state(ValueStateDescriptor("value", int)) is state
        others: list[Any] = [ValueStateDescriptor("value", str), MapStateDescriptor("value", str, int)]
        for other in others:
            with pytest.raises(StateRegistrationError, match="registered twice"):
                backend.get_state(other)

    def test_equal_values_in_states_of_all_kinds_are_separate(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        fill(harness, backend, range(3))
        harness.at(backend, 1)
        backend.get_state(LIST).clear()
        assert content(harness, backend, VALUE) == {0: 0, 1: 1, 2: 2}
        assert content(harness, backend, LIST) == {0: [0], 2: [0]}
        assert content(harness, backend, MAP)[1] == {"key": 1, "offset-0": 0}


def _write(state: Any) -> None:
    for method, arguments in (("update", (1,)), ("add", (1,)), ("put", ("a", 1))):
        if hasattr(state, method) and not (method == "update" and hasattr(state, "add")):
            getattr(state, method)(*arguments)
