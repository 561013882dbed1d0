"""Compatibility of a restored state and a descriptor, as in Flink's ``StateSerializerProviderTest``."""

import attrs
import pytest

from snapshots.compatibility import CompatibilityKind, TypeSerializerSchemaCompatibility
from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from statebackend import (
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    StateMigrationException,
    StateRegistrationError,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.state.heap.heap_state_backend import HeapStateBackend
from statebackend.state.keyed_state_backend import VOID_NAMESPACE_SERIALIZER
from statebackend.state.operator_state_descriptors import SplitListStateDescriptor
from statebackend.state.rocksdb.rocksdb_state_backend import RocksDBStateBackend
from statebackend.state.state_compatibility import SchemaReport, check_key_serializer, check_state
from statebackend.state.state_meta import meta_of_descriptor
from statebackend.testing.backends.evolving_records import FlightV1, flight_v1, flight_v2, flight_v3
from statebackend.testing.backends.evolving_serializers import WordSerializer
from statebackend.testing.backends.harness import BackendHarness, ManualClock
from typeserializers import ConvertingSerializer, LongSerializer, NullableSerializer, PojoSerializer, StringSerializer

AS_IS, RECONFIGURED = CompatibilityKind.AS_IS, CompatibilityKind.WITH_RECONFIGURED_SERIALIZER
AFTER_MIGRATION, INCOMPATIBLE = CompatibilityKind.AFTER_MIGRATION, CompatibilityKind.INCOMPATIBLE

OLD_WORDS = WordSerializer("red", "green")
NEW_WORDS = WordSerializer("blue", "green", "red")
SERVING_BOTH = WordSerializer("red", "green", "blue")

# An old serializer, a new one, the compatibility result on values, and the serializer that is in use afterwards.
CASES = [
    (flight_v1(), flight_v1(), AS_IS, flight_v1()),
    (OLD_WORDS, SERVING_BOTH, AS_IS, SERVING_BOTH),
    (flight_v1(), flight_v2(), AFTER_MIGRATION, flight_v2()),
    (OLD_WORDS, NEW_WORDS, RECONFIGURED, SERVING_BOTH),
    (flight_v1(), flight_v3(), INCOMPATIBLE, None),
    (flight_v1(), StringSerializer(), INCOMPATIBLE, None),
]
EVERY_CASE = pytest.mark.parametrize(("old", "new", "kind", "in_use"), CASES)


def descriptor_compatibility(old, new, namespace=VOID_NAMESPACE_SERIALIZER, new_namespace=VOID_NAMESPACE_SERIALIZER):
    return check_state(meta_of_descriptor(old, namespace), new, new_namespace)


@EVERY_CASE
def test_the_result_of_values_decides_the_serializer_in_use(old, new, kind, in_use):
    for make, role in (
        (lambda serializer: ValueStateDescriptor("state", serializer), "value"),
        (lambda serializer: ListStateDescriptor("state", serializer), "element"),
        (lambda serializer: MapStateDescriptor("state", LongSerializer(), serializer), "value"),
    ):
        compatibility = descriptor_compatibility(make(old), make(new))
        assert compatibility.kind is kind
        if in_use is not None:
            assert compatibility.serializers[role] == in_use
        assert compatibility.issues or kind not in (AFTER_MIGRATION, INCOMPATIBLE)


@EVERY_CASE
def test_address_serializers_may_be_reconfigured_but_not_migrated(old, new, kind, in_use):
    expected = INCOMPATIBLE if kind is AFTER_MIGRATION else kind
    value, queue = ValueStateDescriptor("state", int), PriorityQueueDescriptor
    compatibilities = {
        "key": check_key_serializer(old.snapshot_configuration(), new),
        "namespace": descriptor_compatibility(value, value, old, new),
        "user key": descriptor_compatibility(
            MapStateDescriptor("state", old, int), MapStateDescriptor("state", new, int)
        ),
        "element": descriptor_compatibility(queue("state", old), queue("state", new)),
    }
    for role, compatibility in compatibilities.items():
        assert compatibility.kind is expected
        if expected is INCOMPATIBLE:
            assert any(issue.rule.endswith("-migration") for issue in compatibility.issues), role
        else:
            assert in_use in compatibility.serializers.values()


def test_the_worst_part_decides():
    old = MapStateDescriptor("state", OLD_WORDS, flight_v1())
    kinds = {
        (words, flight): descriptor_compatibility(old, MapStateDescriptor("state", words, flight)).kind
        for words in (OLD_WORDS, NEW_WORDS, WordSerializer("red"))
        for flight in (flight_v1(), flight_v2(), flight_v3())
    }
    assert list(kinds.values()) == [
        *(AS_IS, AFTER_MIGRATION, INCOMPATIBLE),
        *(RECONFIGURED, AFTER_MIGRATION, INCOMPATIBLE),
        *(INCOMPATIBLE, INCOMPATIBLE, INCOMPATIBLE),
    ]
    # The serializer of a migrated part keeps the reconfigured serializer of the other part.
    migrated = descriptor_compatibility(old, MapStateDescriptor("state", NEW_WORDS, flight_v2()))
    assert set(migrated.serializers.values()) >= {SERVING_BOTH, flight_v2()}


def test_another_kind_of_state_has_no_serializers():
    compatibility = descriptor_compatibility(ValueStateDescriptor("state", int), ListStateDescriptor("state", int))
    assert (compatibility.kind, compatibility.serializers) == (INCOMPATIBLE, {})


EVERY_BACKEND = pytest.mark.parametrize(
    "state_backend", [HeapStateBackend(), RocksDBStateBackend()], ids=lambda backend: backend.name
)


@EVERY_BACKEND
def test_after_a_rejection_there_is_no_state_until_a_compatible_descriptor_is_registered(tmp_path, state_backend):
    harness = BackendHarness(str(tmp_path))
    old, new = ValueStateDescriptor("flight", flight_v1()), ValueStateDescriptor("flight", flight_v2())
    backend = harness.open(state_backend)
    harness.at(backend, 1)
    backend.get_state(old).update(FlightV1(1, 10, "UA"))
    handle = harness.snapshot(backend).handle
    backend = harness.open(state_backend, handle)
    rejected = ValueStateDescriptor("flight", flight_v3())
    for _ in range(2):
        # The message states only that the restored snapshot is unchanged. The rest of the job is unknown here.
        with pytest.raises(
            StateMigrationException, match="incompatible; the restored checkpoint or savepoint is unchanged"
        ):
            backend.get_state(rejected)
    assert backend.restore_reports == []
    restored = backend.current_meta().state("flight")
    assert restored.has_schema_of(meta_of_descriptor(old, VOID_NAMESPACE_SERIALIZER))
    state = backend.get_state(new)
    # The state is registered now, so neither the old descriptor nor the rejected one is checked again.
    for other in (old, rejected):
        with pytest.raises(StateRegistrationError, match="registered twice"):
            backend.get_state(other)
    assert backend.get_state(new) is state
    assert len(backend.restore_reports) == 1
    harness.close()


@EVERY_BACKEND
def test_a_converter_of_nullable_values_gets_the_nulls_of_a_map(tmp_path, state_backend):
    harness = BackendHarness(str(tmp_path))
    old_value = NullableSerializer(LongSerializer())
    backend = harness.open(state_backend)
    harness.at(backend, 1)
    backend.get_state(MapStateDescriptor("delays", StringSerializer(), old_value)).put_all({"UA": 10, "AA": None})
    handle = harness.snapshot(backend).handle
    backend = harness.open(state_backend, handle)
    converted = ConvertingSerializer(StringSerializer(), {old_value: lambda delay: "none" if delay is None else "some"})
    delays = backend.get_state(MapStateDescriptor("delays", StringSerializer(), converted))
    harness.at(backend, 1)
    assert dict(delays.items()) == {"UA": "some", "AA": "none"}
    harness.close()


CHECKED_SERIALIZERS = []


class CustomSerializer(LongSerializer):
    def snapshot_configuration(self):
        return CustomSerializerSnapshot()


@register_snapshot("tests.state_compatibilities.CustomSerializerSnapshot")
class CustomSerializerSnapshot(SimpleTypeSerializerSnapshot):
    serializer_class = CustomSerializer

    def resolve_schema_compatibility(self, new_serializer):
        CHECKED_SERIALIZERS.append(new_serializer)
        return TypeSerializerSchemaCompatibility.compatible_after_migration()


@EVERY_BACKEND
@pytest.mark.parametrize("has_time_to_live", [False, True])
def test_a_checked_state_is_migrated_without_another_check(tmp_path, state_backend, has_time_to_live):
    harness = BackendHarness(str(tmp_path))
    harness.clock = ManualClock(1_000)
    backend = harness.open(state_backend)
    harness.at(backend, 1)
    backend.get_state(ValueStateDescriptor("count", CustomSerializer())).update(7)
    handle = harness.snapshot(backend).handle
    backend = harness.open(state_backend, handle)
    CHECKED_SERIALIZERS.clear()
    ttl = StateTtlConfig(1_000) if has_time_to_live else None
    state = backend.get_state(ValueStateDescriptor("count", CustomSerializer(), ttl=ttl))
    harness.at(backend, 1)
    assert state.value() == 7
    assert [report.entries_migrated for report in backend.restore_reports] == [1]
    assert len(CHECKED_SERIALIZERS) == 1
    harness.close()


def compatibility_of(name, old, new):
    restored = meta_of_descriptor(ValueStateDescriptor(name, old), VOID_NAMESPACE_SERIALIZER)
    return check_state(restored, ValueStateDescriptor(name, new), VOID_NAMESPACE_SERIALIZER)


def test_no_accessor_of_a_report_hides_rejected_keys():
    key = check_key_serializer(LongSerializer().snapshot_configuration(), StringSerializer())
    states = compatibility_of("kept", int, int), compatibility_of("changed", int, str)
    report = SchemaReport("operator", key, states)
    assert not report.is_compatible
    assert [compatibility.kind for compatibility in report.compatibilities] == [CompatibilityKind.INCOMPATIBLE] * 2
    assert all("the keys of the operator" in str(compatibility) for compatibility in report.compatibilities)
    with pytest.raises(StateMigrationException) as rejected:
        report.raise_if_incompatible()
    message = str(rejected.value)
    assert message.count("the keys of the operator") == 1
    assert "'changed'" in message
    assert "'kept'" not in message


def test_a_report_of_states_has_only_their_issues_if_keys_are_unchanged():
    key = check_key_serializer(LongSerializer().snapshot_configuration(), LongSerializer())
    report = SchemaReport("operator", key, (compatibility_of("kept", int, int), compatibility_of("changed", int, str)))
    assert [compatibility.kind for compatibility in report.compatibilities] == [
        CompatibilityKind.AS_IS,
        CompatibilityKind.INCOMPATIBLE,
    ]
    assert not report.is_compatible
    assert SchemaReport("operator", key, (compatibility_of("kept", int, int),)).is_compatible


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor, SplitListStateDescriptor])
@pytest.mark.parametrize("name", ["\0", "a\0b", "", "x" * 201])
def test_an_unstorable_name_is_rejected_by_every_backend(descriptor, name):
    with pytest.raises(StateRegistrationError, match="name"):
        descriptor(name, int)
    assert descriptor("x" * 200, int).name == "x" * 200


def test_reconfigured_keys_hide_no_rejected_state():
    reordered = PojoSerializer(Inherited, registered_subclasses=[First, Second])
    key = check_key_serializer(
        PojoSerializer(Inherited, registered_subclasses=[Second]).snapshot_configuration(), reordered
    )
    assert (key.kind, len(key.issues)) == (RECONFIGURED, 1)
    rejected = compatibility_of("changed", int, str)
    assert len(rejected.issues) == 1
    report = SchemaReport("operator", key, (rejected,))
    assert not report.is_compatible
    with pytest.raises(StateMigrationException, match="'changed'"):
        report.raise_if_incompatible()


@attrs.define
class Inherited:
    number: int


@attrs.define
class First(Inherited):
    first: int


@attrs.define
class Second(Inherited):
    second: int
