"""Restoring operator state under another schema: cases 18 to 29 of Flink's StateBackendMigrationTestBase, and more."""

import attrs
import pytest

from snapshots.compatibility import CompatibilityKind
from snapshots.envelope import snapshot_from_bytes
from snapshots.errors import SerializationError
from statebackend.state.errors import StateMigrationException
from statebackend.state.operator_state_backend import (
    OperatorStateBackend,
    OperatorStateBackendParameters,
    check_operator_state,
)
from statebackend.state.operator_state_descriptors import (
    BroadcastStateDescriptor,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.state.operator_state_handles import decode_operator_state
from statebackend.state.operator_state_redistribution import operator_state_metas, restored_operator_state
from statebackend.state.progress import Operation
from statebackend.testing.backends.evolving_records import (
    FlightV1,
    FlightV3,
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
from statebackend.testing.backends.evolving_serializers import (
    CheckedLongSerializer,
    UncheckedLongSerializer,
    WordSerializer,
)
from typeserializers import ListSerializer, LongSerializer, StringSerializer, converted_by
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.records.record_serializer import AttrsSerializer

FLIGHTS = [FlightV1(1, 10, "UA"), FlightV1(2, -5, "DL"), FlightV1(2**40, 0, "é")]
LEGS = [LegV1("EWR", 1), LegV1("JFK", 2), LegV1("", -(2**40))]
OLD_WORDS = WordSerializer("red", "green")
NEW_WORDS = WordSerializer("blue", "green", "red")
FEWER_WORDS = WordSerializer("red")

LISTS = [SplitListStateDescriptor, UnionListStateDescriptor]


def written(operator, descriptor, content):
    """The handles of two subtasks; the first one has the content."""
    backends = operator.start(parallelism=2)
    for index, backend in enumerate(backends):
        state = backend.get_state(descriptor)
        if isinstance(content, dict):
            state.put_all(content)
        elif index == 0:
            state.add_all(content)
    return operator.snapshot(backends)


def schema_of(handle, name, role, *known):
    """The stored schema of a state's serializer, restored with known classes."""
    (part,) = decode_operator_state(handle).state(name).parts
    return restored_with(snapshot_from_bytes(part.envelopes[role]), *known)


@pytest.mark.parametrize("list_descriptor", LISTS)
@pytest.mark.parametrize(
    ("old", "new", "content", "migrated"),
    [(flight_v1, flight_v2, FLIGHTS, migrated_flight), (leg_v1, leg_v2, LEGS, migrated_leg)],
    ids=["immutable", "mutable"],
)
def test_a_list_is_migrated_in_order_and_the_next_snapshot_has_the_new_schema(
    operator, list_descriptor, old, new, content, migrated
):
    handles = written(operator, list_descriptor("records", old()), content)
    backends = operator.start(handles, 2)
    state = backends[0].get_state(list_descriptor("records", new()))
    expected = [migrated(record) for record in content]
    assert state.get() == expected
    report = backends[0].restore_reports[0]
    assert (report.state_name, report.compatibility.kind) == ("records", CompatibilityKind.AFTER_MIGRATION)
    assert report.entries_migrated == len(content)
    state.add(expected[0])
    again = operator.snapshot(backends)
    assert schema_of(again[0], "records", "element", new()) == new()
    assert schema_of(handles[0], "records", "element", old()) == old()
    restored = operator.start(again, 2)[0].get_state(list_descriptor("records", new()))
    assert restored.get() == [*expected, expected[0]]


@pytest.mark.parametrize("list_descriptor", LISTS)
def test_a_reconfigured_serializer_reads_writes_and_copies_a_list(operator, list_descriptor):
    handles = written(operator, list_descriptor("words", OLD_WORDS), ["green", "red", "red"])
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(list_descriptor("words", NEW_WORDS))
    assert state.get() == ["green", "red", "red"]
    state.add("blue")
    assert backend.get_state(list_descriptor("words", NEW_WORDS)) is state
    again = operator.snapshot([backend])
    assert schema_of(again[0], "words", "element").words == ("red", "green", "blue")
    (restored,) = operator.start(again, 1)
    assert restored.get_state(list_descriptor("words", NEW_WORDS)).get() == ["green", "red", "red", "blue"]


@pytest.mark.parametrize("list_descriptor", LISTS)
def test_mutable_elements_are_copied_by_the_reconfigured_serializer(operator, list_descriptor):
    handles = written(operator, list_descriptor("sentences", ListSerializer(OLD_WORDS)), [["green", "red"]])
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(list_descriptor("sentences", ListSerializer(NEW_WORDS)))
    given = ["blue", "red"]
    state.add(given)
    given.clear()
    state.get()[0].clear()
    assert state.get() == [["green", "red"], ["blue", "red"]]
    (restored,) = operator.restart([backend])
    state = restored.get_state(list_descriptor("sentences", ListSerializer(NEW_WORDS)))
    assert state.get() == [["green", "red"], ["blue", "red"]]


@pytest.mark.parametrize("list_descriptor", LISTS)
def test_an_incompatible_list_is_rejected_and_nothing_is_changed(operator, list_descriptor):
    handles = written(operator, list_descriptor("flights", flight_v1()), FLIGHTS)
    backends = operator.start(handles, 2)
    with pytest.raises(StateMigrationException, match=r"(?s)operator-under-test.*'flights'.*number"):
        backends[0].get_state(list_descriptor("flights", flight_v3()))
    assert backends[0].unregistered_names() == ("flights",)
    again = operator.snapshot(backends)
    assert decode_operator_state(again[0]) == decode_operator_state(handles[0])
    assert backends[0].get_state(list_descriptor("flights", flight_v1())).get() == FLIGHTS


def test_broadcast_values_are_migrated(operator):
    content = {"a": LEGS[0], "none": None, "b": LEGS[1]}
    handles = written(operator, BroadcastStateDescriptor("legs", str, leg_v1()), content)
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(BroadcastStateDescriptor("legs", str, leg_v2()))
    expected = [("a", migrated_leg(LEGS[0])), ("none", None), ("b", migrated_leg(LEGS[1]))]
    assert list(state.items()) == expected
    state.put("c", LegV2("LGA", 0.5))
    (restored,) = operator.restart([backend])
    state = restored.get_state(BroadcastStateDescriptor("legs", str, leg_v2()))
    assert list(state.items()) == [*expected, ("c", LegV2("LGA", 0.5))]


def test_broadcast_keys_are_migrated_which_keyed_state_rejects(operator):
    content = {flight: number for number, flight in enumerate(FLIGHTS)}
    handles = written(operator, BroadcastStateDescriptor("by flight", flight_v1(), int), content)
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(BroadcastStateDescriptor("by flight", flight_v2(), int))
    assert list(state.items()) == [(migrated_flight(flight), number) for number, flight in enumerate(FLIGHTS)]
    assert state.get(migrated_flight(FLIGHTS[2])) == 2
    state.remove(migrated_flight(FLIGHTS[0]))
    (restored,) = operator.restart([backend])
    state = restored.get_state(BroadcastStateDescriptor("by flight", flight_v2(), int))
    assert list(state.keys()) == [migrated_flight(flight) for flight in FLIGHTS[1:]]


def test_broadcast_keys_and_values_are_migrated_together(operator):
    content = {FLIGHTS[0]: LEGS[0], FLIGHTS[1]: None}
    handles = written(operator, BroadcastStateDescriptor("both", flight_v1(), leg_v1()), content)
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(BroadcastStateDescriptor("both", flight_v2(), leg_v2()))
    first, second = (migrated_flight(flight) for flight in content)
    assert dict(state.items()) == {first: migrated_leg(LEGS[0]), second: None}


@attrs.frozen
class RouteV1:
    origin: str
    carrier: str


@attrs.frozen
class RouteV2:
    origin: str


def test_broadcast_keys_that_become_equal_are_rejected_because_an_entry_would_be_lost(operator):
    old, new = AttrsSerializer(RouteV1, name="tests.Route"), AttrsSerializer(RouteV2, name="tests.Route")
    content = {RouteV1("EWR", "UA"): 1, RouteV1("EWR", "DL"): 2}
    handles = written(operator, BroadcastStateDescriptor("routes", old, int), content)
    (backend,) = operator.start(handles, 1)
    with pytest.raises(StateMigrationException, match=r"'routes', row 2.*EWR.*twice"):
        backend.get_state(BroadcastStateDescriptor("routes", new, int))
    assert dict(backend.get_state(BroadcastStateDescriptor("routes", old, int)).items()) == content


def test_the_reconfigured_broadcast_value_serializer_is_used(operator):
    handles = written(operator, BroadcastStateDescriptor("words", int, OLD_WORDS), {1: "red", 2: "green"})
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(BroadcastStateDescriptor("words", int, NEW_WORDS))
    assert dict(state.items()) == {1: "red", 2: "green"}
    state.put(3, "blue")
    again = operator.snapshot([backend])
    assert schema_of(again[0], "words", "value").words == ("red", "green", "blue")
    (restored,) = operator.start(again, 1)
    assert restored.get_state(BroadcastStateDescriptor("words", int, NEW_WORDS)).get(3) == "blue"


def test_the_reconfigured_broadcast_key_serializer_is_used(operator):
    handles = written(operator, BroadcastStateDescriptor("words", OLD_WORDS, int), {"red": 1, "green": 2})
    (backend,) = operator.start(handles, 1)
    state = backend.get_state(BroadcastStateDescriptor("words", NEW_WORDS, int))
    assert (state.get("red"), state.get("green"), state.get("blue")) == (1, 2, None)
    state.put("blue", 3)
    again = operator.snapshot([backend])
    assert schema_of(again[0], "words", "key").words == ("red", "green", "blue")
    (restored,) = operator.start(again, 1)
    assert dict(restored.get_state(BroadcastStateDescriptor("words", NEW_WORDS, int)).items()) == {
        "red": 1,
        "green": 2,
        "blue": 3,
    }


@pytest.mark.parametrize(
    ("new", "path"),
    [
        (BroadcastStateDescriptor("flights", str, flight_v3()), "<value>"),
        (BroadcastStateDescriptor("flights", LongSerializer(), flight_v1()), "<key>"),
        (BroadcastStateDescriptor("flights", LongSerializer(), flight_v2()), "<key>"),
    ],
    ids=["value", "key", "key, with a value that could be migrated"],
)
def test_an_incompatible_broadcast_state_is_rejected_and_nothing_is_changed(operator, new, path):
    old = BroadcastStateDescriptor("flights", str, flight_v1())
    handles = written(operator, old, {"first": FLIGHTS[0]})
    (backend,) = operator.start(handles, 1)
    with pytest.raises(StateMigrationException, match=path):
        backend.get_state(new)
    assert dict(backend.get_state(old).items()) == {"first": FLIGHTS[0]}


@pytest.mark.parametrize("fewer", [SplitListStateDescriptor, UnionListStateDescriptor])
def test_a_word_removed_is_incompatible(operator, fewer):
    handles = written(operator, fewer("words", OLD_WORDS), ["red"])
    with pytest.raises(StateMigrationException, match="a word was removed"):
        operator.start(handles, 1)[0].get_state(fewer("words", FEWER_WORDS))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (SplitListStateDescriptor("state", int), UnionListStateDescriptor("state", int)),
        (UnionListStateDescriptor("state", int), SplitListStateDescriptor("state", int)),
        (SplitListStateDescriptor("state", int), BroadcastStateDescriptor("state", int, int)),
    ],
)
def test_restored_state_is_rejected_under_another_mode(operator, old, new):
    handles = written(operator, old, [1, 2])
    (backend,) = operator.start(handles, 1)
    with pytest.raises(StateMigrationException, match=rf"(?s)a {old.mode.value} state.*a {new.mode.value} state"):
        backend.get_state(new)
    assert backend.get_state(old).get() == [1, 2]


