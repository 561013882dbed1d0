"""State of Flink SQL 2.3, written by one job with twelve queries over a table of 40 rows.

``SqlCase.java`` is the job. `table_row` computes its row for a number. The archive ``sql.tar.gz`` is a canonical
savepoint.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import pathlib
import struct
import tarfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
import pytest
from golden_savepoints import GOLDEN

import typeserializers as ts
from snapshots import DataInputView, snapshot_from_bytes, snapshot_to_bytes
from snapshots.errors import MalformedDataError, StateFormatError, UnknownSnapshotError
from statebackend import ValueStateDescriptor
from statebackend.savepoint.foreign import flink_tables
from statebackend.savepoint.foreign.flink_import import without_sources
from statebackend.savepoint.foreign.java_objects import java_list, read_java_object
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.savepoint import Savepoint
from statebackend.savepoint.value_forms import ColumnForms
from typeserializers import Instant, LocalDate, LocalDateTime, LocalTime, Row, RowKind, TimeWindow

NUMBERS = [*range(20), *range(50001, 50021)]
START = datetime.datetime(2024, 1, 1)


def local(moment: datetime.datetime, nanoseconds: int = 0) -> LocalDateTime:
    found = LocalDateTime.from_datetime(moment)
    return LocalDateTime.of(found.date, LocalTime(found.hour, found.minute, found.second, found.nano + nanoseconds))


def event_time(number: int) -> datetime.datetime:
    return START + datetime.timedelta(seconds=number % 1000)


def channel(number: int) -> str | None:
    return None if number % 10 == 9 else f"c{number % 3}"


def name(number: int) -> str | None:
    longer = "" if number % 2 == 0 else " with a longer text \u00e9\u2713"
    return None if number % 10 == 9 else f"name-{number % 7}{longer}"


def table_row(number: int) -> list[Any]:
    optional: list[Any] = [
        name(number),
        decimal.Decimal(number * 100 + 25).scaleb(-2),
        decimal.Decimal("12345678901234567890.12345") + number,
        LocalDate.from_date((START + datetime.timedelta(days=number % 400)).date()),
        LocalTime(number % 86400 // 3600, number // 60 % 60, number % 60),
        local(event_time(number)),
        local(START, number % 1000 * 1001 + 7),
        Instant(1_700_000_000 + number, 123_456_000),
        number % 2 == 0,
        number % 100 - 50,
        number % 1000 - 500,
        number / 4,
        number / 8,
        f"bytes{number}".encode(),
        [f"a{number}", None, f"a longer one {number}"],
        {f"k{number}": number},
        Row.named(x=number, y="y" if number % 2 == 0 else f"a long y of {number}"),
        channel(number),
    ]
    if number % 10 == 9:
        optional = [item if index == 5 else None for index, item in enumerate(optional)]
    return [number, *optional, number % 13]


@pytest.fixture(scope="module")
def sql(tmp_path_factory: pytest.TempPathFactory) -> Savepoint:
    place: pathlib.Path = tmp_path_factory.mktemp("sql")
    with tarfile.open(GOLDEN / "sql.tar.gz") as archive:
        archive.extractall(place, filter="data")
    return Savepoint.open(place)


def entries(sql: Savepoint, state_name: str, has: Callable[[Any], bool] = lambda value: True) -> list[Any]:
    """The entries of this state in all operators whose values satisfy ``has``."""
    every = [list(sql.read(uid, found)) for uid, found in sql.states if found == state_name]
    return [entry for one in every if one and has(one[0].value) for entry in one]


def by_partition(numbers: Iterable[int]) -> Mapping[int, list[int]]:
    found = collections.defaultdict(list)
    for number in numbers:
        found[number % 13].append(number)
    return found


def test_rows_of_every_type_are_read(sql: Savepoint) -> None:
    # The last row of each partition, by event time.
    last = {key: max(numbers, key=event_time) for key, numbers in by_partition(NUMBERS).items()}
    found = {entry.key: entry.value for entry in entries(sql, "deduplicate-state")}
    assert {key[0]: list(row) for key, row in found.items()} == {key: table_row(one) for key, one in last.items()}
    assert {row.kind for row in found.values()} <= {RowKind.INSERT, RowKind.UPDATE_AFTER}
    # The first row of each partition.
    first = {key: min(numbers, key=event_time) for key, numbers in by_partition(NUMBERS).items()}
    waiting = {entry.key[0]: list(entry.value) for entry in entries(sql, "waiting-to-emit-on-timer")}
    assert waiting == {key: table_row(one) for key, one in first.items()}


def test_aggregates_are_read(sql: Savepoint) -> None:
    names = {name(number) for number in NUMBERS}
    assert {entry.key[0]: list(entry.value) for entry in entries(sql, "accState", lambda row: len(row) == 6)} == {
        one: aggregates([number for number in NUMBERS if name(number) == one]) for one in names
    }


def aggregates(numbers: list[int]) -> list[Any]:
    """COUNT(*), SUM(cents), MAX(ts9), the sum and the count of AVG(amount), and MIN(day)."""
    rows = [table_row(number) for number in numbers]
    amounts = [row[2] for row in rows if row[2] is not None]
    days = [row[4] for row in rows if row[4] is not None]
    times = [row[7] for row in rows if row[7] is not None]
    total = sum(amounts, decimal.Decimal("0.00"))
    return [
        len(rows),
        sum(row[-1] for row in rows),
        max(times, default=None),
        total,
        len(amounts),
        min(days, default=None),
    ]


def test_distinct_values_are_read(sql: Savepoint) -> None:
    def wanted(of_row: Callable[[list[Any]], Any]) -> Mapping[Any, int]:
        rows = [table_row(number) for number in NUMBERS]
        return collections.Counter((row[9], row[10], of_row(row)) for row in rows if of_row(row) is not None)

    for state, column in (("distinctAcc_0", -1), ("distinctAcc_1", 1)):
        found = {(*entry.key, entry.user_key): entry.value for entry in entries(sql, state)}
        assert found == wanted(lambda row, column=column: row[column])


def test_windows_are_read_with_their_namespaces_and_timers(sql: Savepoint) -> None:
    sums: dict[Any, Any] = collections.defaultdict(decimal.Decimal)
    for number in NUMBERS:
        end = (number % 1000 // 10 + 1) * 10_000
        value = table_row(number)[3]
        sums[channel(number), 1_704_067_200_000 + end] += 0 if value is None else value
    wanted = {(*key, Row(value if value else None)) for key, value in sums.items()}
    found = entries(sql, "window-aggs", lambda row: isinstance(row[0], decimal.Decimal))
    assert {(entry.key[0], entry.namespace, entry.value) for entry in found} == wanted
    timers = [(entry.key[0], entry.value) for entry in entries(sql, "_timer_state/event_window-timers")]
    assert set(timers) >= {(key, end - 1) for key, end, _ in wanted}


def test_session_windows_are_read(sql: Savepoint) -> None:
    found = entries(sql, "session-window-mapping")
    assert found
    for entry in found:
        assert isinstance(entry.user_key, TimeWindow)
        times = [event_time(number) for number in NUMBERS if channel(number) == entry.key[0]]
        start = int(min(times).replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
        last = int(max(times).replace(tzinfo=datetime.timezone.utc).timestamp() * 1000)
        assert entry.user_key == TimeWindow(start, last + 60_000)


def test_records_of_joins_are_read(sql: Savepoint) -> None:
    rows = map(table_row, NUMBERS)
    wanted = collections.Counter(
        repr([row[1], row[2], row[4], row[5], row[14], row[15], row[16], row[17], row[-1]]) for row in rows
    )
    found = entries(sql, "right-records", lambda value: isinstance(value, int))
    assert {repr(list(entry.user_key)): entry.value for entry in found} == wanted
    cached = entries(sql, "IntervalJoinLeftCache")
    assert sorted(row[0] for entry in cached for row, _ in entry.value) == NUMBERS


def test_columns_keep_the_types(sql: Savepoint) -> None:
    [uid] = [uid for uid, found in sql.states if found == "deduplicate-state"]
    [state] = [
        one for meta in sql.restored.keyed_metas_of(uid) for one in meta.states if one.name == "deduplicate-state"
    ]
    serializer = state.role_snapshots["value"].restore_serializer()
    # These timestamps of Arrow have microseconds, and those of the seventh column have nanoseconds.
    rows = [Row(*[None if index == 7 else item for index, item in enumerate(table_row(one))]) for one in NUMBERS]
    column = ColumnForms().of(serializer).array(rows)
    assert [column.type.field(index).type for index in (2, 3, 4, 7, 15, 17)] == [
        pa.decimal128(10, 2),
        pa.decimal128(30, 5),
        pa.date32(),
        pa.timestamp("us"),
        pa.list_(pa.field("element", pa.string())),
        pa.struct({"x": pa.int32(), "y": pa.string()}),
    ]
    assert column.field(17).to_pylist() == [None if one[17] is None else one[17].as_dict() for one in rows]


def test_a_snapshot_is_written_as_it_was_read(sql: Savepoint) -> None:
    for uid in {uid for uid, _ in sql.states}:
        for meta in sql.restored.keyed_metas_of(uid):
            of_states = [snapshot for state in meta.states for snapshot in state.role_snapshots.values()]
            for snapshot in (meta.key_snapshot, *of_states):
                data = snapshot_to_bytes(snapshot)
                assert snapshot_to_bytes(snapshot_from_bytes(data)) == data
                assert snapshot_from_bytes(data).restore_serializer() == snapshot.restore_serializer()


def test_a_plan_converts_keys_and_rows(sql: Savepoint, tmp_path: pathlib.Path) -> None:
    source, _ = without_sources(sql.restored, ())
    converted = {"deduplicate-state", "session-window-mapping"}
    [last] = [uid for uid, found in sql.states if found == "deduplicate-state"]
    [sessions] = [uid for uid, found in sql.states if found == "session-window-mapping"]
    plan = Plan()
    for operator in source.metadata.operators:
        if not converted & set(sql.operators[operator.uid].states):
            plan = plan.remove_operator(operator.uid)
    plan = plan.rename_operator(last, "last").change_keys("last", lambda key: key[0], "bigint")
    plan = plan.change_values("last", "deduplicate-state", ValueStateDescriptor("last", str), lambda row: str(row[1]))
    plan = plan.keep_keys(sessions, lambda key: key[0] is not None)
    plan = plan.rename_operator(sessions, "sessions").change_keys("sessions", lambda key: key[0], "string")
    SavepointWriter.copy_of_restored(source, tmp_path / "ours").write(plan)
    ours = Savepoint.open(tmp_path / "ours")
    assert {entry.key: entry.value for entry in ours.read("last", "last")} == {
        entry.key[0]: str(entry.value[1]) for entry in entries(sql, "deduplicate-state")
    }
    for state in ("window-aggs", "_timer_state/event_window-timers"):
        # Rows of Flink SQL are copied unless the plan names them.
        assert {(entry.key, entry.namespace, entry.value) for entry in ours.read("sessions", state)} == {
            (entry.key[0], entry.namespace, entry.value)
            for entry in sql.read(sessions, state)
            if entry.key[0] is not None
        }


# Flink never writes these bytes.


def place(offset: int, size: int) -> bytes:
    return struct.pack("<II", size, offset)


def array(*places: bytes, rest: bytes = b"") -> bytes:
    return struct.pack("<i", len(places)) + bytes((len(places) + 31) // 32 * 4) + b"".join(places) + rest


def sized(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


TEXT = flink_tables.TableTextSerializer()
TEXTS = flink_tables.TableArraySerializer(TEXT)


def test_parts_of_an_array_are_not_larger_than_the_array() -> None:
    # Each element refers to the same array. Without a limit, the result would grow with each nesting.
    serializer: ts.TypeSerializer[Any] = TEXTS
    data = array(*[b"abcdefg\x87"] * 100)
    for _ in range(8):
        start = 20 + 100 * 8
        data = array(*[place(start, len(data))] * 100, rest=data)
        serializer = flink_tables.TableArraySerializer(serializer)
    with pytest.raises(MalformedDataError, match="does not fit"):
        serializer.from_bytes(sized(data))


@pytest.mark.parametrize(
    ("serializer", "data"),
    [
        (TEXTS, array(place(16, 9), rest=bytes(8))),
        (TEXTS, array(b"abcdefg\x88")),
        (TEXTS, struct.pack("<iI", 1 << 30, 0)),
        (TEXTS, struct.pack("<iI", -1, 0)),
        (TEXTS, b"\0\0"),
        (flink_tables.TableMapSerializer(TEXT, TEXT), struct.pack("<i", 100) + array()),
        (flink_tables.TableMapSerializer(TEXT, TEXT), b""),
        (
            flink_tables.TableMapSerializer(TEXT, TEXT),
            struct.pack("<i", 16) + array(b"a" + bytes(6) + b"\x81") + array(),
        ),
        (flink_tables.TableRowSerializer([TEXT]), bytes(15)),
        (flink_tables.TableRowSerializer([TEXT]), b"\x04" + bytes(15)),
        (flink_tables.TableRowSerializer([TEXT]), bytes(8) + b"\xff" + bytes(6) + b"\x81"),
    ],
)
def test_damaged_values_are_errors(serializer: ts.TypeSerializer[Any], data: bytes) -> None:
    with pytest.raises(StateFormatError):
        serializer.from_bytes(sized(data))


def test_every_cut_row_is_an_error(sql: Savepoint) -> None:
    serializer = flink_tables.TableRowSerializer([TEXT, flink_tables.TableTimestampSerializer(9), TEXTS])
    texts = array(b"a" + bytes(6) + b"\x81")
    data = bytes(8) + b"bc" + bytes(5) + b"\x82" + struct.pack("<II", 7, 32) + place(40, len(texts))
    data += struct.pack("<q", 86_400_000) + texts
    assert list(serializer.from_bytes(sized(data))) == ["bc", LocalDateTime(1970, 1, 2, nano=7), ["a"]]
    for size in range(len(data)):
        with pytest.raises(StateFormatError):
            serializer.from_bytes(sized(data[:size]))


def test_dates_outside_of_pythons_years_are_read() -> None:
    read = flink_tables.TableDateSerializer().from_bytes
    assert read((0).to_bytes(4, "big")) == LocalDate(1970, 1, 1)
    assert read((-719_529).to_bytes(4, "big", signed=True)) == LocalDate(-1, 12, 31)
    assert read((2_932_897).to_bytes(4, "big")) == LocalDate(10_000, 1, 1)


# Objects in Java's serialization format.


def utf(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


def described(class_name: str, flags: int = 2, *fields: bytes) -> bytes:
    head = b"\x72" + utf(class_name) + bytes(8) + bytes([flags])
    return head + len(fields).to_bytes(2, "big") + b"".join(fields) + b"\x78\x70"


START_OF_STREAM = bytes.fromhex("aced0005")


def read_java(data: bytes) -> Any:
    source = DataInputView(START_OF_STREAM + data)
    found = read_java_object(source)
    assert not source.remaining
    return found


def test_objects_refer_to_others() -> None:
    text_field = b"L" + utf("text") + b"\x74" + utf("Ljava/lang/String;")
    # The handles are, in order: the class, the type of the field, the object, the text.
    data = b"\x73" + described("Some", 2, text_field) + b"\x74" + utf("a")
    assert read_java(data).fields == {"text": "a"}
    data = b"\x75" + described("[LSome;") + (3).to_bytes(4, "big") + b"\x74" + utf("a") + b"\x71\x00\x7e\x00\x02\x70"
    assert read_java(data) == ["a", "a", None]
    long_text = b"\x7c" + (1).to_bytes(8, "big") + b"b"
    data = b"\x75" + described("[LSome;") + (2).to_bytes(4, "big") + long_text + b"\x71\x00\x7e\x00\x02"
    assert read_java(data) == ["b", "b"]


def test_lists_of_java_are_read() -> None:
    size = b"I" + utf("size")
    elements = b"\x77\x04\0\0\0\x02" + b"\x74" + utf("a") + b"\x70" + b"\x78"
    listed = b"\x73" + described("java.util.ArrayList", 3, size) + b"\0\0\0\x02" + elements
    assert java_list(read_java(listed)) == ["a", None]
    with pytest.raises(MalformedDataError, match="not a known list"):
        java_list("a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x73\x70",
        b"\x71\x00\x7e\x00\x00",
        b"\x71\xff\xff\xff\xff",
        b"\x79",
        b"\x7b",
        b"\x75" + described("[I") + b"\x7f\xff\xff\xff",
        b"\x75" + described("[?") + b"\0\0\0\x01",
        b"\x73" + described("Own", 4),
        b"\x73" + described("Some", 2, b"?" + utf("field")),
        b"\x7a\x7f\xff\xff\xff",
        b"\x73\x74" + utf("a"),
        (b"\x75" + described("[LSome;") + b"\0\0\0\x01") * 300 + b"\x70",
    ],
)
def test_damaged_objects_are_errors(data: bytes) -> None:
    with pytest.raises(StateFormatError):
        read_java(data)


def reference(number: int) -> bytes:
    return b"\x71" + (0x7E0000 + number).to_bytes(4, "big")


def repeated_lists(depth: int) -> bytes:
    """Nested lists. Each contains the previous list twice, so the outermost has 2 ** depth elements."""
    # The handles are, in order: the class, the outer array, the lists.
    first = b"\x75" + reference(0) + b"\0\0\0\x01\x70"
    others = [b"\x75" + reference(0) + b"\0\0\0\x02" + 2 * reference(number + 2) for number in range(depth - 1)]
    return b"\x75" + described("[Lx;") + depth.to_bytes(4, "big") + first + b"".join(others)


def repeated_types(depth: int) -> bytes:
    """Nested map types. The keys and the values of each have the previous map type."""
    parts = [b"L" + utf(name) + b"\x70" for name in ("keyType", "valueType")]
    of_map = described("org.apache.flink.table.types.logical.MapType", 2, *parts)
    # The handles are, in order: the class of maps, the maps, the class of the last type, and that type.
    starts = [b"\x73" + (reference(0) if number else of_map) for number in range(depth)]
    last = b"\x73" + described("org.apache.flink.table.types.logical.IntType")
    ends = [reference(depth + 2), *(reference(number) for number in range(depth, 1, -1))]
    return b"".join(starts) + last + b"".join(ends)


ARRAY_SNAPSHOT = utf("org.apache.flink.table.runtime.typeutils.ArrayDataSerializer$ArrayDataSerializerSnapshot")


def type_of_array(element: bytes) -> Any:
    data = ARRAY_SNAPSHOT + (3).to_bytes(4, "big") + START_OF_STREAM + element + START_OF_STREAM + b"\x70"
    return snapshot_from_bytes(data).restore_serializer()


def test_parts_that_objects_repeat_are_not_written_out() -> None:
    with pytest.raises(StateFormatError, match="a list is not a type"):
        type_of_array(repeated_lists(60))
    assert type_of_array(repeated_types(2)).type_name == "list[dict[dict[int, int], dict[int, int]]]"
    with pytest.raises(StateFormatError, match="too many parts"):
        type_of_array(repeated_types(60))


def test_superclasses_without_content_take_no_time() -> None:
    # The handles are, in order: the class and the array, then the description and the object of each class.
    classes = [
        b"\x76\x72" + utf(f"C{number}") + bytes(8) + b"\x02\0\0\x78" + (reference(2 * number) if number else b"\x70")
        for number in range(2000)
    ]
    outer = b"\x75" + described("[Lx;") + (2001).to_bytes(4, "big")
    found = read_java(outer + b"".join(classes) + b"\x73" + reference(2 * 2000))
    assert found[:2] == ["C0", "C1"]
    assert (found[-1].class_name, found[-1].fields) == ("C1999", {})


def test_nulls_of_an_array_are_read() -> None:
    wanted = [None if number % 3 == 1 else number for number in range(70)]
    nulls = sum(1 << number for number, value in enumerate(wanted) if value is None).to_bytes(12, "little")
    data = struct.pack("<i", 70) + nulls + b"".join(struct.pack("<i", value or 0) for value in wanted)
    assert flink_tables.TableArraySerializer(ts.IntSerializer()).from_bytes(sized(data)) == wanted


def test_a_list_without_its_element_is_an_error() -> None:
    with pytest.raises(MalformedDataError, match="not a known list"):
        java_list(read_java(b"\x73" + described("java.util.Collections$SingletonList")))


def test_a_type_that_is_unknown_is_named() -> None:
    name = "org.apache.flink.table.runtime.typeutils.ArrayDataSerializer$ArrayDataSerializerSnapshot"
    start = utf(name) + (3).to_bytes(4, "big")
    unknown = START_OF_STREAM + b"\x73" + described("org.apache.flink.table.types.logical.VariantType")
    with pytest.raises(UnknownSnapshotError, match=r"type VariantType of Flink SQL.* Cast them in the query"):
        snapshot_from_bytes(start + 2 * unknown)
    other = START_OF_STREAM + b"\x73" + described("java.lang.Runtime")
    with pytest.raises(StateFormatError, match=r"Runtime.* is not a type of Flink SQL"):
        snapshot_from_bytes(start + 2 * other)


def test_values_of_sql_are_not_written() -> None:
    with pytest.raises(Exception, match=r"only read\. Convert them with a plan"):
        TEXT.to_bytes("a")
