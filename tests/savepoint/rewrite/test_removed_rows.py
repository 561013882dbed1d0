"""Removed rows are counted by state, and changes that removed nothing are listed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    SplitListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.rewrite import Plan, SavepointWriter, WrittenSavepoint

KEYS = range(20)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    plan = (
        Plan()
        .change_parallelism(2)
        .add_operator("one", "int")
        .add_state("one", ValueStateDescriptor("value", int), [(key, key) for key in KEYS])
        .add_state("one", ListStateDescriptor("list", int), [(key, [key] * 5) for key in KEYS])
        .add_state("one", MapStateDescriptor("map", int, int), [(key, more, key) for key in KEYS for more in (1, 2, 3)])
        .add_operator_state("one", SplitListStateDescriptor("elements", int), list(KEYS))
        .add_operator_state("one", BroadcastStateDescriptor("rules", int, int), {1: 1, 2: 2})
    )
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    return tmp_path / "stored"


def written(stored: Path, plan: Plan, processes: int = 1) -> WrittenSavepoint:
    return SavepointWriter.copy_of(stored, stored.parent / "copy", processes=processes).write(plan)


def is_beyond_four(key: int) -> bool:
    return key > 4


@pytest.mark.extended_after(1)
@pytest.mark.parametrize(("max_parallelism", "processes"), [(8, 1), (16, 1), (16, 2)])
def test_removed_rows_are_reported_by_state(stored: Path, max_parallelism: int, processes: int) -> None:
    plan = Plan().keep_keys("one", is_beyond_four).change_max_parallelism(max_parallelism)
    report = written(stored, plan, processes)
    assert report.left_out == {"one": {"value": 5, "list": 5, "map": 15}}
    assert report.rows == {"one": {"value": 15, "list": 15, "map": 45}}
    assert report.changes_without_effect == {}


def test_a_state_without_removed_rows_is_not_reported(stored: Path) -> None:
    plan = Plan().keep_entries("one", lambda entry: entry.value > 100, states=["value"])
    assert written(stored, plan).left_out == {"one": {"value": 20}}


def test_removed_elements_are_reported(stored: Path) -> None:
    plan = Plan().keep_elements("one", "elements", lambda element: element > 4)
    plan.keep_elements("one", "elements", lambda element: element > 1).keep_elements("one", "rules", lambda key: True)
    report = written(stored, plan)
    assert report.left_out == {"one": {"elements": 5, "rules": 0}}
    assert report.changes_without_effect == {
        2: "keep_elements of state 'elements' of operator 'one'",
        3: "keep_elements of state 'rules' of operator 'one'",
    }


def test_a_change_without_effect_is_reported_by_its_number(stored: Path) -> None:
    plan = Plan().rename_operator("one", "two").keep_keys("two", lambda key: key != "7")
    plan.keep_entries("two", lambda entry: entry.key != 7, states=["value"])
    report = written(stored, plan)
    assert report.left_out == {"two": {"value": 1, "list": 0, "map": 0}}
    assert report.changes_without_effect == {2: "keep_keys of operator 'two'"}


def test_rows_removed_from_a_split_operator_count_once(stored: Path) -> None:
    plan = Plan().keep_keys("one", is_beyond_four)
    plan.split_operator("one", ["x", "y"], lambda key: "x" if key % 2 else "y", operator_state="x")
    plan.keep_keys("y", lambda key: key != 6)
    report = written(stored, plan)
    assert report.left_out == {
        "x": {"value": 5, "list": 5, "map": 15},
        "y": {"value": 1, "list": 1, "map": 3},
    }
    assert report.changes_without_effect == {}


class Collect(KeyedProcessFunction[int, Any, Any]):
    seen = ListStateDescriptor("seen", int)

    def process_element(self, value: Any, context: Any) -> None:
        self.seen.add(value.number)


@pytest.mark.parametrize("max_parallelism", [8, 16])
def test_a_list_of_several_rows_is_one_entry(tmp_path: Path, max_parallelism: int) -> None:
    environment = LocalStreamEnvironment(epoch_size=5, backend="rocksdb", parallelism=2, max_parallelism=8)
    stream = environment.from_elements([(key, 1) for _ in range(4) for key in range(5)], "key bigint, number int")
    stream.key_by("key").process(Collect(), uid="one", schema="n int").sink_to([])
    stored = tmp_path / "stored"
    assert environment.execute().savepoint(stored).rows == {"one": {"seen": 20}}, "an epoch adds a row to each list"
    plan = Plan().keep_keys("one", lambda key: key > 1).change_max_parallelism(max_parallelism)
    assert written(stored, plan).rows == {"one": {"seen": 3}}
