"""The contract of serializers that are reconfigured over restored state, and of the keys of an operator, which are
reconfigured at most.
"""

from __future__ import annotations

from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind
from statebackend import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.api.errors import StateMigrationException
from testkit.backends.contract_base import LIST, MAP, VALUE, ContractBase
from testkit.backends.evolving_records import flight_v1, flight_v2, flight_v3
from testkit.backends.evolving_serializers import WordSerializer
from testkit.backends.harness import BackendHarness
from testkit.backends.migration_contract import FLIGHTS, LAST, last
from typeserializers.containers.lists import ListSerializer
from typeserializers.scalars.strings import StringSerializer

OLD_WORDS = WordSerializer("red", "green")
NEW_WORDS = WordSerializer("blue", "green", "red")
FEWER_WORDS = WordSerializer("red")


class ReconfigurationContract(ContractBase):
    """See the module."""

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
    def test_a_reconfigured_serializer_is_the_one_that_is_used(
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
                assert restored.restore_reports[0].verdict.kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER
            for key, word in written.items():
                harness.at(restored, key)
                assert read(state) == word
            harness.at(restored, 2)
            write(state, "blue")
            written[2] = "blue"
            handle = harness.snapshot(restored).handle

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
