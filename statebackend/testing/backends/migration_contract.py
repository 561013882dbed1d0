"""The contract of a restore with another schema, and of entries that cannot be read.

The cases are those of Flink's ``StateBackendMigrationTestBase``, and records. A custom serializer may resolve as
compatible as is with bytes that it cannot read. Each kind of state then raises `StateRestoreError` with the name of the
state, at the latest when the entry is read. It never returns another value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any

import pytest

from snapshots.compatibility import CompatibilityKind, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot, TypeSerializerSnapshot
from statebackend.checkpoint.state_handles import KeyedStateHandle
from statebackend.state.errors import StateMigrationException, StateRestoreError
from statebackend.state.folding_states import AggregatingStateDescriptor, ReducingStateDescriptor
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER, KeyedStateBackend
from statebackend.state.list_state import ListStateDescriptor
from statebackend.state.map_state import MapStateDescriptor
from statebackend.state.progress import Operation, Progress
from statebackend.state.state_kind import StateDescriptor
from statebackend.state.state_meta import meta_of_descriptor
from statebackend.state.states import AggregateFunction
from statebackend.state.value_state import ValueStateDescriptor
from statebackend.testing.backends.evolving_records import (
    DelayV1,
    FlightV1,
    FlightV2,
    LegV1,
    LegV2,
    flight_v1,
    flight_v2,
    flight_v3,
    leg_v1,
    leg_v2,
    migrated_flight,
    migrated_leg,
)
from statebackend.testing.backends.evolving_serializers import CheckedLongSerializer, UncheckedLongSerializer
from statebackend.testing.backends.harness import BackendHarness, ContractBase, content, contents, fill, filled
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.strings import StringSerializer

FLIGHTS = [FlightV1(1, 10, "UA", DelayV1(3, "fog")), FlightV1(2, -5, "DL"), FlightV1(2**40, 0, "é", DelayV1(0, ""))]
LEGS = [LegV1("EWR", 1), LegV1("JFK", 2), LegV1("", -(2**40))]


def last(_: Any, value: Any) -> Any:
    """Return the last added value: a reduce function."""
    return value


class Last(AggregateFunction[Any, Any, Any]):
    """An aggregate function that keeps the last added value."""

    def create_accumulator(self) -> Any:
        return None

    def add(self, value: Any, accumulator: Any) -> Any:
        return value

    def get_result(self, accumulator: Any) -> Any:
        return accumulator


LAST = Last()


def _descriptors(flight: TypeSerializer[Any], leg: TypeSerializer[Any]) -> dict[str, StateDescriptor]:
    return {
        "flight": ValueStateDescriptor("flight", flight),
        "leg": ValueStateDescriptor("leg", leg),
        "flights": ListStateDescriptor("flights", flight),
        "legs": ListStateDescriptor("legs", leg),
        "flight map": MapStateDescriptor("flight map", str, flight),
        "leg map": MapStateDescriptor("leg map", str, leg),
        "last flight": ReducingStateDescriptor("last flight", last, flight),
        "last leg": ReducingStateDescriptor("last leg", last, leg),
        "flight total": AggregatingStateDescriptor("flight total", LAST, flight),
        "leg total": AggregatingStateDescriptor("leg total", LAST, leg),
    }


VALUE_OLD = _descriptors(flight_v1(), leg_v1())
VALUE_NEW = _descriptors(flight_v2(), leg_v2())


def _put_flight(state: Any, flight: FlightV1) -> None:
    state.put(flight.carrier, flight)
    state.put("none", None)


def _add_twice(state: Any, flight: FlightV1) -> None:
    state.add(FLIGHTS[0])
    state.add(flight)


WRITE_OLD: dict[str, Callable[[Any, Any], None]] = {
    "flight": lambda state, flight: state.update(flight),
    "leg": lambda state, leg: state.update(leg),
    "flights": lambda state, flight: state.add_all([flight, FLIGHTS[0]]),
    "legs": lambda state, leg: state.add(leg),
    "flight map": _put_flight,
    "leg map": lambda state, leg: state.put(leg.airport, leg),
    "last flight": _add_twice,
    "last leg": lambda state, leg: state.add(leg),
    "flight total": _add_twice,
    "leg total": lambda state, leg: state.add(leg),
}

# Values that only version 2 can write.
ADDED = {"flight": FlightV2(7, 0.5, None, 3), "leg": LegV2("LGA", 0.5, ["late"])}


class MigrationContract(ContractBase):
    """Restores with another schema."""

    def old_state(
        self, harness: BackendHarness, canonical: bool, names: Collection[str] = VALUE_OLD.keys()
    ) -> KeyedStateHandle:
        """Return states of version 1, written in two epochs. The second one overwrites and removes."""
        backend = harness.open(self.create_state_backend())
        for key in range(12):
            harness.at(backend, key)
            self._write_old(backend, key, names)
        harness.snapshot(backend)
        for key in range(3):
            harness.at(backend, key)
            self._write_old(backend, key + 1, names)
        harness.at(backend, 11)
        for name in names:
            backend.get_state(VALUE_OLD[name]).clear()
        return harness.export(backend) if canonical else harness.snapshot(backend).handle

    def _write_old(self, backend: KeyedStateBackend, number: int, names: Collection[str]) -> None:
        flight, leg = FLIGHTS[number % 3], LEGS[number % 3]
        for name in names:
            WRITE_OLD[name](backend.get_state(VALUE_OLD[name]), flight if "flight" in name else leg)

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize("name", list(VALUE_OLD))
    def test_a_record_is_renamed_widened_extended_and_shortened(
        self, harness: BackendHarness, name: str, canonical: bool
    ) -> None:
        other = "flight" if name != "flight" else "leg"
        handle = self.old_state(harness, canonical, (other, name))
        old = content(harness, self.reopen(harness, handle), VALUE_OLD[name])
        expected = {key: _migrated(value) for key, value in old.items()}
        assert len(expected) == 11
        reports: list[Progress] = []
        backend = self.reopen(harness, handle, progress=reports.append)
        assert content(harness, backend, VALUE_NEW[name]) == expected
        report = backend.restore_reports[0]
        assert report.state_name == name
        assert report.compatibility.kind is CompatibilityKind.AFTER_MIGRATION
        entries = {dict: lambda maps: sum(map(len, maps.values()))}.get(type(expected[0]), len)(expected)
        assert report.entries_migrated == entries or isinstance(expected[0], list)
        assert report.entries_migrated >= entries
        reported = [one for one in reports if one.operation is Operation.MIGRATION]
        assert {one.state_name for one in reported} == {name}
        assert [one.is_done for one in reported] == [False] * (len(reported) - 1) + [True]
        assert [one.entries for one in reported] == sorted(one.entries for one in reported)
        assert 0 == reported[0].entries < reported[-1].entries
        harness.at(backend, 3)
        state: Any = backend.get_state(VALUE_NEW[name])
        state.clear()
        del expected[3]
        again = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, again, VALUE_NEW[name]) == expected
        assert again.restore_reports[0].compatibility.kind is CompatibilityKind.AS_IS
        assert content(harness, again, VALUE_OLD[other])

    @pytest.mark.parametrize("canonical", [False, True])
    @pytest.mark.parametrize("name", list(VALUE_OLD))
    def test_a_snapshot_after_a_migration_has_migrated_and_new_entries(
        self, harness: BackendHarness, name: str, canonical: bool
    ) -> None:
        handle = self.old_state(harness, canonical, (name,))
        old = content(harness, self.reopen(harness, handle), VALUE_OLD[name])
        backend = self.reopen(harness, handle)
        state: Any = backend.get_state(VALUE_NEW[name])
        added = ADDED["flight" if "flight" in name else "leg"]
        expected: dict[Any, Any] = {}
        # Write without reading before, as a function does that only appends.
        for key, value in old.items():
            harness.at(backend, key)
            if isinstance(value, list):
                state.add(added)
                expected[key] = [*_migrated(value), added]
            elif isinstance(value, dict):
                state.put("added", added)
                expected[key] = {**_migrated(value), "added": added}
            else:
                state.update(added) if name in ("flight", "leg") else state.add(added)
                expected[key] = added
        assert content(harness, backend, VALUE_NEW[name]) == expected
        again = self.reopen(harness, harness.snapshot(backend).handle)
        assert content(harness, again, VALUE_NEW[name]) == expected
        written = again.current_meta().state(name)
        assert written is not None
        assert written.has_schema_of(meta_of_descriptor(VALUE_NEW[name], VOID_NAMESPACE_SERIALIZER))
        assert content(harness, self.reopen(harness, handle), VALUE_OLD[name]) == old

    def test_all_states_migrate_together_and_into_a_savepoint(self, harness: BackendHarness) -> None:
        handle = self.old_state(harness, canonical=False)
        old = self.reopen(harness, handle)
        expected = {
            name: {key: _migrated(value) for key, value in content(harness, old, descriptor).items()}
            for name, descriptor in VALUE_OLD.items()
        }
        assert {name: len(values) for name, values in expected.items()} == dict.fromkeys(VALUE_OLD, 11)
        backend = self.reopen(harness, handle)
        found = {name: content(harness, backend, descriptor) for name, descriptor in VALUE_NEW.items()}
        assert found == expected
        restored = self.reopen(harness, harness.export(backend))
        assert {name: content(harness, restored, descriptor) for name, descriptor in VALUE_NEW.items()} == expected

    @pytest.mark.parametrize("parallelism", [2, 3])
    def test_migration_and_rescaling_go_together(self, harness: BackendHarness, parallelism: int) -> None:
        handle = self.old_state(harness, canonical=False, names=("flights", "leg map"))
        old = content(harness, self.reopen(harness, handle), VALUE_OLD["flights"])
        found: dict[Any, Any] = {}
        for subtask in range(parallelism):
            backend = harness.open(self.create_state_backend(), handle, subtask=subtask, parallelism=parallelism)
            found.update(content(harness, backend, VALUE_NEW["flights"]))
        assert found == {key: _migrated(value) for key, value in old.items()}

    def test_unchanged_states_are_compatible_as_is(self, harness: BackendHarness, backend: KeyedStateBackend) -> None:
        fill(harness, backend, range(20))
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert contents(harness, restored) == filled(range(20), 0)
        assert [(report.compatibility.kind, report.entries_migrated) for report in restored.restore_reports] == [
            (CompatibilityKind.AS_IS, 0)
        ] * 3

    @pytest.mark.parametrize(
        ("old", "new"),
        [
            (VALUE_OLD["flight"], ValueStateDescriptor("flight", flight_v3())),
            (VALUE_OLD["flights"], ListStateDescriptor("flights", flight_v3())),
            (VALUE_OLD["flight map"], MapStateDescriptor("flight map", str, flight_v3())),
            (VALUE_OLD["leg map"], MapStateDescriptor("leg map", int, leg_v1())),
            (VALUE_OLD["flight"], ListStateDescriptor("flight", flight_v1())),
            (VALUE_OLD["flights"], MapStateDescriptor("flights", str, flight_v1())),
            (VALUE_OLD["leg"], ValueStateDescriptor("leg", StringSerializer())),
            (VALUE_OLD["legs"], ListStateDescriptor("legs", StringSerializer())),
            (VALUE_OLD["leg map"], MapStateDescriptor("leg map", str, StringSerializer())),
            (VALUE_OLD["last leg"], ReducingStateDescriptor("last leg", last, StringSerializer())),
            (VALUE_OLD["leg total"], AggregatingStateDescriptor("leg total", LAST, StringSerializer())),
            (VALUE_OLD["last flight"], ReducingStateDescriptor("last flight", last, flight_v3())),
            (VALUE_OLD["flight total"], AggregatingStateDescriptor("flight total", LAST, flight_v3())),
            (VALUE_OLD["last leg"], ValueStateDescriptor("last leg", leg_v1())),
            (VALUE_OLD["leg total"], ReducingStateDescriptor("leg total", last, leg_v1())),
        ],
        ids=[
            "value",
            "list",
            "map value",
            "map key",
            "value to list",
            "list to map",
            "another serializer",
            "another serializer of a list",
            "another serializer of a map",
            "another serializer of a reducing state",
            "another serializer of an aggregating state",
            "reduced value",
            "accumulator",
            "reducing to value",
            "aggregating to reducing",
        ],
    )
    def test_an_incompatible_descriptor_is_rejected_and_nothing_is_changed(
        self, harness: BackendHarness, old: StateDescriptor, new: StateDescriptor
    ) -> None:
        handle = self.old_state(harness, canonical=False, names=(old.name,))
        expected = content(harness, self.reopen(harness, handle), old)
        backend = self.reopen(harness, handle)
        for _ in range(2):
            with pytest.raises(StateMigrationException, match=f"state '{old.name}'"):
                backend.get_state(new)
        assert content(harness, backend, old) == expected
        untouched = self.reopen(harness, handle)
        with pytest.raises(StateMigrationException):
            untouched.get_state(new)
        assert content(harness, self.reopen(harness, harness.snapshot(untouched).handle), old) == expected

    def test_the_user_keys_of_a_map_cannot_migrate(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        state: Any = backend.get_state(MapStateDescriptor("by flight", flight_v1(), AttrsSerializer(LegV1)))
        state.put(FLIGHTS[0], LEGS[0])
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        with pytest.raises(StateMigrationException, match="keys of the map"):
            restored.get_state(MapStateDescriptor("by flight", flight_v2(), AttrsSerializer(LegV1)))

    def test_state_in_namespaces_migrates_under_every_namespace(self, harness: BackendHarness) -> None:
        namespaces = StringSerializer()
        backend = harness.open(self.create_state_backend())
        expected = {}
        for key in range(12):
            for namespace in ("", "a", "ab"):
                harness.at(backend, key)
                for name, descriptor in VALUE_OLD.items():
                    state: Any = backend.get_partitioned_state(namespace, namespaces, descriptor)
                    if name in ("last flight", "flights"):
                        state.add(FLIGHTS[key % 3])
                expected[key, namespace] = migrated_flight(FLIGHTS[key % 3])
        for handle in (harness.snapshot(backend).handle, harness.export(backend)):
            restored = self.reopen(harness, handle)
            for name in ("last flight", "flights"):
                again: Any = restored.get_or_create_keyed_state(namespaces, VALUE_NEW[name])
                found = {}
                for key, namespace in restored.get_keys_and_namespaces(name):
                    harness.at(restored, key)
                    again.set_current_namespace(namespace)
                    found[key, namespace] = again.get() if name == "last flight" else again.get()[0]
                assert found == expected

    @pytest.mark.parametrize("kind", [ValueStateDescriptor, ListStateDescriptor])
    def test_a_migration_that_fails_on_an_entry_changes_nothing(self, harness: BackendHarness, kind: Any) -> None:
        backend = harness.open(self.create_state_backend())
        old, new = kind("numbers", UncheckedLongSerializer()), kind("numbers", CheckedLongSerializer())
        state = backend.get_state(old)
        for key in range(20):
            harness.at(backend, key)
            number = key if key != 13 else -13
            state.update(number if kind is ValueStateDescriptor else [number])
        expected = content(harness, backend, old)
        handle = harness.snapshot(backend).handle
        restored = self.reopen(harness, handle)
        with pytest.raises(StateMigrationException, match="'numbers'"):
            restored.get_state(new)
        carried = harness.snapshot(restored).handle
        assert content(harness, restored, old) == expected
        assert content(harness, self.reopen(harness, carried), old) == expected

    def test_a_migration_that_could_fail_but_does_not(self, harness: BackendHarness) -> None:
        backend = harness.open(self.create_state_backend())
        harness.at(backend, 1)
        state: Any = backend.get_state(ValueStateDescriptor("numbers", UncheckedLongSerializer()))
        state.update(5)
        restored = self.reopen(harness, harness.snapshot(backend).handle)
        assert restored.get_state(ValueStateDescriptor("numbers", CheckedLongSerializer())).value() == 5
        assert restored.restore_reports[0].entries_migrated == 1


def _migrated(value: Any) -> Any:
    """Return the expected migration of a value, list or map of version 1."""
    if isinstance(value, dict):
        return {key: _migrated(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_migrated(item) for item in value]
    if value is None:
        return None
    return migrated_flight(value) if isinstance(value, FlightV1) else migrated_leg(value)


Box = list[int]


class BoxSerializer(TypeSerializer[Box]):
    """Writes a list of one number, followed by an unused byte.

    ``largest`` is the largest number that is read; ``is_short`` leaves the last byte unread.
    """

    is_immutable_type = False

    def __init__(self, largest: int | None = None, *, is_short: bool = False) -> None:
        self.largest = largest
        self.is_short = is_short

    def configuration(self) -> Hashable:
        return self.largest, self.is_short

    def create_instance(self) -> Box:
        return [0]

    def copy(self, value: Box) -> Box:
        return [*value]

    def serialize(self, value: Box, out: DataOutputView) -> None:
        out.write_int(value[0])
        out.write_unsigned_byte(0)

    def deserialize(self, source: DataInputView) -> Box:
        number = source.read_int()
        if self.largest is not None and number > self.largest:
            raise MalformedDataError(f"{number} does not fit the box")
        if not self.is_short:
            source.read_unsigned_byte()
        return [number]

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Box]:
        return BoxSerializerSnapshot()


@register_snapshot("statebackend.contract.BoxSerializerSnapshot")
class BoxSerializerSnapshot(SimpleTypeSerializerSnapshot[Box]):
    """Resolves each box serializer as compatible as is."""

    def restore_serializer(self) -> BoxSerializer:
        return BoxSerializer()

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Box]
    ) -> TypeSerializerSchemaCompatibility[Box]:
        return TypeSerializerSchemaCompatibility.compatible_as_is()


Described = Callable[[TypeSerializer[Box]], StateDescriptor]

KINDS: list[tuple[str, Described, Callable[[Any], object], Callable[[Any], object]]] = [
    ("value", lambda box: ValueStateDescriptor("boxes", box), lambda s: s.update([7]), lambda s: s.value()),
    ("list", lambda box: ListStateDescriptor("boxes", box), lambda s: s.add_all([[1], [7]]), lambda s: s.get()),
    ("map", lambda box: MapStateDescriptor("boxes", str, box), lambda s: s.put("b", [7]), lambda s: s.get("b")),
    (
        "entries of a map",
        lambda box: MapStateDescriptor("boxes", str, box),
        lambda s: s.put("b", [7]),
        lambda s: list(s.items()),
    ),
]


class UnreadableEntriesContract(ContractBase):
    """Entries that cannot be read although their serializer is compatible as is."""

    @pytest.mark.parametrize("hasty", [BoxSerializer(6), BoxSerializer(is_short=True)], ids=["rejects", "reads less"])
    @pytest.mark.parametrize(
        ("described", "write", "read"), [kind[1:] for kind in KINDS], ids=[kind[0] for kind in KINDS]
    )
    def test_an_entry_that_cannot_be_read_is_an_error_that_names_the_state(
        self,
        harness: BackendHarness,
        backend: KeyedStateBackend,
        described: Described,
        write: Callable[[Any], object],
        read: Callable[[Any], object],
        hasty: BoxSerializer,
    ) -> None:
        write(backend.get_state(described(BoxSerializer())))
        handle = harness.snapshot(backend).handle
        with pytest.raises(StateRestoreError, match=r"state 'boxes'.* cannot be read by"):
            read(self.reopen(harness, handle).get_state(described(hasty)))
        # The failure changed nothing.
        assert read(self.reopen(harness, handle).get_state(described(BoxSerializer(7))))