def test_an_invalid_migrated_value_is_named_and_nothing_is_changed(operator):
    handles = written(operator, SplitListStateDescriptor("longs", UncheckedLongSerializer()), [1, -2])
    backends = operator.start(handles, 2)
    with pytest.raises(StateMigrationException, match=r"operator-under-test.*'longs', row 2.*store/state/.*unchanged"):
        backends[0].get_state(SplitListStateDescriptor("longs", CheckedLongSerializer()))
    restored = backends[0].get_state(SplitListStateDescriptor("longs", UncheckedLongSerializer()))
    assert restored.get() == [1, -2]
    with pytest.raises(SerializationError):
        restored.add("x")


def test_progress_is_reported_while_migrating(operator):
    handles = written(operator, SplitListStateDescriptor("flights", flight_v1()), FLIGHTS)
    reported = []
    (restored,) = restored_operator_state(handles, operator.file_system, 1)
    backend = OperatorStateBackend(
        OperatorStateBackendParameters(
            operator_uid="operator-under-test",
            file_system=operator.file_system,
            file_prefix="state/other",
            restore=restored,
            progress=reported.append,
        )
    )
    backend.get_state(SplitListStateDescriptor("flights", flight_v2()))
    assert {(one.operation, one.state_name) for one in reported} == {(Operation.MIGRATION, "flights")}
    assert [(one.entries, one.is_done) for one in reported] == [(3, False), (3, True)]


