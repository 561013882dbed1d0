"""Invalid plans and entries are rejected with a reason, and nothing is written."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from state_contents import entries_of

from statebackend import (
    BroadcastStateDescriptor,
    KeyedStateBackendParameters,
    KeyGroupRange,
    ListStateDescriptor,
    MapStateDescriptor,
    PriorityQueueDescriptor,
    Savepoint,
    SplitListStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
    state_backend,
)
from statebackend.checkpoint.fs.file_system import CheckpointFileSystem
from statebackend.checkpoint.metadata import CheckpointKind, CheckpointMetadata
from statebackend.checkpoint.state_handles import OperatorState, SubtaskState
from statebackend.checkpoint.store.savepoint_directory import create_savepoint_directory, write_savepoint
from statebackend.savepoint.errors import EntryError, PlanError, RemainsError, RepeatedKeyError
from statebackend.savepoint.rewrite import Plan, SavepointWriter, require_absent
from statebackend.state.canonical_files import export_canonical_handle
from statebackend.state.errors import StateRegistrationError
from statebackend.state.key_groups import KeyHashError
from typeserializers.scalars.fixed_width import LongSerializer

pytestmark = pytest.mark.slow

NUMBER = ValueStateDescriptor("number", int)


def write(path: Path, plan: Plan, max_parallelism: int = 128) -> Path:
    SavepointWriter.new(path, max_parallelism=max_parallelism).write(plan)
    return path


def keyed(entries: Any, descriptor: Any = NUMBER, key: Any = "string", **options: Any) -> Plan:
    return Plan().add_operator("one", key).add_state("one", descriptor, entries, **options)


@pytest.mark.parametrize("key", [str, 7, ("string", int), None])
def test_key_types_with_other_names_than_those_of_spark_are_rejected(key: Any) -> None:
    for make in (lambda: Plan().add_operator("one", key), lambda: Plan().change_keys("one", str, key)):
        with pytest.raises(PlanError, match=r"key columns are Spark's names, as 'string' or .*; there are string, "):
            make()


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    return write(tmp_path / "stored", keyed([(f"key {number}", number) for number in range(50)]))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("a", 1), ("b", 2), ("a", 3)], "two entries have the same key 'a'"),
        ([("a", "text")], "key 'a': the value does not fit: .*'text'"),
        ([("a", 1 << 63)], "key 'a': the value does not fit"),
        ([("a", 1.0)], "key 'a': the value does not fit"),
        ([("a", None)], "None means that there is no entry"),
        ([(7, 1)], "the key does not fit"),
        ([(None, 1)], "the key does not fit"),
        ([(["unhashable"], 1)], "the key does not fit"),
        ([("a", 1, 2)], "is not an entry; an entry is a tuple"),
        (["ab"], "'ab' is not an entry"),
        ([7], "7 is not an entry"),
        ([("a", 1), None], "is not an entry"),
        ([{"key": "a", "value": 1}], "'key': 'a'.* is not an entry"),
        ([("a", 1), {"b": 2, "c": 3}], "'b': 2.* is not an entry"),
        ([{"a", "b"}], "is not an entry"),
        ([b"ab"], "b'ab' is not an entry"),
        ({"a": 1}, "is not an iterable of entries; an entry is a tuple"),
        ({("a", "b"): 1}, "is not an iterable of entries"),
        ("ab", "'ab' is not an iterable of entries"),
        (7, "7 is not an iterable of entries"),
        ([pa.record_batch({"key": ["a"], "value": [1]}), ("b", 2)], "is among batches of pyarrow"),
        (pa.table({"key": ["a"], "amount": [1]}), "value is missing, there are key, amount"),
        (pa.table({"key": ["a"], "value": [1.5]}), "the value does not fit"),
    ],
)
def test_invalid_entries_are_rejected(tmp_path: Path, entries: Any, message: str) -> None:
    with pytest.raises((EntryError, KeyHashError), match=message):
        write(tmp_path / "new", keyed(entries))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (datetime.datetime, pa.array([0, 1], pa.timestamp("ns"))),
        (datetime.datetime, pa.array([0, 1], pa.timestamp("ns", "UTC"))),
        (datetime.datetime, pa.array([0, 1 << 62], pa.timestamp("s", "UTC"))),
        (datetime.datetime, pa.array([0, 1 << 62], pa.timestamp("us"))),
        (datetime.time, pa.array([0, 1], pa.time64("ns"))),
        (datetime.timedelta, pa.array([0, 1], pa.duration("ns"))),
        (datetime.timedelta, pa.array([0, 1 << 62], pa.duration("s"))),
        (datetime.date, pa.array([0, 1 << 30], pa.date32())),
    ],
)
def test_values_of_a_table_without_python_type_are_rejected(tmp_path: Path, kind: type, column: pa.Array) -> None:
    table = pa.table({"key": ["a", "b"], "value": column})
    with pytest.raises(
        EntryError, match=r"key 'b': the value does not fit: a column of .*for which Python has no value"
    ):
        write(tmp_path / "new", keyed(table, ValueStateDescriptor("number", kind)))
    assert not (tmp_path / "new").exists()


def test_a_table_has_each_column_once(tmp_path: Path) -> None:
    table = pa.table([["a"], [1], [2]], names=["key", "value", "value"])
    with pytest.raises(EntryError, match="value is there twice"):
        write(tmp_path / "new", keyed(table))


@pytest.mark.parametrize("key", [None, ("a", None)])
def test_a_null_key_is_rejected_as_in_a_job(tmp_path: Path, key: Any) -> None:
    types = ("string", "string") if isinstance(key, tuple) else "string"
    column = pa.array([{"a": "a", "b": None}]) if isinstance(key, tuple) else pa.array([None], pa.string())
    path = write(tmp_path / "stored", keyed([("a", 1)]).add_timers("one", [("a", 1)], time="event"))
    for rejected in (
        lambda: write(tmp_path / "new", keyed([(key, 1)], key=types)),
        lambda: write(tmp_path / "new", keyed(pa.table({"key": column, "value": [1]}), key=types)),
        lambda: write(tmp_path / "new", Plan().add_operator("one", types).add_timers("one", [(key, 1)], time="event")),
        lambda: entries_of_copy(path, tmp_path / "new", Plan().change_keys("one", lambda _: key, types)),
        lambda: entries_of_copy(
            path, tmp_path / "new", Plan().remove_state("one", "number").change_keys("one", lambda _: key, types)
        ),
    ):
        with pytest.raises(EntryError, match=r"the key does not fit: .*None"):
            rejected()
    assert not (tmp_path / "new").exists()


def test_a_null_namespace_is_rejected(tmp_path: Path) -> None:
    timers = Plan().add_operator("one", "string").add_timers("one", [("a", None, 1)], time="event", namespace=str)
    for plan in (keyed([("a", None, 1)], namespace=str), timers):
        with pytest.raises(EntryError, match="key 'a': the namespace does not fit: None cannot be one"):
            write(tmp_path / "new", plan)


def test_entries_that_fail_midway_leave_nothing(tmp_path: Path) -> None:
    def entries() -> Any:
        yield from ((f"key {number}", number) for number in range(1000))
        raise OSError("the table has gone")

    with pytest.raises(OSError, match="the table has gone"):
        write(tmp_path / "new", keyed(entries()))
    assert not (tmp_path / "new").exists()


SPLIT = SplitListStateDescriptor("list", int)


@pytest.mark.parametrize(
    "plan_of",
    [
        lambda given: Plan().add_operator("one", "string").add_state("one", NUMBER, given),
        lambda given: Plan().add_operator("one", "string").add_timers("one", given, time="event"),
        lambda given: Plan().add_operator("one").add_operator_state("one", SPLIT, (number for _, number in given)),
    ],
)
def test_entries_of_an_iterator_are_not_written_twice(tmp_path: Path, plan_of: Any) -> None:
    plan = plan_of(iter([("a", 1), ("b", 2)]))
    write(tmp_path / "new", plan)
    with pytest.raises(PlanError, match="from an iterator that was read already"):
        write(tmp_path / "again", plan)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("reader", [False, True])
def test_a_partly_read_iterator_is_not_read_on_after_a_failure(tmp_path: Path, reader: bool) -> None:
    columns = {"key": ["a", "b", "c"], "value": [1, 2, 3]}
    table = pa.table(columns)
    entries = table.to_reader(1) if reader else zip(*columns.values(), strict=True)
    plan = keyed(entries, ValueStateDescriptor("number", str))
    for message in ("the value does not fit", "from an iterator that was read already"):
        with pytest.raises((EntryError, PlanError), match=message):
            write(tmp_path / "new", plan)


def test_an_iterator_cannot_be_used_for_two_states(tmp_path: Path) -> None:
    entries = iter([("a", 1)])
    plan = keyed(entries).add_state("one", ValueStateDescriptor("other", int), entries)
    with pytest.raises(PlanError, match="'number' come from an iterator that was read"):
        write(tmp_path / "new", plan)


def test_an_exhausted_generator_is_not_an_empty_state(tmp_path: Path) -> None:
    entries = (one for one in [("a", 1)])
    write(tmp_path / "new", keyed(entries))
    with pytest.raises(PlanError, match="was read already"):
        write(tmp_path / "again", keyed(entries))


def test_repeatable_entries_are_written_again(tmp_path: Path) -> None:
    first = write(tmp_path / "first", keyed([("a", 1)]))
    table = pa.table({"key": ["a"], "value": [1]})
    for number, entries in enumerate(([("a", 1)], table, Savepoint.open(first).read("one", "number"))):
        plan = keyed(entries)
        for name in ("new", "again"):
            assert entries_of(write(tmp_path / f"{name} {number}", plan), "one", "number") == {"a": 1}


def test_no_entries_are_an_empty_state(tmp_path: Path) -> None:
    path = write(tmp_path / "new", keyed(iter(())))
    assert entries_of(path, "one", "number") == {}
    assert entries_of_copy(path, tmp_path / "copy", Plan().change_max_parallelism(1)) == {}


def entries_of_copy(source: Path, target: Path, plan: Plan) -> Any:
    SavepointWriter.copy_of(source, target).write(plan)
    return entries_of(target, "one", "number")


def test_one_value_of_64_mb_passes_every_operation(tmp_path: Path) -> None:
    fat = "x" * (64 << 20)
    plan = keyed([("small", "y"), ("fat", fat), ("other", "z")], ValueStateDescriptor("number", str))
    path = write(tmp_path / "new", plan)
    assert entries_of_copy(path, tmp_path / "copy", Plan().change_max_parallelism(3))["fat"] == fat


@pytest.mark.parametrize("max_parallelism", [1, 32768])
def test_the_smallest_and_the_largest_number_of_key_groups(tmp_path: Path, max_parallelism: int) -> None:
    entries = [(f"key {number}", number) for number in range(100)]
    path = write(tmp_path / "new", keyed(entries), max_parallelism)
    assert entries_of(path, "one", "number") == dict(entries)


@pytest.mark.parametrize("max_parallelism", [0, -1, 32769, 1.5, "128"])
def test_invalid_numbers_of_key_groups(tmp_path: Path, max_parallelism: Any) -> None:
    with pytest.raises(PlanError, match="max_parallelism"):
        write(tmp_path / "new", keyed([]), max_parallelism)
    assert not (tmp_path / "new").exists()


def test_names_may_have_slashes_but_no_nul(tmp_path: Path) -> None:
    descriptor = ValueStateDescriptor("../a/b", int)
    plan = Plan().add_operator("/../x", "string").add_state("/../x", descriptor, [("a", 1)])
    assert entries_of(write(tmp_path / "new", plan), "/../x", "../a/b") == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new"]
    with pytest.raises(StateRegistrationError, match="control character U\\+0000"):
        ValueStateDescriptor("a\0b", int)
    with pytest.raises(PlanError, match="control character U\\+0000"):
        SavepointWriter.copy_of(tmp_path / "new", tmp_path / "copy").write(
            Plan().rename_state("/../x", "../a/b", "a\0b")
        )


@pytest.mark.parametrize("uid", ["", None, 7, "x" * 2000, "\ud800"])
def test_invalid_uids(tmp_path: Path, uid: Any) -> None:
    with pytest.raises(PlanError, match="uid"):
        write(tmp_path / "new", Plan().add_operator(uid, "string"))


@pytest.mark.parametrize("key", ["text", "decimal(3,1)", ("string", "float")])
def test_invalid_key_types(tmp_path: Path, key: Any) -> None:
    with pytest.raises(PlanError, match="is not a type of key columns"):
        write(tmp_path / "new", keyed([], key=key))


def test_keyed_state_needs_an_operator_with_a_key(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match="has no key"):
        write(tmp_path / "new", Plan().add_operator("one").add_state("one", NUMBER, []))


def raising(value: Any) -> Any:
    raise ZeroDivisionError("division by zero")


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan().keep_keys("one", raising), "key 'key .*': a function of the plan failed with ZeroDivisionError"),
        (Plan().keep_keys("one", lambda key: None), "returned None, which is neither True nor False"),
        (Plan().keep_entries("one", lambda entry: 1), "returned 1, which is neither"),
        (Plan().change_values("one", "number", NUMBER, raising), "failed with ZeroDivisionError"),
        (Plan().change_values("one", "number", NUMBER, lambda value: None), "None means that there is no entry"),
        (Plan().change_keys("one", raising, "int"), "failed with ZeroDivisionError"),
        (Plan().change_keys("one", lambda key: key, "int"), "the key does not fit"),
        (Plan().change_keys("one", lambda key: None, "string"), "the key does not fit"),
        (Plan().change_keys("one", lambda key: [key], "string"), "the key does not fit"),
        (Plan().change_keys("one", lambda key: "same", "string"), "two entries have the same key 'same'"),
        (Plan().change_keys("one", lambda key: "same", "string", merge={"other": max}), "no keyed state 'other'"),
        (
            Plan().change_keys("one", lambda key: "same", "string", merge={"number": lambda one, other: one / 0}),
            "state 'number', key 'same': a function of the plan failed with ZeroDivisionError",
        ),
        (
            Plan().change_keys("one", lambda key: "same", "string", merge={"number": lambda *_: None}),
            "key 'same': .*None",
        ),
        (Plan().split_operator("one", ["a", "b"], lambda key: "c"), "routed to 'c', which is not one of a, b"),
        (Plan().split_operator("one", ["a", "a"], lambda key: "a"), "operator 'a' already"),
        (Plan().merge_operators(["one", "two"], "all"), "no operator 'two'"),
        (Plan().rename_operator("one", "two").remove_operator("one"), "no operator 'one'; there are 'two'"),
        (Plan().add_state("one", NUMBER, []), "has a state 'number' already"),
        (Plan().keep_elements("one", "list", bool), "no operator state 'list'"),
        (Plan().change_parallelism(200), "parallelism is 200"),
    ],
)
def test_plans_that_cannot_be_executed(stored: Path, tmp_path: Path, plan: Plan, message: str) -> None:
    with pytest.raises((PlanError, EntryError), match=message):
        SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("directory", ["nowhere", "file", 7, "\0"])
def test_an_unusable_scratch_directory_is_reported(stored: Path, tmp_path: Path, directory: Any) -> None:
    (tmp_path / "file").touch()
    scratch = str(tmp_path / directory) if isinstance(directory, str) else directory
    for writer in (
        SavepointWriter.new(tmp_path / "new", max_parallelism=8, scratch_directory=scratch),
        SavepointWriter.copy_of(stored, tmp_path / "new", scratch_directory=scratch),
    ):
        with pytest.raises(PlanError, match=r"no scratch directory can be created in .*Pass scratch_directory"):
            writer.write(Plan())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("plan", [None, lambda savepoint: Plan(), []])
def test_other_plans_are_rejected(stored: Path, tmp_path: Path, plan: Any) -> None:
    with pytest.raises(PlanError, match="pass a Plan, not"):
        SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)


def test_given_entries_are_not_changed_again(stored: Path, tmp_path: Path) -> None:
    more = BroadcastStateDescriptor("more", str, int)
    for plan in (
        Plan().add_state("one", ValueStateDescriptor("more", int), [("a", 1)]).keep_keys("one", bool),
        Plan().add_operator_state("one", more, {"a": 1}).keep_elements("one", "more", bool),
    ):
        with pytest.raises(PlanError, match="the entries of 'more' come from the plan itself"):
            SavepointWriter.copy_of(stored, tmp_path / "copy").write(plan)


def test_invalid_operator_state(tmp_path: Path) -> None:
    elements = SplitListStateDescriptor("list", int)
    for given, message in (([1, None], r"\[1\]: None cannot be an element"), (["a"], "'a'")):
        with pytest.raises(EntryError, match=message):
            write(tmp_path / "new", Plan().add_operator("one").add_operator_state("one", elements, given))
    rules = BroadcastStateDescriptor("rules", str, int)
    with pytest.raises(EntryError, match="must be a mapping"):
        write(tmp_path / "new", Plan().add_operator("one").add_operator_state("one", rules, [("a", 1)]))


def test_lists_and_maps_reject_what_they_reject_in_a_job(tmp_path: Path) -> None:
    numbers, by_name = ListStateDescriptor("numbers", int), MapStateDescriptor("by name", str, int | None)
    for plan, message in (
        (keyed([("a", 7)], numbers), "7 is not a list"),
        (keyed([("a", [1, None])], numbers), "None cannot be an element"),
        (keyed([("a", None, 1)], by_name), "the user key does not fit"),
        (keyed([("a", "x", 1), ("a", "x", 2)], by_name), "same key 'a', user key 'x'"),
    ):
        with pytest.raises(EntryError, match=message):
            write(tmp_path / "new", plan)
    path = write(tmp_path / "new", keyed([("a", "x", None), ("a", "y", 2)], by_name))
    assert entries_of(path, "one", "by name") == {("a", "x"): None, ("a", "y"): 2}


def test_two_entries_of_a_key_are_merged_in_order(tmp_path: Path) -> None:
    texts = ValueStateDescriptor("number", str)
    path = write(tmp_path / "new", keyed([("a", "1"), ("b", "2"), ("a", "3"), ("a", "4")], texts, merge=str.__add__))
    assert entries_of(path, "one", "number") == {"a": "134", "b": "2"}
    with pytest.raises(RepeatedKeyError):
        write(tmp_path / "other", keyed([("a", "1"), ("a", "1")], texts))


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("string", ["", "a", "ä" * 200, "\ud7ff😀"]),
        ("bigint", [-(1 << 63), -1, 0, (1 << 63) - 1]),
        ("int", [-(1 << 31), 0, (1 << 31) - 1]),
        ("smallint", [-(1 << 15), 7]),
        ("tinyint", [-128, 127]),
        ("boolean", [True, False]),
        ("binary", [b"", b"\0\xff"]),
        ("date", [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
        ("timestamp", [datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)]),
        (("string", "bigint"), [("a", 1), ("a", 2), ("", -1)]),
    ],
)
def test_keys_of_every_type_are_found_in_their_key_groups(tmp_path: Path, key: Any, values: list[Any]) -> None:
    path = write(tmp_path / "new", keyed([(value, number) for number, value in enumerate(values)], key=key))
    SavepointWriter.copy_of(path, tmp_path / "copy").write(Plan().change_max_parallelism(1000))
    for place in (path, tmp_path / "copy"):
        savepoint = Savepoint.open(place)
        for number, value in enumerate(values):
            assert [entry.value for entry in savepoint.read("one", "number", key=value)] == [number]


def test_arrow_tables_are_accepted_as_entries(tmp_path: Path) -> None:
    table = pa.table({"key": pa.array(range(1000), pa.int64()), "value": pa.array(range(1000), pa.int64())})
    path = write(tmp_path / "new", keyed(table, key="bigint"))
    assert entries_of(path, "one", "number") == {number: number for number in range(1000)}
    pairs = pa.array([{"a": "x", "b": 1}], pa.struct([("a", pa.string()), ("b", pa.int64())]))
    table = pa.table({"key": pairs, "value": pa.array([2.5])})
    path = write(tmp_path / "pairs", keyed(table, ValueStateDescriptor("number", float), key=("string", "bigint")))
    assert entries_of(path, "one", "number") == {("x", 1): 2.5}


def test_entries_keep_their_given_times(tmp_path: Path) -> None:
    descriptor = ValueStateDescriptor("number", int, ttl=StateTtlConfig(1000))
    path = write(tmp_path / "new", keyed([("a", 1)], descriptor, last_access_ms=77))
    [entry] = Savepoint.open(path).read("one", "number")
    assert (entry.value, entry.last_access_ms) == (1, 77)
    again = keyed(Savepoint.open(path).read("one", "number"), descriptor, last_access_ms=0)
    [entry] = Savepoint.open(write(tmp_path / "again", again)).read("one", "number")
    assert (entry.value, entry.last_access_ms) == (1, 77)


def test_a_queue_without_timers_is_copied_and_cannot_be_changed(tmp_path: Path) -> None:
    parameters = KeyedStateBackendParameters(
        operator_uid="one",
        key_serializer=LongSerializer(),
        max_parallelism=4,
        key_group_range=KeyGroupRange(0, 3),
        file_system=CheckpointFileSystem.from_uri(tmp_path / "stored"),
        file_prefix="unused",
        local_directory=str(tmp_path / "local"),
    )
    target = create_savepoint_directory(tmp_path / "stored")
    with state_backend("heap").create_keyed_state_backend(parameters) as backend:
        backend.get_priority_queue(PriorityQueueDescriptor("queue", int)).add(7, 2)
        handle, _ = export_canonical_handle(backend, target, "operators/one", "part", "first")
    operator = OperatorState("one", "one", 4, (SubtaskState(handle),))
    write_savepoint(
        target,
        CheckpointMetadata(
            checkpoint_id=0,
            kind=CheckpointKind.SAVEPOINT,
            job_id="job",
            job_name="job",
            timestamp_ms=0,
            max_parallelism=4,
            operators=(operator,),
        ),
    )
    SavepointWriter.copy_of(tmp_path / "stored", tmp_path / "copy").write(Plan().rename_state("one", "queue", "other"))
    assert [entry.value for entry in Savepoint.open(tmp_path / "copy").read("one", "other")] == [7]
    for plan in (
        Plan().keep_keys("one", lambda key: True),
        Plan().change_max_parallelism(8),
        Plan().change_keys("one", str, "string"),
    ):
        with pytest.raises(PlanError, match="the queue 'queue' are not timers"):
            SavepointWriter.copy_of(tmp_path / "stored", tmp_path / "other").write(plan)


def test_a_marker_that_is_not_valid_utf_8_is_found(tmp_path: Path) -> None:
    path = write(tmp_path / "new", keyed([("a", "one \ud800x other")], ValueStateDescriptor("number", str)))
    savepoint = Savepoint.open(path)
    with pytest.raises(RemainsError, match="in the column value"):
        require_absent(savepoint, marker="\ud800x")
    require_absent(savepoint, marker="\ud800y")
    with pytest.raises(ValueError, match="a marker must be bytes or a string, not 7"):
        require_absent(savepoint, marker=7)  # type: ignore[arg-type]
