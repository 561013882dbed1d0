"""State that operators of Flink 2.3 store themselves, such as windows, joins and asynchronous functions.

``OpsCase.java`` is the job. It received `NUMBERS`, one per second of event time. The archive is ``operators.tar.gz``,
and its state is compressed.
"""

from __future__ import annotations

import collections
import pathlib
from typing import Annotated, Any

import attrs
import pytest
from golden_savepoints import written_by

import typeserializers as ts
from snapshots import snapshot_from_bytes, snapshot_to_bytes
from snapshots.errors import MalformedDataError, UnknownSubclassError, UnresolvableSerializerError
from statebackend import ListStateDescriptor
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.foreign.flink_records import (
    JoinEntrySerializer,
    StreamElementSerializer,
    StreamWatermark,
    TaggedSerializer,
)
from statebackend.savepoint.foreign.flink_rows import HeapGroups, RowMaker
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.canonical import CanonicalBatch
from statebackend.state.descriptors import USER_KEY_ROLE, VALUE_ROLE
from statebackend.state.errors import StateRestoreError
from statebackend.state.state_meta import STATE_KINDS, StateMeta
from typeserializers import GLOBAL_WINDOW, Left, Right, TimeWindow

NUMBERS = [*range(100), *range(50001, 50101)]
DAY_MS = 86_400_000


def time_of(number: int) -> int:
    return 1_700_000_000_000 + number % 50000 * 1000


def by_key(key_count: int) -> dict[str, list[int]]:
    found = collections.defaultdict(list)
    for number in NUMBERS:
        found[f"key-{number % key_count}"].append(number)
    return dict(found)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    options = ("forms=CANONICAL,async", "execution.checkpointing.snapshot-compression=true")
    return written_by("OpsCase.java", "operators.tar.gz", tmp_path_factory.mktemp("operators"), *options)


@pytest.fixture(scope="module")
def operators(place: pathlib.Path) -> Savepoint:
    return Savepoint.open(place)


def tumbling(days: int) -> TimeWindow:
    start = time_of(0) // (days * DAY_MS) * days * DAY_MS
    return TimeWindow(start, start + days * DAY_MS)


@pytest.mark.parametrize(("uid", "window"), [("evictor", tumbling(1000)), ("count", GLOBAL_WINDOW)])
def test_records_of_windows_with_an_evictor_have_timestamps(operators: Savepoint, uid: str, window: Any) -> None:
    found = {(entry.key, entry.namespace): sorted(entry.value) for entry in operators.read(uid, "window-contents")}
    assert found == {
        (key, window): sorted((number, time_of(number)) for number in numbers) for key, numbers in by_key(4).items()
    }


def test_a_plan_moves_windows_with_an_evictor(operators: Savepoint, tmp_path: pathlib.Path) -> None:
    source, _ = without_sources(operators.restored, ())
    plan = Plan()
    for operator in source.metadata.operators:
        if operator.uid != "evictor":
            plan = plan.remove_operator(operator.uid)
    # Convert to the elements that our windows with an evictor store.
    timed = ListStateDescriptor("window-contents", tuple[int, int | None])
    plan = plan.change_values("evictor", "window-contents", timed, list)
    SavepointWriter.copy_of_restored(source, tmp_path / "ours").write(plan)
    ours = Savepoint.open(tmp_path / "ours")
    for state in ("window-contents", "_timer_state/event_window-timers"):
        entries = [
            {(entry.key, entry.namespace): entry.value for entry in one.read("evictor", state)}
            for one in (operators, ours)
        ]
        assert entries[0] == entries[1]
        assert entries[0]


def test_records_of_an_asynchronous_function_are_read(operators: Savepoint) -> None:
    elements = [one.value for one in operators.read_operator_state("async", "_async_wait_operator_state_")]
    records = sorted(one for one in elements if not isinstance(one, StreamWatermark))
    assert records == sorted((number, time_of(number)) for number in NUMBERS if number % 10 == 0)
    assert all(one.value is None and one.timestamp_ms for one in elements if isinstance(one, StreamWatermark))


