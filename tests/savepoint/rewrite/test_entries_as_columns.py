"""Entries that are given as columns of Arrow are stored as the same bytes as single entries."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.savepoint.entry_schema import EntrySchema
from statebackend.savepoint.errors import EntryError
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.savepoint.rewrite.planned_entries import PlannedEntries
from statebackend.savepoint.stored_entries import StateEntry
from statebackend.savepoint.value_forms import ColumnForms
from statebackend.state.key_columns import serializer_of_key
from statebackend.state.state_kind import StateDescriptor
from typeserializers.times.timers import TimeWindow, TimeWindowSerializer

pytestmark = pytest.mark.slow

WINDOW = TimeWindowSerializer()
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)


@attrs.frozen
class Reading:
    name: str
    level: float
    note: str | None
    marks: list[int]


READINGS = st.builds(Reading, TEXTS, st.floats(allow_nan=False), st.none() | TEXTS, st.lists(LONGS, max_size=3))

KEYS: dict[str, tuple[tuple[str, ...], st.SearchStrategy[Any]]] = {
    "text": (("string",), TEXTS),
    "number": (("bigint",), LONGS),
    "flag": (("boolean",), st.booleans()),
    "bytes": (("binary",), st.binary(max_size=40)),
    "tuple": (("int", "string"), st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), TEXTS)),
    "date": (("date",), st.dates()),
    "moment": (
        ("string", "timestamp"),
        st.tuples(TEXTS, st.datetimes(timezones=st.just(datetime.timezone.utc))),
    ),
}
TTL = StateTtlConfig(3_600_000)
STATES: dict[str, tuple[StateDescriptor, Any, st.SearchStrategy[Any], st.SearchStrategy[Any]]] = {
    "number": (ValueStateDescriptor("one", int), None, st.none(), LONGS),
    "flag": (ValueStateDescriptor("one", bool), None, st.none(), st.booleans()),
    "text": (ValueStateDescriptor("one", str), None, st.none(), TEXTS),
    "record": (ValueStateDescriptor("one", Reading), None, st.none(), READINGS),
    "in windows": (ValueStateDescriptor("one", float), WINDOW, st.none(), st.floats(allow_nan=False)),
    "expiring": (ValueStateDescriptor("one", Reading, ttl=TTL), None, st.none(), READINGS),
    "map": (MapStateDescriptor("one", str, int), None, TEXTS, st.none() | LONGS),
    "expiring map": (MapStateDescriptor("one", int, str, ttl=TTL), None, LONGS, st.none() | TEXTS),
    "list": (ListStateDescriptor("one", str), None, st.none(), st.lists(TEXTS, max_size=3)),
    "expiring list": (ListStateDescriptor("one", int, ttl=TTL), None, st.none(), st.lists(LONGS, max_size=3)),
}


def rows_of(schema: EntrySchema, columns: Sequence[str], entries: Any) -> pa.Table:
    rows = PlannedEntries(entries, 7).rows(schema, KeyPlacement(columns, 128))
    return pa.Table.from_batches(rows).combine_chunks()


def column_of(serializer: Any, values: Sequence[Any]) -> pa.Array:
    return ColumnForms().of(serializer).array(values)


@pytest.mark.extended_after(20)
@pytest.mark.parametrize("of_state", STATES)
@pytest.mark.parametrize("of_key", KEYS)
@given(data=st.data())
def test_columns_are_stored_as_the_same_rows_as_single_entries(of_key: str, of_state: str, data: st.DataObject) -> None:
    columns, keys = KEYS[of_key]
    descriptor, namespace, user_keys, values = STATES[of_state]
    schema = EntrySchema.of(descriptor, serializer_of_key(columns), namespace)
    windows = st.builds(TimeWindow, LONGS, LONGS) if namespace is not None else st.none()
    times = st.lists(LONGS, min_size=3, max_size=3) if schema.is_list else LONGS
    given_entries = data.draw(st.lists(st.tuples(keys, windows, user_keys, values, times), min_size=1, max_size=6))
    entries = [
        StateEntry(0, key, window, user_key, value, tuple(time[: len(value)]) if schema.is_list else time)
        for key, window, user_key, value, time in given_entries
    ]
    table = {
        name: column_of(schema.values_of(name), [getattr(entry, name) for entry in entries])
        for name in schema.entry_columns
    }
    if schema.is_timed:
        table["last_access_ms"] = pa.array([entry.last_access_ms for entry in entries])
    assert rows_of(schema, columns, pa.table(table)) == rows_of(schema, columns, entries)


@pytest.mark.extended_after(5)
@pytest.mark.parametrize("of_key", KEYS)
@pytest.mark.parametrize("namespace", [None, WINDOW])
@given(data=st.data())
def test_columns_of_timers_are_stored_as_the_same_rows_as_single_timers(
    of_key: str, namespace: Any, data: st.DataObject
) -> None:
    columns, keys = KEYS[of_key]
    schema = EntrySchema.of_timers("timers", serializer_of_key(columns), namespace)
    parts = [keys, *([st.builds(TimeWindow, LONGS, LONGS)] if namespace is not None else []), LONGS]
    timers = data.draw(st.lists(st.tuples(*parts), min_size=1, max_size=6))
    table = {
        name: column_of(schema.values_of(name), values)
        for name, values in zip(schema.entry_columns, zip(*timers, strict=True), strict=True)
    }
    assert rows_of(schema, columns, pa.table(table)) == rows_of(schema, columns, timers)


def test_fields_of_records_are_matched_by_name_and_small_integers_are_widened() -> None:
    schema = EntrySchema.of(ValueStateDescriptor("one", Reading), serializer_of_key(["bigint"]))
    values = pa.array([{"marks": [1], "note": None, "level": 0.5, "name": "a"}]).cast(
        pa.struct(
            [("marks", pa.list_(pa.int64())), ("note", pa.string()), ("level", pa.float64()), ("name", pa.string())]
        )
    )
    table = pa.table({"key": pa.array([1], pa.int8()), "value": values})
    assert rows_of(schema, ["bigint"], table) == rows_of(schema, ["bigint"], [(1, Reading("a", 0.5, None, [1]))])


def _readings(**changes: Any) -> pa.Array:
    fields = {"name": ["a", "b"], "level": [0.5, 0.5], "note": ["c", None], "marks": [[1], [1]], **changes}
    return pa.StructArray.from_arrays([pa.array(values) for values in fields.values()], names=list(fields))


@pytest.mark.parametrize(
    ("descriptor", "columns", "message"),
    [
        (
            ValueStateDescriptor("one", Reading),
            {"value": _readings(level=[0.5, None])},
            r"state 'one', key \('b', 2\): the value does not fit: .*level",
        ),
        (
            ValueStateDescriptor("one", Reading),
            {"value": _readings().take(pa.array([0, None]))},
            r"state 'one', key \('b', 2\): the value does not fit: None means that there is no entry",
        ),
        (
            ValueStateDescriptor("one", int),
            {
                "key": pa.StructArray.from_arrays([pa.array(["a", None]), pa.array([1, 2])], names=["a", "b"]),
                "value": pa.array([1, 2]),
            },
            "state 'one': the key does not fit: a column of it is None",
        ),
        (
            MapStateDescriptor("one", str, int),
            {"user_key": pa.array(["a", None]), "value": pa.array([1, 2])},
            r"state 'one', key \('b', 2\): the user key does not fit: None cannot be one",
        ),
        (
            ListStateDescriptor("one", int),
            {"value": pa.array([[1], [None]])},
            r"state 'one', key \('b', 2\): the value does not fit: None cannot be an element of a list",
        ),
        (
            ListStateDescriptor("one", int),
            {"value": pa.array([[1], None])},
            r"state 'one', key \('b', 2\): the value does not fit: None is not a list",
        ),
        (
            ValueStateDescriptor("one", str),
            {"value": pa.array([b"a", b"\xff"]).view(pa.string())},
            r"state 'one', key \('b', 2\): the value does not fit: a column of string",
        ),
    ],
)
def test_an_error_of_a_column_names_the_key(
    descriptor: StateDescriptor, columns: dict[str, pa.Array], message: str
) -> None:
    key = pa.StructArray.from_arrays([pa.array(["a", "b"]), pa.array([1, 2])], names=["a", "b"])
    schema = EntrySchema.of(descriptor, serializer_of_key(["string", "bigint"]))
    with pytest.raises(EntryError, match=message):
        rows_of(schema, ["string", "bigint"], pa.table({"key": key, **columns}))
