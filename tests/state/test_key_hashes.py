"""Columns of keys are hashed as single keys are."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from statebackend.state.key_columns import KEY_COLUMNS
from statebackend.state.key_groups import key_group_hasher
from statebackend.state.key_hashes import key_groups_of_columns
from statebackend.streaming.rows.declared_schema import parsed_schema

TEXT = st.text(max_size=40) | st.text("ab", max_size=3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "string": TEXT,
    "binary": st.binary(max_size=70) | st.binary(min_size=7, max_size=8),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "smallint": st.integers(-(1 << 15), (1 << 15) - 1),
    "tinyint": st.integers(-(1 << 7), (1 << 7) - 1),
    "boolean": st.booleans(),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(datetime.timezone.utc)),
}
KEYS = st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3).flatmap(
    lambda types: st.tuples(
        st.just(types), st.lists(st.tuples(*(VALUES[name] for name in types)), min_size=1, max_size=20)
    )
)


def test_each_type_of_a_key_is_tested() -> None:
    assert VALUES.keys() == KEY_COLUMNS.keys()


@given(KEYS, st.sampled_from([1, 3, 128, 1000, 32768]), st.integers(0, 3))
def test_columns_have_the_key_groups_of_single_keys(
    keys: tuple[list[str], Sequence[Any]], max_parallelism: int, start: int
) -> None:
    types, rows = keys
    rows = [*rows, *rows[:start]]
    schema = parsed_schema(", ".join(f"c{index} {name}" for index, name in enumerate(types)), "test").arrow
    columns = [
        pa.array(values, one.type).slice(start) for values, one in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    one_by_one = key_group_hasher(types, max_parallelism)
    expected = [one_by_one(row if len(types) > 1 else row[0]) for row in rows[start:]]
    found = key_groups_of_columns(columns, max_parallelism)
    # None stands for keys that are hashed one by one, such as no keys.
    assert (None if found is None else found.to_pylist()) == (expected or None)