def test_records_of_joins_are_read(operators: Savepoint) -> None:
    left = {(entry.key, entry.user_key): sorted(entry.value) for entry in operators.read("interval", "LEFT_BUFFER")}
    wanted = collections.defaultdict(list)
    for key, numbers in by_key(4).items():
        for number in numbers:
            wanted[key, time_of(number)].append((number, False))
    assert left == {place: sorted(entries) for place, entries in wanted.items()}
    [uid] = [uid for uid, _ in operators.states if len(uid) == 32 and _ == "window-contents"]
    for entry in operators.read(uid, "window-contents"):
        numbers = sorted(number for number in NUMBERS if f"k{number % 3}" == entry.key)
        assert sorted(one.value for one in entry.value if isinstance(one, Left)) == numbers
        assert sorted(one.value for one in entry.value if isinstance(one, Right)) == numbers


def test_windows_of_every_kind_are_read(operators: Savepoint) -> None:
    totals = {key: sum(numbers) for key, numbers in by_key(4).items()}
    for uid, window in (("global", GLOBAL_WINDOW), ("continuous", tumbling(1000))):
        found = {(entry.key, entry.namespace): entry.value for entry in operators.read(uid, "window-contents")}
        assert found == {(key, window): total for key, total in totals.items()}
    assert {(entry.key, entry.value) for entry in operators.read("sum", "_op_state")} == set(totals.items())
    assert {(entry.key, entry.value) for entry in operators.read("global", "count")} == dict.fromkeys(
        totals, 50
    ).items()
    for key, numbers in by_key(4).items():
        session = TimeWindow(min(map(time_of, numbers)), max(map(time_of, numbers)) + 10 * DAY_MS)
        [[window, stored_in]] = next(iter(operators.read("session", "merging-window-set", key=key))).value
        assert window == session
        [entry] = operators.read("session", "window-contents", key=key)
        assert (entry.namespace, sorted(entry.value)) == (stored_in, sorted(numbers))
    sliding = list(operators.read("sliding", "window-contents"))
    assert [tuple(entry.value) for entry in sliding] == [(totals[entry.key], 50) for entry in sliding]
    assert len(sliding) == 8


def test_keyed_state_of_a_function_is_read(operators: Savepoint) -> None:
    of_key: dict[tuple[str, int], list[int]] = collections.defaultdict(list)
    for number in NUMBERS:
        of_key[f"key-{number % 10}", number % 3].append(number)
    read = operators.read
    assert {(entry.key, entry.user_key, entry.value) for entry in read("states", "ttlmap")} == {
        (key, number, f"v{number}") for key, numbers in of_key.items() for number in numbers
    }
    assert {entry.key: entry.value for entry in read("states", "red")} == {key: sum(one) for key, one in of_key.items()}
    assert {entry.key: tuple(entry.value) for entry in read("states", "agg")} == {
        key: (sum(one), len(one)) for key, one in of_key.items()
    }
    assert {(entry.key, entry.user_key): sorted(entry.value) for entry in read("states", "nested")} == {
        (key, f"k{key[1]}"): sorted(one) for key, one in of_key.items()
    }
    # The event-time timers have fired.
    assert not list(read("states", "_timer_state/event_user-timers"))
    assert {(entry.key, entry.value) for entry in read("states", "_timer_state/processing_user-timers")} == {
        (key, 9 * 10**12 + number) for key, numbers in of_key.items() for number in numbers
    }


@attrs.define
class Base:
    __pojo_class__ = "OpsCase$Base"

    b: Annotated[int, ts.IntSerializer()]


@attrs.define
class Sub(Base):
    __pojo_class__ = "OpsCase$Sub"

    s: str | None


def test_a_subclass_that_flink_did_not_describe_is_read_with_a_class(operators: Savepoint, place: pathlib.Path) -> None:
    with pytest.raises(StateRestoreError, match=r"the subclass 'OpsCase\$Sub' .*__pojo_class__ = \"OpsCase\$Sub\""):
        list(operators.read("states", "pojo"))
    for entry in Savepoint.open(place, known=[Base]).read("states", "pojo"):
        assert entry.value.base == (Sub(7, "sub") if entry.value.id % 3 == 0 else Base(7))


