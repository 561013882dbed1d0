"""Filters of a query prune only keys that cannot match."""

from __future__ import annotations

import datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from statebackend.spark.state_tables.tables import EVERYTHING, MAX_KEYS, KeyCondition, WantedKeys, wanted_keys
from statebackend.state.key_columns import serializer_of_key
from statebackend.state.key_groups import KeyGroupRange, key_group_hasher

GROUPS = 16
COLUMNS = {
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "int": st.integers(-4, 4),
    "boolean": st.booleans(),
    "timestamp": st.datetimes(timezones=st.just(datetime.timezone.utc)),
}


def key_groups_of(wanted: WantedKeys) -> set[int]:
    return {group for one in wanted.inside(KeyGroupRange(0, GROUPS - 1)) for group in one}


@given(st.data())
def test_a_key_that_satisfies_all_conditions_is_never_pruned(data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.sampled_from(sorted(COLUMNS)), min_size=1, max_size=3))
    key = tuple(data.draw(COLUMNS[column]) for column in columns)
    paths = [("key",)] if len(columns) == 1 else [("key", f"_{index}") for index in range(len(columns))]
    group = key_group_hasher(columns, GROUPS)(key if len(key) > 1 else key[0])
    conditions = [
        KeyCondition(path, "in", (*data.draw(st.lists(COLUMNS[column], max_size=3)), value))
        for path, column, value in zip(paths, columns, key, strict=True)
        if data.draw(st.booleans())
    ]
    conditions += data.draw(
        st.lists(
            st.sampled_from(
                [
                    KeyCondition(("key_group",), "in", (group, 3)),
                    KeyCondition(("key_group",), "<=", (group,)),
                    KeyCondition(("key_group",), ">", (group - 1,)),
                    KeyCondition(("value",), "in", (1,)),
                    KeyCondition((*paths[0], "deeper"), "in", (1,)),
                ]
            )
        )
    )
    serializer = serializer_of_key(columns)
    wanted = wanted_keys(conditions, paths, serializer, GROUPS)
    assert group in key_groups_of(wanted)
    stored = serializer.to_bytes(key[0] if len(key) == 1 else key)
    assert wanted.keys is None or stored in wanted.keys


def of_text(*conditions: KeyCondition) -> WantedKeys:
    return wanted_keys(conditions, [("key",)], serializer_of_key(["string"]), GROUPS)


def named(*values: Any) -> KeyCondition:
    return KeyCondition(("key",), "in", values)


def test_key_filters_select_key_groups_and_key_bytes() -> None:
    wanted = of_text(named("a", "b", "c"), named("b", "d"))
    assert key_groups_of(wanted) == {key_group_hasher(["string"], GROUPS)("b")}
    assert wanted.keys == {serializer_of_key(["string"]).to_bytes("b")}
    assert key_groups_of(of_text(named("a"), named("b"))) == set(), "no key is both"


def test_a_timestamp_selects_only_its_key_group_because_its_stored_zone_is_unknown() -> None:
    here = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    there = here.astimezone(datetime.timezone.utc)
    wanted = wanted_keys([named(here)], [("key",)], serializer_of_key(["timestamp"]), GROUPS)
    assert key_groups_of(wanted) == {key_group_hasher(["timestamp"], GROUPS)(there)}
    assert wanted.keys is None


def test_bounds_of_the_key_group_keep_what_is_inside() -> None:
    wanted = of_text(KeyCondition(("key_group",), ">=", (5,)), KeyCondition(("key_group",), "<", (7,)))
    assert wanted == WantedKeys((KeyGroupRange(5, 6),))
    assert of_text(KeyCondition(("key_group",), "in", (3, 9))).key_groups == (KeyGroupRange(3, 3), KeyGroupRange(9, 9))


def test_impossible_values_and_too_many_values_prune_nothing() -> None:
    assert of_text(named(1)) == EVERYTHING
    assert of_text(named(*map(str, range(MAX_KEYS + 1)))) == EVERYTHING
    assert of_text() == EVERYTHING
