"""The contract of reconfigured serializers with restored state, and of key serializers, which cannot be migrated."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind
from statebackend.state.errors import StateMigrationException
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import flight_v1, flight_v2, flight_v3
from statebackend.testing.backends.evolving_serializers import WordSerializer
from statebackend.testing.backends.harness import LIST, MAP, VALUE, BackendHarness, ContractBase
from statebackend.testing.backends.migration_contract import FLIGHTS, LAST, last
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.fixed_width import LongSerializer
from typeserializers.scalars.strings import StringSerializer

LONG = LongSerializer()
OLD_WORDS = WordSerializer("red", "green")
NEW_WORDS = WordSerializer("blue", "green", "red")
FEWER_WORDS = WordSerializer("red")


def _colours(**values: int) -> Any:
    make_enum: Any = enum.Enum
    return make_enum("Colour", values)


FIRST_COLOUR = _colours(RED=1, CRIMSON=2, BLUE=3)
SECOND_COLOUR = _colours(BLUE=3, RED=1, CRIMSON=1)
"""RED and CRIMSON are one constant, and the constants have other ordinals."""

PLACES_OF_KEYS: dict[str, tuple[Callable[[Any], TypeSerializer[Any]], Callable[[Any], Any]]] = {
    "enum": (EnumSerializer, lambda constant: constant),
    "tuple": (lambda colour: TupleSerializer([LONG, EnumSerializer(colour)]), lambda constant: (5, constant)),
    "frozenset": (lambda colour: FrozenSetSerializer(EnumSerializer(colour)), lambda constant: frozenset([constant])),
}
"""The serializer of a key that contains an enum, and a function that creates such a key from a constant."""


class ReconfigurationContract(ContractBase):
    """Reconfigured serializers, and serializers of keys."""

    @pytest.mark.parametrize(
        ("old", "new", "write", "read"),
        [
            (
                ValueStateDescriptor("words", OLD_WORDS),
                ValueStateDescriptor("words", NEW_WORDS),
                lambda state, word: state.update(word),
                lambda state: state.value(),
            ),
            (
                ValueStateDescriptor("words", ListSerializer(OLD_WORDS)),
                ValueStateDescriptor("words", ListSerializer(NEW_WORDS)),
                lambda state, word: state.update([word]),
                lambda state: state.value()[0],
            ),
            (
                ListStateDescriptor("words", OLD_WORDS),
                ListStateDescriptor("words", NEW_WORDS),
                lambda state, word: state.update([word]),
                lambda state: state.get()[0],
            ),
            (
                ListStateDescriptor("words", OLD_WORDS),
                ListStateDescriptor("words", NEW_WORDS),
                lambda state, word: state.add(word),
                lambda state: state.get()[-1],
            ),
            (
                MapStateDescriptor("words", int, OLD_WORDS),
                MapStateDescriptor("words", int, NEW_WORDS),
                lambda state, word: state.put(1, word),
                lambda state: state.get(1),
            ),
            (
                MapStateDescriptor("words", OLD_WORDS, int),
                MapStateDescriptor("words", NEW_WORDS, int),
                lambda state, word: (state.clear(), state.put(word, 1)),
                lambda state: next(state.keys()),
            ),
            (
                ReducingStateDescriptor("words", last, OLD_WORDS),
                ReducingStateDescriptor("words", last, NEW_WORDS),
                lambda state, word: state.add(word),
                lambda state: state.get(),
            ),
            (
                AggregatingStateDescriptor("words", LAST, OLD_WORDS),
                AggregatingStateDescriptor("words", LAST, NEW_WORDS),
                lambda state, word: state.add(word),
                lambda state: state.get(),
            ),
        ],
        ids=[
            "value",
            "mutable value",
            "list element",
            "appended element",
            "map value",
            "map key",
            "reduced value",
            "accumulator",
        ],
    )
    def test_restored_state_uses_the_reconfigured_serializer(
        self, harness: BackendHarness, old: Any, new: Any, write: Any, read: Any
    ) -> None:
        backend = harness.open(self.create_state_backend())
        written = {1: "red", 2: "green", 3: "red"}
        state = backend.get_state(old)
        for key, word in written.items():
            harness.at(backend, key)
            write(state, word)
        handle = harness.snapshot(backend).handle
        for epoch in range(3):
            restored = self.reopen(harness, handle)
            state = restored.get_state(new)
            if epoch == 0:
                assert restored.restore_reports[0].compatibility.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER
            for key, word in written.items():
                harness.at(restored, key)
                assert read(state) == word
            harness.at(restored, 2)
            write(state, "blue")
            written[2] = "blue"
            handle = harness.snapshot(restored).handle

    @pytest.mark.parametrize("place", PLACES_OF_KEYS)
    @pytest.mark.parametrize("names", [("RED", "BLUE"), ("CRIMSON", "BLUE")])
    def test_map_entries_with_distinct_new_keys_are_found_under_them(
        self, harness: BackendHarness, place: str, names: tuple[str, ...]
    ) -> None:
        serializer_of, key_of = PLACES_OF_KEYS[place]
        backend = harness.open(self.create_state_backend())
        state = backend.get_state(MapStateDescriptor("colours", serializer_of(FIRST_COLOUR), int))
        for key in (1, 2):
            harness.at(backend, key)
            state.put_all({key_of(FIRST_COLOUR[name]): key * 10 + number for number, name in enumerate(names)})
        descriptor = MapStateDescriptor("colours", serializer_of(SECOND_COLOUR), int)
        handle = harness.snapshot(backend).handle
        for _ in range(2):
            restored = self.reopen(harness, handle)
            state = restored.get_state(descriptor)
            for key in (1, 2):
                harness.at(restored, key)
                assert dict(state.items()) == {
                    key_of(SECOND_COLOUR[name]): key * 10 + number for number, name in enumerate(names)
                }
                assert [state.get(key_of(SECOND_COLOUR[name])) for name in names] == [key * 10, key * 10 + 1]
            handle = harness.snapshot(restored).handle
        state.remove(key_of(SECOND_COLOUR.RED))
        for handle in (harness.export(restored), harness.snapshot(restored).handle):
            restored = self.reopen(harness, handle)
            harness.at(restored, 2)
            assert dict(restored.get_state(descriptor).items()) == {key_of(SECOND_COLOUR.BLUE): 21}

    @pytest.mark.parametrize("place", PLACES_OF_KEYS)
    def test_map_entries_whose_keys_become_equal_stop_the_restore(self, harness: BackendHarness, place: str) -> None:
        serializer_of, key_of = PLACES_OF_KEYS[place]
        old = MapStateDescriptor("colours", serializer_of(FIRST_COLOUR), int)
        backend = harness.open(self.create_state_backend())
        state = backend.get_state(old)
        entries = {key_of(constant): constant.value for constant in FIRST_COLOUR}
        harness.at(backend, 7)
        state.put_all(entries)
        handle = harness.snapshot(backend).handle
        restored = self.reopen(harness, handle)
        with pytest.raises(StateMigrationException, match=r"key 7 .*Colour\.RED: 1.* and .*Colour\.CRIMSON: 2"):
            restored.get_state(MapStateDescriptor("colours", serializer_of(SECOND_COLOUR), int))
        state = restored.get_state(old)
        harness.at(restored, 7)
        assert dict(state.items()) == entries

    def test_namespaces_that_become_equal_stop_the_restore(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend())
        old, new = EnumSerializer(FIRST_COLOUR), EnumSerializer(SECOND_COLOUR)
        for key, constant in ((1, FIRST_COLOUR.CRIMSON), (1, FIRST_COLOUR.BLUE), (2, FIRST_COLOUR.RED)):
            harness.at(backend, key)
            backend.get_partitioned_state(constant, old, LIST).update([key, constant.value])
        handle = harness.snapshot(backend).handle
        restored = self.reopen(harness, handle)
        harness.at(restored, 1)
        assert restored.get_partitioned_state(SECOND_COLOUR.RED, new, LIST).get() == [1, 2]
        assert restored.get_partitioned_state(SECOND_COLOUR.BLUE, new, LIST).get() == [1, 3]
        harness.at(backend, 1)
        backend.get_partitioned_state(FIRST_COLOUR.RED, old, LIST).update([1])
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match=r"key 1 .*Colour\.RED: 1.* and .*Colour\.CRIMSON: 2"):
            restored.get_partitioned_state(SECOND_COLOUR.RED, new, LIST)

    @pytest.mark.parametrize(
        ("serializer_of", "value_of"),
        [
            (
                lambda colour: MapSerializer(EnumSerializer(colour), LONG),
                lambda constants: dict.fromkeys(constants, 1),
            ),
            (lambda colour: SetSerializer(EnumSerializer(colour)), set),
            (
                lambda colour: ListSerializer(FrozenSetSerializer(TupleSerializer([EnumSerializer(colour), LONG]))),
                lambda constants: [frozenset((constant, 1) for constant in constants)],
            ),
        ],
        ids=["dict", "set", "frozenset of tuples"],
    )
    def test_keys_inside_a_value_that_become_equal_stop_the_restore(
        self, harness: BackendHarness, serializer_of: Any, value_of: Any
    ) -> None:
        old, new = (ValueStateDescriptor("colours", serializer_of(colour)) for colour in (FIRST_COLOUR, SECOND_COLOUR))
        backend = harness.open(self.create_state_backend())
        state = backend.get_state(old)
        harness.at(backend, 7)
        state.update(value_of([FIRST_COLOUR.CRIMSON, FIRST_COLOUR.BLUE]))
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        state = restored.get_state(new)
        harness.at(restored, 7)
        assert state.value() == value_of([SECOND_COLOUR.RED, SECOND_COLOUR.BLUE])
        backend.get_state(old).update(value_of([FIRST_COLOUR.CRIMSON, FIRST_COLOUR.RED]))
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match=r"key 7 .*become equal") as rejected:
            restored.get_state(new)
        message = str(rejected.value).partition(" become equal")[0]
        assert "Colour.RED: 1" in message
        assert "Colour.CRIMSON: 2" in message

    def test_a_value_stays_merged_when_its_constants_become_two_again(self, harness: BackendHarness) -> None:
        first, second = (
            ListStateDescriptor("colours", EnumSerializer(colour)) for colour in (FIRST_COLOUR, SECOND_COLOUR)
        )
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 7)
        backend.get_state(first).update([FIRST_COLOUR.CRIMSON, FIRST_COLOUR.BLUE])
        merged = self.reopen(harness, harness.snapshot(backend).handle)
        merged.get_state(second)
        for handle in (harness.snapshot(merged).handle, harness.export(merged)):
            restored = self.reopen(harness, handle)
            harness.at(restored, 7)
            assert restored.get_state(first).get() == [FIRST_COLOUR.RED, FIRST_COLOUR.BLUE]

    def test_the_keys_of_an_operator_cannot_migrate_or_change(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend(), key_serializer=flight_v1())
        harness.at(backend, FLIGHTS[0])
        backend.get_state(VALUE).update(1)
        handle = harness.snapshot(backend).handle
        for serializer in (flight_v2(), flight_v3(), StringSerializer()):
            with pytest.raises(StateMigrationException):
                harness.open(self.create_state_backend(), handle, key_serializer=serializer)
        restored = self.reopen(harness, handle, key_serializer=flight_v1())
        harness.at(restored, FLIGHTS[0])
        assert restored.get_state(VALUE).value() == 1

    def test_the_key_serializer_of_an_operator_may_be_reconfigured(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend(), key_serializer=OLD_WORDS)
        for number, word in enumerate(("red", "green")):
            backend.set_current_key(word, number)
            for state, write in ((VALUE, "update"), (LIST, "add")):
                getattr(backend.get_state(state), write)(number)
            backend.get_state(MAP).put("number", number)
        handle = harness.snapshot(backend).handle
        with pytest.raises(StateMigrationException):
            harness.open(self.create_state_backend(), handle, key_serializer=FEWER_WORDS)
        for _ in range(2):
            restored = self.reopen(harness, handle, key_serializer=NEW_WORDS)
            for number, word in enumerate(("red", "green")):
                restored.set_current_key(word, number)
                assert restored.get_state(VALUE).value() == number
                assert restored.get_state(LIST).get() == [number]
                assert dict(restored.get_state(MAP).items()) == {"number": number}
            assert sorted(restored.get_keys("value")) == ["green", "red"]
            restored.set_current_key("blue", 2)
            assert restored.get_state(VALUE).value() is None
            handle = harness.snapshot(restored).handle