LONG, TEXT = ts.LongSerializer(), ts.StringSerializer()


def test_a_subclass_that_flink_did_not_describe_does_not_hide_other_states() -> None:
    void, pojo = ts.VoidNamespaceSerializer().snapshot_configuration(), ts.PojoSerializer(Base).snapshot_configuration()
    values = {"first": pojo, "second": LONG.snapshot_configuration(), "third": pojo}
    metas = [
        StateMeta.of_one_schema(name, STATE_KINDS["value"], void, {VALUE_ROLE: value}, ())
        for name, value in values.items()
    ]
    sub = ts.PojoSerializer(Base).to_bytes(Sub(7, "sub"))
    stored = [sub, LONG.to_bytes(5), sub]
    group = (3).to_bytes(4, "big") + b"".join(
        number.to_bytes(2, "big") + (1).to_bytes(4, "big") + b"\0" + LONG.to_bytes(1) + value
        for number, value in enumerate(stored)
    )

    def read(groups: HeapGroups, state_id: int) -> list[bytes]:
        batch = CanonicalBatch.empty()
        groups.reader(state_id)(group, 3, batch)
        return list(batch.values)

    unknown = HeapGroups(LONG.snapshot_configuration(), metas, is_compressed=False)
    assert read(unknown, 1) == [LONG.to_bytes(5)]
    for state_id in (0, 2):
        with pytest.raises(UnknownSubclassError, match=r"OpsCase\$Sub"):
            read(unknown, state_id)
    known = HeapGroups(LONG.snapshot_configuration(), metas, [ts.PojoSerializer(Base)], is_compressed=False)
    assert [read(known, state_id) for state_id in range(3)] == [[one] for one in stored]


def heap_state(number: int, *values: bytes) -> bytes:
    """A value state in a key group of the HashMap backend. Its keys are 1, 2, and so on."""
    entries = [b"\0" + LONG.to_bytes(key) + value for key, value in enumerate(values, 1)]
    return number.to_bytes(2, "big") + len(entries).to_bytes(4, "big") + b"".join(entries)


def test_unknown_values_that_look_like_states_do_not_hide_other_states() -> None:
    void, long = (one.snapshot_configuration() for one in (ts.VoidNamespaceSerializer(), LONG))
    unknown = ts.PojoSerializer(Base).snapshot_configuration()
    values = {"a": unknown, "b": long, "c": unknown, "d": long, "e": long}
    metas = [
        StateMeta.of_one_schema(name, STATE_KINDS["value"], void, {VALUE_ROLE: value}, ())
        for name, value in values.items()
    ]
    sub = ts.PojoSerializer(Base).to_bytes(Sub(7, "sub"))
    five, six, seven = map(LONG.to_bytes, (5, 6, 7))

    def group_of(value: bytes) -> bytes:
        states = [
            heap_state(0, value),
            heap_state(1, five),
            heap_state(3, six),
            heap_state(2, sub),
            heap_state(4, seven),
        ]
        return (3).to_bytes(4, "big") + b"".join(states)

    def groups_of(*order: int) -> HeapGroups:
        groups = HeapGroups(LONG.snapshot_configuration(), metas, is_compressed=False)
        groups.learn_order((4).to_bytes(4, "big") + b"".join(map(heap_state, order)))
        return groups

    def read(groups: HeapGroups, value: bytes, state_id: int) -> list[bytes]:
        batch = CanonicalBatch.empty()
        groups.reader(state_id)(group_of(value), 3, batch)
        return list(batch.values)

    other_order = sub + heap_state(3) + heap_state(1) + heap_state(2, sub)
    same_order = sub + heap_state(1) + heap_state(3) + heap_state(2, sub)
    groups = groups_of(0, 1, 3, 2, 4)
    assert [read(groups, other_order, state_id) for state_id in (1, 3, 4)] == [[five], [six], [seven]]
    # Without a readable group, the order is unknown.
    for groups, value in ((groups_of(0, 1, 3, 2, 4), same_order), (groups_of(), other_order)):
        assert read(groups, value, 4) == [seven]
        for state_id in (1, 3):
            with pytest.raises(MalformedDataError, match=r"hide where this state begins.*Take a canonical savepoint"):
                read(groups, value, state_id)


