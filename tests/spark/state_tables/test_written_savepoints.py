"""Frames are written as savepoints, without Spark. They are read and restored as the same state.

Each partition is staged as in a task, with the pickled writer, and the driver commits.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from inspected_job import SALES, SumPerShop, run_job
from pyspark.sql.pandas.types import from_arrow_schema
from tables_read import parts_of, reader_of, rows_of

from statebackend import (
    BroadcastStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    Savepoint,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.errors import ColumnValueError, EntryError, RepeatedKeyError, UnknownStateError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.options import StateTableError
from statebackend.spark.state_tables.source import StateTableSource

COUNTS = ValueStateDescriptor("counts", int)
NAMES = ListStateDescriptor("names", str)
PRICES = MapStateDescriptor("prices", str, float)
LONG_PRICE = ValueStateDescriptor("price", Decimal)
BASKET = ValueStateDescriptor("basket", list[Decimal])
HERE = __name__
STATES = ("totals", "timed", "amounts", "seen", "by amount", "largest")


def write(path: Path, partitions: list[pa.RecordBatch], meanwhile: Callable[[], object] = int, **options: Any) -> None:
    """Write a frame with these partitions as Spark does. ``meanwhile`` is called before the commit."""
    source = StateTableSource({"path": str(path), **{name: str(value) for name, value in options.items()}})
    writer = pickle.loads(pickle.dumps(source.writer(from_arrow_schema(partitions[0].schema), overwrite=False)))
    messages = []
    try:
        for partition in partitions:
            in_task = pickle.loads(pickle.dumps(writer))
            messages.append(pickle.loads(pickle.dumps(in_task.write(iter([partition])))))
    except Exception:
        writer.abort([*messages, None])
        raise
    meanwhile()
    writer.commit(messages)


def frame_of(path: Path, state: str) -> list[pa.RecordBatch]:
    """The table as a frame whose partitions are in reverse order."""
    reader = reader_of(path, state=state)
    return [batch for part in reversed(parts_of(reader)) for batch in reader.read(part)]


def names_in(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@pytest.mark.extended_after(3)
@pytest.mark.parametrize("state", STATES)
def test_state_passes_through_a_frame_unchanged(stored: Path, tmp_path: Path, state: str) -> None:
    partitions = frame_of(stored, state)
    base = tmp_path / "base"
    if (stored / "job.json").exists():
        # A checkpoint of a job that has not ended has no source log with it, so take a savepoint.
        run_job("heap").savepoint(base)
    else:
        base = stored
    write(tmp_path / "new", partitions, source=base, operator="per shop", state=state)
    assert names_in(tmp_path) <= {"base", "new"}, "nothing that was staged is left"
    old, new = Savepoint.open(base), Savepoint.open(tmp_path / "new")
    assert new.states == old.states
    assert new.operators["per shop"].operator_states.keys() == old.operators["per shop"].operator_states.keys()
    for name in STATES:
        assert rows_of(tmp_path / "new", state=name) == rows_of(base, state=name), name
    assert dict(new.schema("per shop", state).types) == dict(old.schema("per shop", state).types)


def test_a_job_continues_from_state_that_a_frame_has_changed(tmp_path: Path) -> None:
    run_job("heap").savepoint(tmp_path / "old")
    partitions = []
    for batch in frame_of(tmp_path / "old", "largest"):
        columns = batch.to_pydict()
        columns["value"] = [value + 1000 for value in columns["value"]]
        partitions.append(pa.record_batch(columns, schema=batch.schema))
    write(tmp_path / "new", partitions, source=tmp_path / "old", operator="per shop", state="largest")
    environment = LocalStreamEnvironment(backend="rocksdb", parallelism=3, clock=lambda: 1_700_000_000_000)
    environment.from_elements(SALES, schema="shop string, amount bigint").key_by("shop").process(
        SumPerShop(), uid="per shop", schema="shop string"
    ).sink_to(lambda records: None)
    environment.execute("sales", from_savepoint=tmp_path / "new").savepoint(tmp_path / "after")
    after = {row["key"]: row["value"] for row in rows_of(tmp_path / "after", state="largest")}
    assert after == {row["key"]: row["value"] + 1000 for row in rows_of(tmp_path / "old", state="largest")}


def test_progress_of_the_job_during_the_write_is_not_in_the_savepoint(tmp_path: Path) -> None:
    job = tmp_path / "job"

    def run() -> None:
        run_job("heap", job, epoch_size=None)

    run()
    before = {state: rows_of(job, state=state) for state in STATES}
    write(tmp_path / "new", frame_of(job, "totals"), run, source=job, operator="per shop", state="totals")
    assert rows_of(job, state="largest") == before["largest"]
    assert rows_of(job, state="amounts") != before["amounts"]
    assert {state: rows_of(tmp_path / "new", state=state) for state in STATES} == before


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_state_is_created_by_a_descriptor_of_the_program(tmp_path: Path) -> None:
    options = {"operator": "per shop", "max_parallelism": 16}
    counts = [batch(key=["b", "a"], value=[2, 1]), batch(key=["é"], value=[3])]
    write(tmp_path / "1", counts, state="counts", descriptor=f"{HERE}:COUNTS", **options)
    assert Savepoint.open(tmp_path / "1").metadata.max_parallelism == 16
    assert {row["key"]: row["value"] for row in rows_of(tmp_path / "1", state="counts")} == {"a": 1, "b": 2, "é": 3}
    names = [batch(key=["a", "b"], value=[["x", "y"], []])]
    more = {"source": tmp_path / "1", "operator": "per shop"}
    write(tmp_path / "2", names, state="names", descriptor=f"{HERE}:NAMES", **more)
    prices = [batch(key=["a", "a"], user_key=["x", "y"], value=["1.5", "?"])]
    with pytest.raises(EntryError, match="the value does not fit"):
        write(tmp_path / "3", prices, **more, state="prices", descriptor=f"{HERE}:PRICES")
    assert names_in(tmp_path) == {"1", "2"}, "what was rejected leaves nothing"
    assert [state for _, state in Savepoint.open(tmp_path / "2").states] == ["counts", "names"]
    assert {row["key"]: row["value"] for row in rows_of(tmp_path / "2", state="names")}["a"] == ["x", "y"]


@pytest.mark.parametrize("options", [{"decimal_scale": "24"}, {"as_text": "true"}], ids=str)
def test_decimals_with_many_digits_pass_through_a_frame(tmp_path: Path, options: dict[str, str]) -> None:
    prices = [("a", Decimal("1.234567890123456789012345")), ("b", Decimal("-0.5"))]
    plan = Plan().add_operator("one", "string").add_state("one", LONG_PRICE, prices)
    SavepointWriter.new(tmp_path / "old", max_parallelism=4).write(
        plan.add_state("one", BASKET, [("a", [prices[0][1]])])
    )
    for state in ("price", "basket"):
        reader = reader_of(tmp_path / "old", operator="one", state=state, **options)
        frame = [batch for part in parts_of(reader) for batch in reader.read(part)]
        write(tmp_path / state, frame, source=tmp_path / "old", operator="one", state=state)
        old, new = (list(Savepoint.open(tmp_path / name).read("one", state)) for name in ("old", state))
        assert [(one.key, one.value) for one in new] == [(one.key, one.value) for one in old]
    if "as_text" in options:
        assert [str(one.value) for one in Savepoint.open(tmp_path / "price").read("one", "price", key="b")] == ["-0.5"]


@pytest.mark.parametrize("value", ["1,5", "", "NaN", 1.5, True], ids=repr)
def test_a_value_that_is_no_decimal_is_rejected(tmp_path: Path, value: Any) -> None:
    options = {"operator": "one", "state": "price", "descriptor": f"{HERE}:LONG_PRICE"}
    with pytest.raises((ColumnValueError, EntryError), match="does not fit"):
        write(tmp_path / "new", [batch(key=["a"], value=[value])], **options)


def test_keys_of_several_columns_are_where_a_job_looks_for_them(tmp_path: Path) -> None:
    keys = pa.array([{"shop": "a", "day": 1}, {"shop": "b", "day": 2}], pa.struct({"shop": "string", "day": "int64"}))
    one = pa.record_batch({"key": keys, "value": pa.array([1, 2])})
    write(tmp_path / "new", [one], operator="per day", state="counts", descriptor=f"{HERE}:COUNTS")
    opened = Savepoint.open(tmp_path / "new")
    assert opened.key_columns("per day") == ("string", "bigint")
    assert [entry.value for entry in opened.read("per day", "counts", key=("b", 2))] == [2]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, StateTableError, "operator, state is missing"),
        ({"operator": "x", "state": "counts"}, StateTableError, "the types of the state are unknown: name a savepoint"),
        ({"operator": "x", "state": "y", "descriptor": f"{HERE}:COUNTS"}, StateTableError, "is of a state 'counts'"),
        ({"operator": "x", "state": "y", "descriptor": f"{HERE}:NONE"}, StateTableError, "cannot be found"),
        ({"operator": "x", "state": "y", "descriptor": "COUNTS"}, StateTableError, "the module and name of a descr"),
        ({"operator": "x", "state": "y", "columns": "key"}, StateTableError, "there is no option 'columns'"),
        (
            {"operator": "x", "state": "prices", "descriptor": f"{HERE}:PRICES"},
            StateTableError,
            "are key, user_key, value; the frame lacks user_key",
        ),
    ],
)
def test_unwritable_state_is_reported_before_a_task_runs(
    tmp_path: Path, options: dict[str, str], error: type[Exception], message: str
) -> None:
    source = StateTableSource({"path": str(tmp_path / "new"), **options})
    with pytest.raises(error, match=message):
        source.writer(from_arrow_schema(batch(key=["a"], value=[1]).schema), overwrite=False)


@pytest.mark.parametrize("column", ["namespace", "last_access_ms", "valeu"])
def test_a_column_that_would_be_lost_is_named_before_a_task_runs(tmp_path: Path, column: str) -> None:
    options = {"operator": "x", "state": "counts", "descriptor": f"{HERE}:COUNTS"}
    frame = batch(key_group=[0], key=["a"], value=[1], **{column: [1]})
    with pytest.raises(StateTableError, match=f"are key, value; the frame has {column} besides, which would be lost"):
        StateTableSource({"path": str(tmp_path / "new"), **options}).writer(from_arrow_schema(frame.schema), False)


def test_other_key_groups_than_those_of_the_source_are_rejected(stored: Path, tmp_path: Path) -> None:
    options = {"operator": "per shop", "state": "totals", "source": str(stored), "max_parallelism": "64"}
    source = StateTableSource({"path": str(tmp_path / "new"), **options})
    with pytest.raises(StateTableError, match="has 128 key groups, but the option max_parallelism is 64"):
        source.writer(from_arrow_schema(batch(key=["a"], value=[1]).schema), overwrite=False)


def test_an_operator_without_keys_is_named(tmp_path: Path) -> None:
    rules = BroadcastStateDescriptor("rules", str, int)
    plan = Plan().add_operator("rules").add_operator_state("rules", rules, {"a": 1})
    SavepointWriter.new(tmp_path / "old", max_parallelism=8).write(plan)
    options = {"source": str(tmp_path / "old"), "operator": "rules", "state": "counts", "descriptor": f"{HERE}:COUNTS"}
    with pytest.raises(StateTableError, match=r"operator .rules. of .*old.* has no keyed state, so its key is unknown"):
        write(tmp_path / "new", [batch(key=["a"], value=[1])], **options)


def test_timers_are_not_entries_of_a_frame(stored: Path, tmp_path: Path) -> None:
    options = {"source": stored, "operator": "per shop", "state": "_timer_state/processing_user-timers"}
    with pytest.raises(StateTableError, match="is a priority_queue, which no frame can be written as"):
        write(tmp_path / "new", [batch(key=["a"], value=[1])], **options)


def test_a_savepoint_is_never_overwritten(savepoint: Path) -> None:
    source = StateTableSource({"path": str(savepoint), "operator": "x", "state": "counts"})
    with pytest.raises(StateTableError, match="never overwritten"):
        source.writer(from_arrow_schema(batch(key=["a"], value=[1]).schema), overwrite=True)


def test_an_invalid_frame_leaves_nothing(savepoint: Path, tmp_path: Path) -> None:
    options = {"source": savepoint, "operator": "per shop"}
    twice = [batch(key=["a"], value=[1]), batch(key=["a"], value=[2])]
    with pytest.raises(RepeatedKeyError):
        write(tmp_path / "new", twice, state="largest", **options)
    with pytest.raises(EntryError):
        write(tmp_path / "new", [batch(key=["a"], value=["text"])], state="largest", **options)
    with pytest.raises(ColumnValueError, match="'value'"):
        write(tmp_path / "new", [batch(key=["a"], value=[{"sales": 1}])], state="totals", **options)
    with pytest.raises(UnknownStateError, match="no keyed state 'large'"):
        write(tmp_path / "new", twice, state="large", **options)
    assert names_in(tmp_path) == set()
