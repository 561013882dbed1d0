"""The contract of map state."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

from snapshots.errors import SerializationError
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.map_state import MapStateDescriptor
from statebackend.testing.backends.evolving_records import LegV1, leg_v1
from statebackend.testing.backends.harness import MAP, BackendHarness, ContractBase, content
from typeserializers.scalars.strings import StringSerializer

NUMBERS: MapStateDescriptor[int, int] = MapStateDescriptor("numbers", int, int)
LEGS: MapStateDescriptor[str, LegV1] = MapStateDescriptor("legs", str, leg_v1())


class MapStateContract(ContractBase):
    """Map state on a backend."""

    def test_an_unset_map_is_empty(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(MAP)
        assert state.is_empty()
        assert (state.get("a"), state.contains("a")) == (None, False)
        assert (list(state.items()), list(state.keys()), list(state.values())) == ([], [], [])

    def test_entries_are_read_and_written_one_by_one(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(MAP)
        state.put("a", 1)
        state.put_all({"b": 2, "c": 3})
        state.put("a", 10)
        state.remove("c")
        state.remove("never there")
        for _ in range(2):
            assert (state.get("a"), state.get("b"), state.get("c")) == (10, 2, None)
            assert (state.contains("a"), state.contains("c"), state.is_empty()) == (True, False, False)
            assert dict(state.items()) == {"a": 10, "b": 2}
            assert sorted(state.keys()) == ["a", "b"]
            assert sorted(value or 0 for value in state.values()) == [2, 10]
            handle = harness.snapshot(backend).handle
        assert content(harness, self.reopen(harness, handle), MAP) == {1: {"a": 10, "b": 2}}

    def test_each_key_has_its_own_map(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(MAP)
        for key in range(20):
            harness.at(backend, key)
            assert state.is_empty()
            state.put(f"k{key % 3}", key)
        harness.at(backend, 4)
        state.clear()
        expected = {key: {f"k{key % 3}": key} for key in range(20) if key != 4}
        assert content(harness, backend, MAP) == expected
        assert content(harness, self.reopen(harness, harness.snapshot(backend).handle), MAP) == expected

    @pytest.mark.parametrize("descriptor", [MAP, MapStateDescriptor("texts", str, StringSerializer())])
    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_null_values_are_entries(
        self, harness: BackendHarness, backend: KeyedStateBackend, descriptor: Any, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(descriptor)
        state.put("null", None)
        if after_a_barrier:
            harness.snapshot(backend)
        assert (state.get("null"), state.contains("null"), state.is_empty()) == (None, True, False)
        assert list(state.items()) == [("null", None)]
        restored = self.reopen(harness, harness.snapshot(backend).handle).get_state(descriptor)
        assert list(restored.items()) == [("null", None)]

    def test_a_byte_value_is_not_null(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        descriptor: MapStateDescriptor[str, bytes] = MapStateDescriptor("bytes", str, bytes)
        backend.get_state(descriptor).put_all({"one": b"\x01", "empty": b""})
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert dict(restored.get_state(descriptor).items()) == {"one": b"\x01", "empty": b""}

    @pytest.mark.parametrize("descriptor", [MAP, NUMBERS])
    def test_null_keys_are_rejected(self, backend: KeyedStateBackend, descriptor: Any) -> None:
        state = backend.get_state(descriptor)
        with pytest.raises(SerializationError):
            state.put(None, 1)
        with pytest.raises(SerializationError):
            state.put_all({None: 1})
        assert state.is_empty()

    def test_one_entry_that_does_not_fit_rejects_all_entries(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state: Any = backend.get_state(NUMBERS)
        state.put(1, 1)
        for misfits in ({2: 2, 3: "three"}, {2: 2, "three": 3}, {2: 2, 2**63: 3}, {2: 2, 3: 2**63}):
            with pytest.raises(SerializationError, match="'numbers'"):
                state.put_all(misfits)
        for method, arguments in ((state.put, ("2", 2)), (state.get, ("2",)), (state.put, (2, 1.5))):
            with pytest.raises(SerializationError, match="'numbers'"):
                method(*arguments)
        assert dict(state.items()) == {1: 1}
        assert content(harness, self.reopen(harness, harness.snapshot(backend).handle), NUMBERS) == {1: {1: 1}}

    def test_the_error_for_an_invalid_value_names_its_map_key(self, backend: KeyedStateBackend) -> None:
        numbers: Any = backend.get_state(NUMBERS)
        legs: Any = backend.get_state(MapStateDescriptor("legs", str, list[int]))
        for method, arguments in ((numbers.put, (7, "seven")), (numbers.put_all, ({1: 1, 7: "seven"},))):
            with pytest.raises(SerializationError, match=r"'numbers'.* this value: \{7\}: 'seven' is not"):
                method(*arguments)
        with pytest.raises(SerializationError, match=r"'legs'.* this value: \{'KLM'\}\[1\]: 'two' is not"):
            legs.put("KLM", [1, "two"])
        assert numbers.is_empty()
        assert legs.is_empty()

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_entries_may_be_changed_while_iterating(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(NUMBERS)
        state.put_all({number: number for number in range(4096)})
        if after_a_barrier:
            harness.snapshot(backend)
        seen = []
        for number, value in state.items():
            assert value == number
            seen.append(number)
            if number % 2:
                state.remove(number)
            else:
                state.put(number, -number)
        assert sorted(seen) == list(range(4096))
        expected = {number: -number for number in range(0, 4096, 2)}
        assert dict(state.items()) == expected
        assert content(harness, self.reopen(harness, harness.snapshot(backend).handle), NUMBERS) == {1: expected}

    def test_an_entry_removed_while_iterating_is_skipped(self, backend: KeyedStateBackend) -> None:
        state = backend.get_state(NUMBERS)
        state.put_all({1: 1, 2: 2})
        iterator = state.items()
        first, _ = next(iterator)
        state.remove(3 - first)
        assert list(iterator) == []

    @pytest.mark.parametrize("stored", [3, 3000])
    def test_iteration_returns_buffered_and_stored_entries(
        self, harness: BackendHarness, backend: KeyedStateBackend, stored: int
    ) -> None:
        expected = {f"k{number:05d}": number for number in range(stored)}
        backend.get_state(MAP).put_all(expected)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        state = restored.get_state(MAP)
        # Before all stored entries, between them, in place of one, and after the last.
        changed = {"a": -1, "k00000+": -2, "k00001": -3, "k00001+": -4, "y": -5, "z": -6}
        for key, value in changed.items():
            state.put(key, value)
        state.remove("k00002")
        expected = {**expected, **changed}
        del expected["k00002"]
        met = list(state.items())
        assert dict(met) == expected
        assert len(met) == len(expected)
        assert sorted(state.keys()) == sorted(expected)

    @pytest.mark.parametrize("read", ["items", "keys", "values"])
    @pytest.mark.parametrize("started", [0, 3])
    @pytest.mark.parametrize("size", [20, 2000])
    def test_an_iteration_continues_after_a_barrier(
        self, harness: BackendHarness, backend: KeyedStateBackend, size: int, started: int, read: str
    ) -> None:
        # An iteration returns the entries at its creation, not at its first step. Barriers may come at any time.
        for barriers in itertools.product([False, True], repeat=3):
            state = backend.get_state(NUMBERS)
            state.put_all({number: number for number in range(size)})
            if barriers[0]:
                harness.snapshot(backend)
            iterator: Any = getattr(state, read)()
            seen = [next(iterator) for _ in range(started)]
            state.put(10, -10)
            state.remove(11)
            if barriers[1]:
                harness.snapshot(backend)
            state.put(12, -12)
            state.remove(13)
            if barriers[2]:
                harness.snapshot(backend)
            seen += iterator
            now = {number: number for number in range(size) if number not in (11, 13)} | {10: -10, 12: -12}
            expected: Any = {"items": [*now.items()], "keys": [*now], "values": [*now.values()]}[read]
            assert sorted(seen) == sorted(expected)

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    @pytest.mark.parametrize("size", [20, 2000])
    def test_an_iteration_started_before_a_clear_returns_what_was_put_again(
        self, harness: BackendHarness, backend: KeyedStateBackend, size: int, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(NUMBERS)
        state.put_all({number: number for number in range(size)})
        harness.snapshot(backend)
        iterator = state.items()
        state.clear()
        state.put(5, -5)
        state.put(size, size)
        if after_a_barrier:
            harness.snapshot(backend)
        assert list(iterator) == [(5, -5)]

    def test_iteration_stays_with_the_key_for_which_it_started(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(MAP)
        state.put("one", 1)
        harness.at(backend, 2)
        state.put("two", 2)
        harness.at(backend, 1)
        iterator = state.items()
        harness.at(backend, 2)
        assert list(iterator) == [("one", 1)]

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_is_empty_is_correct_after_every_put_and_remove(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(NUMBERS)
        for number in range(1024):
            state.put(number, number)
            assert not state.is_empty()
        if after_a_barrier:
            harness.snapshot(backend)
        for number in range(1024):
            assert not state.is_empty()
            state.remove(number)
        assert state.is_empty()
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert restored.get_state(NUMBERS).is_empty()
        assert list(restored.get_keys("numbers")) == []

    @pytest.mark.parametrize("after_a_barrier", [False, True])
    def test_a_cleared_map_starts_empty(
        self, harness: BackendHarness, backend: KeyedStateBackend, after_a_barrier: bool
    ) -> None:
        state = backend.get_state(MAP)
        state.put_all({"a": 1, "b": 2})
        if after_a_barrier:
            harness.snapshot(backend)
        state.clear()
        assert (state.is_empty(), state.get("a")) == (True, None)
        assert (list(state.items()), list(state.keys()), list(state.values())) == ([], [], [])
        state.put("b", 3)
        assert dict(state.items()) == {"b": 3}
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, restored, MAP) == {1: {"b": 3}}

    def test_user_keys_are_compared_by_their_bytes(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        descriptor: MapStateDescriptor[float, int] = MapStateDescriptor("doubles", float, int)
        state = backend.get_state(descriptor)
        state.put(math.nan, 1)
        state.put(float("nan"), 2)
        state.put(0.0, 3)
        state.put(-0.0, 4)
        for _ in range(2):
            assert (state.get(math.nan), state.get(0.0), state.get(-0.0)) == (2, 3, 4)
            assert len(list(state.items())) == 3
            handle = harness.snapshot(backend).handle
        restored = self.reopen(harness, handle).get_state(descriptor)
        assert (restored.get(math.nan), restored.get(0.0), restored.get(-0.0)) == (2, 3, 4)

    def test_entries_are_compared_by_their_content(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state, other = backend.get_state(LEGS), backend.get_state(MapStateDescriptor("more legs", str, leg_v1()))
        plain = {"a": LegV1("EWR", 1), "b": LegV1("JFK", 2)}
        state.put_all(plain)
        other.put_all(plain)
        for _ in range(2):
            by_key = [sorted(entries.items(), key=lambda entry: entry[0]) for entries in (state, other)]
            assert by_key[0] == by_key[1] == list(plain.items())
            harness.snapshot(backend)
        other.put("b", LegV1("JFK", 3))
        assert dict(state.items()) == plain != dict(other.items())

    def test_user_keys_may_be_unhashable(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        descriptor: MapStateDescriptor[list[int], int] = MapStateDescriptor("lists", list[int], int)
        state = backend.get_state(descriptor)
        state.put([1, 2], 12)
        harness.snapshot(backend)
        state.put([1], 1)
        state.remove([1, 2])
        assert list(state.items()) == [([1], 1)]
        assert list(self.reopen(harness, harness.snapshot(backend).handle).get_state(descriptor).keys()) == [[1]]

    def test_mutable_values_belong_to_the_caller(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        state = backend.get_state(LEGS)
        given = LegV1("EWR", 1)
        state.put("leg", given)
        state.put_all({"other": given})
        given.minutes = 2
        for _ in range(2):
            for returned in (state.get("leg"), state.get("other"), next(state.items())[1], next(state.values())):
                assert returned == LegV1("EWR", 1)
                assert returned is not None
                returned.minutes = 3
            harness.snapshot(backend)

    def test_a_put_writes_one_entry_for_a_map_of_any_size(
        self, harness: BackendHarness, backend: KeyedStateBackend
    ) -> None:
        state = backend.get_state(NUMBERS)
        state.put_all({number: number for number in range(20_000)})
        harness.snapshot(backend)
        state.put(5, -5)
        state.remove(6)
        second = harness.snapshot(backend)
        assert second.entries_written == 2
        restored = self.reopen(harness, second.handle).get_state(NUMBERS)
        assert (restored.get(5), restored.get(6), restored.get(7)) == (-5, None, 7)
        assert sum(1 for _ in restored.items()) == 19_999