@pytest.mark.parametrize("is_padded", [False, True])
def test_a_nullable_value_of_a_map_has_one_flag_in_rows(is_padded: bool) -> None:
    value = ts.NullableSerializer(LONG, pad_null_value=is_padded)
    void, long = (one.snapshot_configuration() for one in (ts.VoidNamespaceSerializer(), LONG))
    roles = {USER_KEY_ROLE: long, VALUE_ROLE: value.snapshot_configuration()}
    meta = StateMeta.of_one_schema("map", STATE_KINDS["map"], void, roles, ())
    key, user_keys = LONG.to_bytes(1), [LONG.to_bytes(number) for number in range(3)]
    # Flink marks null in the value, or in the map with or without the value after it.
    stored = [b"\0" + value.to_bytes(5), b"\0" + value.to_bytes(None), b"\1"]
    maker = RowMaker(long, meta, 128)
    rows = maker.columns([b"\3" + key + b"\0" + one for one in user_keys], stored)
    assert rows.column("value").to_pylist() == [value.to_bytes(5), value.to_bytes(None), value.to_bytes(None)]
    assert rows.column("user_key").to_pylist() == user_keys
    entries = b"".join(map(bytes.__add__, user_keys, stored))
    group = (3).to_bytes(4, "big") + heap_state(0)[:2] + b"\0\0\0\1\0" + key + b"\0\0\0\3" + entries
    batch = CanonicalBatch.empty()
    HeapGroups(long, [meta], is_compressed=False).reader(0)(group, 3, batch)
    assert list(batch.values) == rows.column("value").to_pylist()


@pytest.mark.parametrize(
    ("serializer", "values", "column"),
    [
        (
            StreamElementSerializer(LONG),
            [(5, None), (6, 7), StreamWatermark(None, 8)],
            [(5, None), (6, 7), (None, 8)],
        ),
        (JoinEntrySerializer(TEXT), [("a", True), ("b", False)], [("a", True), ("b", False)]),
        (TaggedSerializer(LONG, TEXT), [Left(5), Right("a")], [(5, None), (None, "a")]),
    ],
)
def test_records_are_written_and_read(serializer: ts.TypeSerializer[Any], values: list[Any], column: list[Any]) -> None:
    assert [serializer.from_bytes(serializer.to_bytes(value)) for value in values] == values
    assert [type(serializer.from_bytes(serializer.to_bytes(value))) for value in values] == list(map(type, values))
    snapshot = snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))
    assert snapshot.restore_serializer() == serializer
    assert [tuple(one.values()) for one in ColumnForms().of(serializer).array(values).to_pylist()] == column


@pytest.mark.parametrize("serializer", [StreamElementSerializer(LONG), TaggedSerializer(LONG, TEXT)])
def test_an_unknown_tag_is_an_error(serializer: ts.TypeSerializer[Any]) -> None:
    with pytest.raises(MalformedDataError, match="unknown tag 3"):
        serializer.from_bytes(b"\x03" + bytes(20))


def test_operator_state_with_an_unknown_serializer_is_named(place: pathlib.Path, tmp_path: pathlib.Path) -> None:
    name = b"EnumSerializer$EnumSerializerSnapshot"
    metadata = (place / "_metadata").read_bytes()
    (tmp_path / "_metadata").write_bytes(metadata.replace(name, name[:-1] + b"X"))
    savepoint = Savepoint.open(tmp_path)
    with pytest.raises(UnresolvableSerializerError, match=r"^operator state 's': .*EnumSerializerSnapshoX"):
        list(savepoint.read_operator_state("opstate", "s"))
    assert len(list(savepoint.read_operator_state("opstate", "u"))) == 4