@pytest.mark.parametrize("list_descriptor", LISTS)
def test_a_state_that_only_some_subtasks_migrated_is_read_in_each_schema(operator, list_descriptor):
    backends = operator.start(parallelism=2)
    for index, backend in enumerate(backends):
        backend.get_state(list_descriptor("flights", flight_v1())).add(FLIGHTS[index])
    if list_descriptor is SplitListStateDescriptor:
        expected = [FLIGHTS[0], FLIGHTS[1]]
    else:
        expected = [FLIGHTS[0], FLIGHTS[1], FLIGHTS[1]]
    backends = operator.restart(backends)
    backends[0].get_state(list_descriptor("flights", flight_v2()))
    (backend,) = operator.restart(backends, 1)
    state = backend.get_state(list_descriptor("flights", flight_v2()))
    assert state.get() == [migrated_flight(flight) for flight in expected]
    assert backend.restore_reports[0].entries_migrated == 1
    again = decode_operator_state(operator.snapshot([backend])[0])
    assert len(again.state("flights").parts) == 1


def test_each_schema_of_a_state_has_its_own_file_in_a_savepoint(operator):
    backends = operator.start(parallelism=2)
    for index, backend in enumerate(backends):
        backend.get_state(SplitListStateDescriptor("flights", flight_v1())).add(FLIGHTS[index])
    backends = operator.restart(backends)
    backends[0].get_state(SplitListStateDescriptor("flights", flight_v2()))
    # A single subtask that registers nothing keeps the rows of both schemas.
    handles, source = operator.savepoint(operator.snapshot(operator.restart(backends, 1)))
    assert [file.path for file in decode_operator_state(handles[0]).files] == [
        "operator/operator=split/flights/part-00000.parquet",
        "operator/operator=split/flights/part-00000.1.parquet",
    ]
    (restored,) = operator.start(handles, source=source)
    state = restored.get_state(SplitListStateDescriptor("flights", flight_v2()))
    assert state.get() == [migrated_flight(flight) for flight in FLIGHTS[:2]]


