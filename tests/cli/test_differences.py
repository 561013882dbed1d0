"""Differences between two savepoints, entry by entry, including timers and operator state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend import (
    BroadcastStateDescriptor,
    OperatorStateDescriptor,
    Savepoint,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
)
from statebackend.cli.main import main
from statebackend.cli.streams import DIFFERENT
from statebackend.savepoint.inspection import difference_of_entries, difference_of_schemas, schemas
from statebackend.savepoint.rewrite import Plan, SavepointWriter


def savepoint_of(directory: Path, plan: Plan) -> Savepoint:
    SavepointWriter.new(directory, max_parallelism=8).write(plan)
    return Savepoint.open(directory)


def differences(old: Savepoint, new: Savepoint) -> list[tuple[str, str, Any, Any]]:
    return [(one["state"], one["change"], one["before"], one["after"]) for one in difference_of_entries(old, new)]


def with_timers(*times: tuple[str, int]) -> Plan:
    return Plan().add_operator("one", "string").add_timers("one", times, time="event")


def test_each_timer_of_a_key_is_compared(tmp_path: Path) -> None:
    old = savepoint_of(tmp_path / "old", with_timers(("a", 1), ("a", 2), ("a", 3), ("b", 1)))
    new = savepoint_of(tmp_path / "new", with_timers(("a", 3), ("a", 4), ("b", 1)))
    found = differences(old, new)
    assert [(change, (before or after)["value"]) for _, change, before, after in found] == [
        ("removed", 1),
        ("removed", 2),
        ("added", 4),
    ]
    assert {(before or after)["key"] for _, _, before, after in found} == {"a"}
    assert differences(new, new) == []
    assert main(["diff", old.uri, new.uri, "--entries"]) == DIFFERENT


def with_elements(descriptor: OperatorStateDescriptor, elements: Any, parallelism: int) -> Plan:
    plan = Plan().add_operator("one").change_parallelism(parallelism)
    return plan.add_operator_state("one", descriptor, elements)


@pytest.mark.parametrize("kind", [SplitListStateDescriptor, UnionListStateDescriptor])
def test_elements_of_an_operator_list_are_compared_without_their_subtask(tmp_path: Path, kind: Any) -> None:
    list_ = kind("list", int)
    old = savepoint_of(tmp_path / "old", with_elements(list_, [1, 1, 2, 3], 3))
    same = savepoint_of(tmp_path / "same", with_elements(list_, [3, 1, 2, 1], 1))
    new = savepoint_of(tmp_path / "new", with_elements(list_, [1, 4, 2, 3], 2))
    assert differences(old, same) == []
    assert differences(old, new) == [
        ("list", "removed", {"value": 1}, None),
        ("list", "added", None, {"value": 4}),
    ]


def test_broadcast_state_is_compared_once_for_all_copies(tmp_path: Path) -> None:
    prices = BroadcastStateDescriptor("prices", str, int)
    old = savepoint_of(tmp_path / "old", with_elements(prices, {"same": 1, "other": 2, "gone": 3}, 3))
    new = savepoint_of(tmp_path / "new", with_elements(prices, {"new": 4, "other": 5, "same": 1}, 2))
    assert differences(old, new) == [
        ("prices", "changed", {"key": "other", "value": 2}, {"key": "other", "value": 5}),
        ("prices", "removed", {"key": "gone", "value": 3}, None),
        ("prices", "added", None, {"key": "new", "value": 4}),
    ]


def test_a_list_that_became_broadcast_state_is_a_schema_difference(tmp_path: Path) -> None:
    old = savepoint_of(tmp_path / "old", with_elements(SplitListStateDescriptor("one", int), [7], 1))
    new = savepoint_of(tmp_path / "new", with_elements(BroadcastStateDescriptor("one", str, int), {"a": 1}, 1))
    assert differences(old, new) == differences(new, old) == []
    assert {"path": "one.operator_states.one.kind", "change": "changed", "before": "split", "after": "broadcast"} in (
        difference_of_schemas(schemas(old), schemas(new))
    )


def test_another_type_of_operator_state_is_a_schema_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = savepoint_of(tmp_path / "old", with_elements(BroadcastStateDescriptor("prices", str, int), {}, 1))
    new = savepoint_of(tmp_path / "new", with_elements(BroadcastStateDescriptor("prices", str, float), {}, 1))
    path = "one.operator_states.prices.types.value.type"
    assert difference_of_schemas(schemas(old), schemas(new)) == [
        {"path": path, "change": "changed", "before": "int64", "after": "float64"}
    ]
    assert main(["schema", old.uri]) == 0
    assert capsys.readouterr().out.splitlines()[1] == "  prices (broadcast, without keys) key: str, value: int64"
