"""Arguments of state tables that are rejected: options without effect, missing columns, different subtasks."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType
from tables_read import reader_of, rows_of

from statebackend import ValueStateDescriptor
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import ColumnValueError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.options import StateTableError, parsed_write_options
from statebackend.spark.state_tables.source import StateTableSource
from statebackend.spark.state_tables.tables import check_same_columns
from typeserializers import LongSerializer, StringSerializer

COUNT = ValueStateDescriptor("count", int)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A savepoint with two operators."""
    path = tmp_path_factory.mktemp("state") / "two"
    plan = Plan()
    for uid in ("one", "other"):
        plan = plan.add_operator(uid, "string").add_state(uid, COUNT, [("a", 1)])
    SavepointWriter.new(path, max_parallelism=4).write(plan)
    return path


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        ({"state": "count"}, "the option operator is missing: there are one, other"),
        ({"operator": "one", "state": "count", "as_text": "yes"}, "the option as_text is true or false, not 'yes'"),
        ({"operator": "one", "state": "count", "as_text": ""}, "the option as_text is true or false, not ''"),
        (
            {"operator": "one", "state": "count", "checkpoint": "last"},
            "checkpoint is the id of a checkpoint, such as 17",
        ),
        (
            {"operator": "one", "state": "count", "columns": "key,vaule"},
            "there is no column 'vaule'; there are key_group",
        ),
        ({"operator": "one", "state": "count", "decimal_scale": "39"}, "decimal_scale is a whole number from 0 to 38"),
        ({"operator": "one", "state": "count", "kind": "keys"}, "there are no tables of the kind 'keys'"),
    ],
    ids=str,
)
def test_an_option_without_effect_is_reported(two: Path, options: dict[str, str], reported: str) -> None:
    with pytest.raises(StateTableError, match=reported):
        rows_of(two, **options)
    assert rows_of(two, operator="one", state="count", as_text="TRUE", columns="value") == [{"value": 1}]


def test_decimals_have_the_requested_digits_after_the_point(tmp_path: Path) -> None:
    price, state = Decimal("1.234567890123456789012345"), ValueStateDescriptor("price", Decimal)
    plan = Plan().add_operator("one", "string").add_state("one", state, [("a", price)])
    SavepointWriter.new(tmp_path / "one", max_parallelism=4).write(plan)
    with pytest.raises(ColumnValueError, match="decimal_scale=30"):
        rows_of(tmp_path / "one", operator="one", state="price", columns="value")
    [row] = rows_of(tmp_path / "one", operator="one", state="price", columns="value", decimal_scale="24")
    assert row == {"value": price}


@pytest.mark.parametrize("text", ["4.0", "-4", "", "four", "\N{SUPERSCRIPT TWO}"])
def test_key_groups_for_writing_are_an_integer(text: str) -> None:
    options = {"path": "new", "operator": "one", "state": "count"}
    with pytest.raises(StateTableError, match=f"the option max_parallelism must be a whole number, not {text!r}"):
        parsed_write_options({**options, "max_parallelism": text})
    assert parsed_write_options({**options, "max_parallelism": "64"}).max_parallelism == 64
    for name in options:
        with pytest.raises(StateTableError, match=f"a savepoint needs .*; {name} is missing: "):
            parsed_write_options({**options, name: ""})


def test_a_user_schema_has_existing_columns_unchanged(two: Path) -> None:
    source = StateTableSource({"path": str(two), "operator": "one", "state": "count"})
    value = StructField("value", LongType(), True)
    assert source.reader(StructType([value]))
    for field, reported in (
        (StructField("values", LongType()), "there is no column 'values'; there are key_group, key, value"),
        (
            StructField("value", StringType()),
            "'value' is of type bigint, which cannot be read as string: leave the sch",
        ),
    ):
        with pytest.raises(StateTableError, match=reported):
            source.reader(StructType([value, field]))


def test_subtasks_with_different_columns_are_not_one_table() -> None:
    expected, found = (pa.schema([("value", one)]) for one in (pa.int64(), pa.string()))
    check_same_columns(expected, expected, "count", {"value": "a note"})
    with pytest.raises(
        StateTableError, match=r"the subtasks of state 'count' have different types: .*take a savepoint"
    ):
        check_same_columns(expected, found, "count", {})
    with pytest.raises(StateTableError, match="state 'count' cannot be read by this worker: value: not known here"):
        check_same_columns(expected, found, "count", {"value": "not known here"})


def test_timers_of_different_namespaces_are_selected_by_the_option_state(tmp_path: Path) -> None:
    plan: Any = Plan().add_operator("one", "string")
    for service, namespace in (("first", LongSerializer()), ("second", StringSerializer())):
        name = f"_timer_state/event_{service}"
        plan = plan.add_timers("one", [], time="event", service=service, namespace=namespace)
        assert EntrySchema.of_timers(name, StringSerializer(), namespace).is_timers
    SavepointWriter.new(tmp_path / "timers", max_parallelism=4).write(plan)
    reported = "the timers of operator 'one' have namespaces of different types .*: choose one by the option state, of "
    with pytest.raises(StateTableError, match=reported):
        reader_of(tmp_path / "timers", operator="one", kind="timers")