def test_subtasks_with_different_reconfigurations_share_one_serializer_or_are_rejected(operator):
    def restored_from(first, second):
        backends = operator.start(parallelism=2)
        for backend, words in zip(backends, (first, second), strict=True):
            backend.get_state(SplitListStateDescriptor("words", WordSerializer(*words))).add(words[-1])
        return operator.restart(backends, 1)[0]

    served = restored_from(("red",), ("red", "green"))
    assert served.get_state(SplitListStateDescriptor("words", NEW_WORDS)).get() == ["red", "green"]
    rejected = restored_from(("red", "green"), ("green", "red"))
    with pytest.raises(StateMigrationException, match="no configuration"):
        rejected.get_state(SplitListStateDescriptor("words", NEW_WORDS))


def test_descriptors_can_be_checked_before_anything_changes(operator):
    handles = written(operator, SplitListStateDescriptor("flights", flight_v1()), FLIGHTS)
    (meta,) = operator_state_metas([decode_operator_state(handle) for handle in handles])
    found = [
        check_operator_state(meta.mode, meta.parts, SplitListStateDescriptor("flights", serializer)).kind
        for serializer in (flight_v1(), flight_v2(), flight_v3(), StringSerializer())
    ]
    assert found == [
        CompatibilityKind.AS_IS,
        CompatibilityKind.AFTER_MIGRATION,
        CompatibilityKind.INCOMPATIBLE,
        CompatibilityKind.INCOMPATIBLE,
    ]


