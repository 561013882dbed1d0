"""A plan is executed in several processes that have not imported the program."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from state_contents import contents, entries_of

from statebackend import ListStateDescriptor, MapStateDescriptor, StateTtlConfig, ValueStateDescriptor
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.key_placement import KeyPlacement
from statebackend.state.key_columns import KEY_COLUMNS, serializer_of_key

pytestmark = pytest.mark.slow


def is_even(key: int) -> bool:
    return key % 2 == 0


def halved(key: int) -> int:
    return key // 2


def plan_of() -> Plan:
    plan = Plan().add_operator("one", "bigint").change_parallelism(3)
    plan.add_state("one", ValueStateDescriptor("number", int), [(key, -key) for key in range(200)])
    plan.add_state("one", ListStateDescriptor("list", str), [(key, ["a", "b"]) for key in range(200)])
    timed = MapStateDescriptor("map", int, float, ttl=StateTtlConfig(1000))
    return plan.add_state("one", timed, [(key, key, 0.5) for key in range(200)], merge=max)


def test_several_processes_write_what_one_does(tmp_path: Path) -> None:
    SavepointWriter.new(tmp_path / "first", max_parallelism=16).write(plan_of())
    plan = Plan().keep_keys("one", is_even).change_keys("one", halved, "int")
    for name, processes in (("alone", 1), ("together", 2)):
        SavepointWriter.copy_of(tmp_path / "first", tmp_path / name, processes=processes).write(plan)
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")
    assert entries_of(tmp_path / "together", "one", "number") == {key: -2 * key for key in range(100)}


_KEYS: Mapping[str, Any] = {
    "string": "a",
    "binary": b"a",
    "boolean": True,
    "tinyint": 1,
    "smallint": 1,
    "int": 1,
    "bigint": 1,
    "date": datetime.date(2020, 1, 1),
    "timestamp": datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc),
}


@pytest.mark.parametrize("columns", [*((column,) for column in KEY_COLUMNS), tuple(KEY_COLUMNS)])
def test_keys_of_every_type_have_the_same_groups_in_another_process(columns: tuple[str, ...]) -> None:
    key = tuple(_KEYS[column] for column in columns) if len(columns) > 1 else _KEYS[columns[0]]
    stored = pa.array([serializer_of_key(columns).to_bytes(key)], pa.binary())
    here = KeyPlacement(columns, 128)
    elsewhere = pickle.loads(pickle.dumps(here))
    assert elsewhere.of_stored(stored).to_pylist() == here.of_stored(stored).to_pylist() == [here.of_key(key)]


def test_objects_that_cannot_be_pickled_are_reported(tmp_path: Path) -> None:
    SavepointWriter.new(tmp_path / "first", max_parallelism=16).write(plan_of())
    writer = SavepointWriter.copy_of(tmp_path / "first", tmp_path / "other", processes=2)
    with pytest.raises(PlanError, match=r"cannot be sent to another process.*that can be imported"):
        writer.write(Plan().keep_keys("one", lambda key: True))
    assert not (tmp_path / "other").exists()


def killing(key: int) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def test_a_killed_process_ends_the_writing_and_leaves_nothing(tmp_path: Path) -> None:
    SavepointWriter.new(tmp_path / "first", max_parallelism=16).write(plan_of())
    writer = SavepointWriter.copy_of(tmp_path / "first", tmp_path / "second", processes=2)
    with pytest.raises(PlanError, match="ended early: it was killed"):
        writer.write(Plan().keep_keys("one", killing))
    assert not (tmp_path / "second").exists()
