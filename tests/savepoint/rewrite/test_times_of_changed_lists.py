"""The TTL times of list elements in lists that a plan replaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from statebackend import ListStateDescriptor, Savepoint, StateTtlConfig, ValueStateDescriptor
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.entry_codec import times_after_change
from statebackend.savepoint.stored_entries import StateEntry

TTL = StateTtlConfig(1000)
NUMBERS = ListStateDescriptor("list", int, ttl=TTL)


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    entries = [
        StateEntry(0, "a", None, None, [1, 2, 3], (10, 30, 20)),
        StateEntry(0, "b", None, None, [4], (99,)),
        StateEntry(0, "c", None, None, [], ()),
    ]
    plan = Plan().add_operator("o", "string").add_state("o", NUMBERS, entries)
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    return tmp_path / "stored"


def timed(stored: Path, plan: Plan) -> dict[Any, tuple[Any, Any]]:
    target = stored.parent / "copy"
    SavepointWriter.copy_of(stored, target).write(plan)
    return {entry.key: (entry.value, entry.last_access_ms) for entry in Savepoint.open(target).read("o", "list")}


def reverse_in_place(elements: list[int]) -> list[int]:
    elements.reverse()
    return elements


class Incomparable:
    """Raises when it is compared."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("there is no such comparison")

    __hash__ = object.__hash__


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (list, ([1, 2, 3], (10, 30, 20))),
        (tuple, ([1, 2, 3], (10, 30, 20))),
        (lambda elements: elements[::-1], ([3, 2, 1], (30, 30, 30))),
        (reverse_in_place, ([3, 2, 1], (30, 30, 30))),
        (lambda elements: elements[:1], ([1], (30,))),
        (lambda elements: [one + 1 for one in elements], ([2, 3, 4], (30, 30, 30))),
        (lambda elements: [*elements, 9], ([1, 2, 3, 9], (30, 30, 30, 30))),
    ],
)
@pytest.mark.parametrize("has_planned_entries", [False, True])
def test_a_replaced_list_has_the_latest_time_for_all(
    stored: Path, function: Any, expected: Any, has_planned_entries: bool
) -> None:
    plan = Plan().keep_keys("o", lambda key: key == "a")
    if has_planned_entries:
        plan.change_entries("o", "list", NUMBERS, lambda entry: function(entry.value))
    else:
        plan.change_values("o", "list", NUMBERS, function)
    assert timed(stored, plan) == {"a": expected}


def test_elements_that_cannot_be_compared_are_different() -> None:
    one, other = Incomparable(), Incomparable()
    assert times_after_change([one, other], [one, other], (10, 30)) == (10, 30)
    assert times_after_change([one, other], [other, one], (10, 30)) == (30, 30)


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        (lambda one, other: one + other, ([4, 1, 2, 3], (99, 10, 30, 20))),
        (lambda one, other: [*one, *other], ([4, 1, 2, 3], (99, 10, 30, 20))),
        (lambda one, other: one.extend(other) or one, ([4, 1, 2, 3], (99, 10, 30, 20))),
        (lambda one, other: other + one, ([1, 2, 3, 4], (99, 99, 99, 99))),
        (lambda one, other: other, ([1, 2, 3], (99, 99, 99))),
    ],
)
def test_merged_lists_keep_the_times_of_their_elements_only_if_concatenated(
    stored: Path, merge: Any, expected: Any
) -> None:
    plan = Plan().keep_keys("o", lambda key: key != "c")
    # Key b comes first, in the order of the former key groups.
    plan.change_keys("o", lambda key: "same", "string", merge={"list": merge})
    assert timed(stored, plan) == {"same": expected}


def test_a_list_that_becomes_one_value_has_the_latest_time(stored: Path) -> None:
    plan = Plan().keep_keys("o", lambda key: key != "c")
    plan.change_values("o", "list", ValueStateDescriptor("list", int, ttl=TTL), sum)
    assert timed(stored, plan) == {"a": (6, 30), "b": (4, 99)}