@pytest.mark.parametrize(
    ("new", "record", "kind"),
    [
        (flight_v2(), migrated_flight(FLIGHTS[1]), CompatibilityKind.AFTER_MIGRATION),
        (flight_v3(), FlightV3("2", -5, "DL"), CompatibilityKind.INCOMPATIBLE),
    ],
    ids=["migrated", "incompatible"],
)
@pytest.mark.parametrize("is_old_first", [True, False])
def test_the_compatibility_is_the_worst_over_all_schemas_in_any_order(operator, new, record, kind, is_old_first):
    backends = operator.start(parallelism=2)
    contents = [(flight_v1(), FLIGHTS[0]), (new, record)]
    for backend, (serializer, content) in zip(backends, contents if is_old_first else contents[::-1], strict=True):
        backend.get_state(SplitListStateDescriptor("flights", serializer)).add(content)
    (meta,) = operator_state_metas([decode_operator_state(handle) for handle in operator.snapshot(backends)])
    assert check_operator_state(meta.mode, meta.parts, SplitListStateDescriptor("flights", new)).kind is kind


@attrs.frozen
class TextV1:
    text: str


def number_in(text):
    return int(text)


@attrs.frozen
class TextV2:
    text: int = attrs.field(metadata=converted_by(number_in))


def text_serializer(record_class):
    return AttrsSerializer(record_class, name="operator.Text")


TOLD = r"\.text: .*converter number_in raised ValueError.*the old value is 'many'"
BROADCAST = [
    BroadcastStateDescriptor("texts", StringSerializer(), text_serializer(record_class))
    for record_class in (TextV1, TextV2)
]
SPLIT, UNION = ([kind("texts", text_serializer(record_class)) for record_class in (TextV1, TextV2)] for kind in LISTS)
FAILING = [
    (SPLIT, [TextV1("1"), TextV1("many")], r"row 2: "),
    (UNION, [TextV1("1"), TextV1("many")], r"row 2: "),
    (BROADCAST, {"EWR": TextV1("1"), "JFK": TextV1("many")}, r"row 2: key 'JFK': "),
]


@pytest.mark.parametrize(("descriptors", "content", "where"), FAILING, ids=["split", "union", "broadcast"])
def test_a_migration_that_fails_names_operator_state_entry_path_and_value_and_changes_nothing(
    operator, descriptors, content, where
):
    old, new = descriptors
    handles = written(operator, old, content)
    backend = operator.start(handles, 2)[0]
    with pytest.raises(StateMigrationException, match=rf"operator-under-test.*'texts', {where}.*{TOLD}"):
        backend.get_state(new)
    assert backend.unregistered_names() == ("texts",)
    assert backend.restore_reports == []
    state = operator.start(operator.snapshot(operator.start(handles, 2)), 2)[0].get_state(old)
    assert (dict(state.items()) if isinstance(content, dict) else state.get()) == content
