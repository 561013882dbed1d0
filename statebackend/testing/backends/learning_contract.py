"""The contract of serializers that learn while they write: each snapshot of a backend stores what they have learned.

A serializer snapshot from the registration does not contain what was learned later. So each snapshot of a backend must
contain a new serializer snapshot that fits its content. This includes increments, exports, and tasks that write while
the state changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.keyed_state_backend import KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.ttl_config import StateTtlConfig
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import (
    PlaceV1,
    PlaceV2,
    PortV1,
    PortV2,
    TownV1,
    TownV2,
    TownV3,
    TownV4,
    places_v1,
    places_v2,
    places_v3,
    places_v4,
)
from statebackend.testing.backends.evolving_serializers import LearningWordSerializer
from statebackend.testing.backends.harness import BackendHarness, ContractBase, content
from statebackend.testing.backends.migration_contract import LAST, last
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import LongSerializer

Describe = Callable[[TypeSerializer[Any]], StateDescriptor]

_TTL = StateTtlConfig(3_600_000)

KINDS: dict[str, tuple[Describe, Callable[[Any, Any], object], Callable[[Any], Any]]] = {
    "value": (
        lambda serializer: ValueStateDescriptor("learned", serializer),
        lambda state, value: state.update(value),
        lambda value: value,
    ),
    "list": (
        lambda serializer: ListStateDescriptor("learned", serializer),
        lambda state, value: state.add(value),
        lambda value: [value],
    ),
    "map": (
        lambda serializer: MapStateDescriptor("learned", str, serializer),
        lambda state, value: state.put("only", value),
        lambda value: {"only": value},
    ),
    "reducing": (
        lambda serializer: ReducingStateDescriptor("learned", last, serializer),
        lambda state, value: state.add(value),
        lambda value: value,
    ),
    "aggregating": (
        lambda serializer: AggregatingStateDescriptor("learned", LAST, serializer),
        lambda state, value: state.add(value),
        lambda value: value,
    ),
    "value with time-to-live": (
        lambda serializer: ValueStateDescriptor("learned", serializer, ttl=_TTL),
        lambda state, value: state.update(value),
        lambda value: value,
    ),
    "list with time-to-live": (
        lambda serializer: ListStateDescriptor("learned", serializer, ttl=_TTL),
        lambda state, value: state.add(value),
        lambda value: [value],
    ),
}

TOWN, MIGRATED_TOWN = TownV1(1, area=3, extra=2), TownV2(1, extra=2, zone=0)
PORT, MIGRATED_PORT = PortV1(2, berths=5, depth=9), PortV2(2, anchorages=0, berths=5)

STORED = [False, True]


class LearningContract(ContractBase):
    """Serializers that learn while they write."""

    def stored(self, harness: BackendHarness, backend: KeyedStateBackend, canonical: bool) -> KeyedStateHandle:
        """Return a snapshot in the backend's format, or a canonical savepoint."""
        return harness.export(backend) if canonical else harness.snapshot(backend).handle

    def put(
        self, harness: BackendHarness, backend: KeyedStateBackend, kind: str, key: int, value: Any, serializer: Any
    ) -> None:
        """Write a value for a key."""
        describe, write, _ = KINDS[kind]
        harness.at(backend, key)
        write(backend.get_state(describe(serializer)), value)

    @pytest.mark.parametrize("canonical", STORED)
    @pytest.mark.parametrize("kind", list(KINDS))
    def test_a_subclass_that_was_learned_while_writing_is_migrated(
        self, harness: BackendHarness, kind: str, canonical: bool
    ) -> None:
        describe, _, shape = KINDS[kind]
        backend = harness.open(self.create_state_backend())
        places = places_v1()
        self.put(harness, backend, kind, 1, TOWN, places)
        self.put(harness, backend, kind, 2, PlaceV1(7), places)
        restored = self.reopen(harness, self.stored(harness, backend, canonical))
        assert content(harness, restored, describe(places_v2())) == {
            1: shape(MIGRATED_TOWN),
            2: shape(PlaceV2(7)),
        }
        assert restored.restore_reports[0].compatibility.kind is CompatibilityKind.AFTER_MIGRATION

    @pytest.mark.parametrize("canonical", STORED)
    def test_a_later_snapshot_has_the_types_learned_since(self, harness: BackendHarness, canonical: bool) -> None:
        backend = harness.open(self.create_state_backend())
        self.put(harness, backend, "value", 1, TOWN, places_v1())
        again = self.reopen(harness, harness.snapshot(backend).handle)
        places = places_v1()
        self.put(harness, again, "value", 1, TOWN, places)
        first = self.stored(harness, again, canonical)
        self.put(harness, again, "value", 2, PORT, places)
        second = self.stored(harness, again, canonical)
        descriptor = ValueStateDescriptor("learned", places_v2())
        assert content(harness, self.reopen(harness, first), descriptor) == {1: MIGRATED_TOWN}
        assert content(harness, self.reopen(harness, second), descriptor) == {1: MIGRATED_TOWN, 2: MIGRATED_PORT}

    @pytest.mark.parametrize("canonical", STORED)
    def test_a_learned_class_remains_over_runs_that_do_not_use_it(
        self, harness: BackendHarness, canonical: bool
    ) -> None:
        backend = harness.open(self.create_state_backend())
        self.put(harness, backend, "value", 1, TOWN, places_v1())
        carried = self.reopen(harness, self.stored(harness, backend, canonical))
        reader = self.reopen(harness, self.stored(harness, carried, canonical))
        reader.get_state(ValueStateDescriptor("learned", places_v1()))
        restored = self.reopen(harness, self.stored(harness, reader, canonical))
        assert content(harness, restored, ValueStateDescriptor("learned", places_v2())) == {1: MIGRATED_TOWN}

    def test_later_writes_do_not_change_the_serializers_of_a_prepared_snapshot(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend())
        places = places_v1()
        self.put(harness, backend, "value", 1, TOWN, places)
        task = harness.prepare(backend)
        self.put(harness, backend, "value", 1, PORT, places)
        self.put(harness, backend, "value", 2, PORT, places)
        descriptor = ValueStateDescriptor("learned", places_v2())
        assert content(harness, self.reopen(harness, task.run().handle), descriptor) == {1: MIGRATED_TOWN}
        handle = harness.snapshot(backend).handle
        assert content(harness, self.reopen(harness, handle), descriptor) == {1: MIGRATED_PORT, 2: MIGRATED_PORT}

    @pytest.mark.parametrize("canonical", STORED)
    def test_a_migration_passes_learned_types_to_the_next_one(self, harness: BackendHarness, canonical: bool) -> None:
        backend = harness.open(self.create_state_backend())
        self.put(harness, backend, "value", 1, TOWN, places_v1())
        second = self.reopen(harness, self.stored(harness, backend, canonical))
        third = ValueStateDescriptor("learned", places_v3())
        assert content(harness, second, third) == {1: TownV3(1, area=3, extra=2)}
        assert second.restore_reports[0].compatibility.kind is CompatibilityKind.AFTER_MIGRATION
        last_one = self.reopen(harness, self.stored(harness, second, canonical))
        fourth = ValueStateDescriptor("learned", places_v4())
        assert content(harness, last_one, fourth) == {1: TownV4(1, extra=2, zone=0)}

    @pytest.mark.parametrize("canonical", STORED)
    def test_snapshots_of_subtasks_with_different_learned_classes_merge(
        self, harness: BackendHarness, canonical: bool
    ) -> None:
        handles = []
        for subtask, value in enumerate((TOWN, PORT)):
            backend = harness.open(self.create_state_backend(), subtask=subtask, parallelism=2)
            self.put(harness, backend, "value", 5 * subtask, value, places_v1())
            handles.append(self.stored(harness, backend, canonical))
        expected = {0: MIGRATED_TOWN, 5: MIGRATED_PORT}
        together = harness.open(self.create_state_backend(), *handles)
        assert content(harness, together, ValueStateDescriptor("learned", places_v2())) == expected
        carried = self.stored(harness, harness.open(self.create_state_backend(), *handles), canonical)
        descriptor = ValueStateDescriptor("learned", places_v2())
        assert content(harness, self.reopen(harness, carried), descriptor) == expected
        unchanged = harness.open(self.create_state_backend(), *handles)
        assert content(harness, unchanged, ValueStateDescriptor("learned", places_v1())) == {0: TOWN, 5: PORT}
        restored = self.reopen(harness, self.stored(harness, unchanged, canonical))
        assert content(harness, restored, descriptor) == expected

    @pytest.mark.parametrize("canonical", STORED)
    @pytest.mark.parametrize("kind", list(KINDS))
    def test_numbers_assigned_while_writing_are_restored(
        self, harness: BackendHarness, kind: str, canonical: bool
    ) -> None:
        describe, _, shape = KINDS[kind]
        backend = harness.open(self.create_state_backend())
        words = LearningWordSerializer()
        self.put(harness, backend, kind, 1, "red", words)
        self.put(harness, backend, kind, 2, "green", words)
        first = self.stored(harness, backend, canonical)
        self.put(harness, backend, kind, 3, "blue", words)
        again = self.reopen(harness, self.stored(harness, backend, canonical))
        self.put(harness, again, kind, 4, "white", LearningWordSerializer())
        restored = self.reopen(harness, self.stored(harness, again, canonical))
        expected = {1: shape("red"), 2: shape("green"), 3: shape("blue"), 4: shape("white")}
        assert content(harness, restored, describe(LearningWordSerializer())) == expected
        before = content(harness, self.reopen(harness, first), describe(LearningWordSerializer()))
        assert before == {1: shape("red"), 2: shape("green")}

    def test_learned_types_of_namespaces_and_user_keys_are_restored(self, harness: BackendHarness) -> None:
        namespaces, words = LearningWordSerializer(), LearningWordSerializer()
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        for namespace in ("north", "south"):
            state: Any = backend.get_partitioned_state(
                namespace, namespaces, MapStateDescriptor("learned", words, LongSerializer())
            )
            state.put(namespace + " pole", len(namespace))
        for handle in (harness.snapshot(backend).handle, harness.export(backend)):
            restored = self.reopen(harness, handle)
            assert set(restored.get_keys_and_namespaces("learned")) == {(1, "north"), (1, "south")}
            again: Any = restored.get_or_create_keyed_state(
                LearningWordSerializer(), MapStateDescriptor("learned", LearningWordSerializer(), LongSerializer())
            )
            for namespace in ("south", "north"):
                again.set_current_namespace(namespace)
                assert dict(again.items()) == {namespace + " pole": 5}
