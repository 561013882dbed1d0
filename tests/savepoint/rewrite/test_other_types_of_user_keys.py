"""Maps whose descriptor has another user key type: keys keep their values, or the plan is rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from state_contents import entries_of

from statebackend import MapStateDescriptor
from statebackend.savepoint.errors import EntryError, RepeatedKeyError
from statebackend.savepoint.rewrite import Plan, SavepointWriter

# The order of these numbers as floats differs from the order of their bytes as integers.
_AMOUNTS = [-2, -1, 0, 97, 98]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    entries = [("k", amount, amount) for amount in _AMOUNTS] + [("l", 1 << 53, 1), ("l", (1 << 53) + 1, 2)]
    plan = Plan().add_operator("o", "string").add_state("o", MapStateDescriptor("m", int, int), entries)
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    return tmp_path / "stored"


def copied(stored: Path, plan: Plan) -> Path:
    target = stored.parent / "copy"
    SavepointWriter.copy_of(stored, target).write(plan)
    return target


@pytest.mark.parametrize("has_planned_entries", [False, True])
def test_user_keys_are_rewritten_in_the_new_type(stored: Path, has_planned_entries: bool) -> None:
    plan, descriptor = Plan().keep_keys("o", lambda key: key == "k"), MapStateDescriptor("m", float, str)
    if has_planned_entries:
        plan.change_entries("o", "m", descriptor, lambda entry: f"{entry.user_key} {entry.value}")
    else:
        plan.change_values("o", "m", descriptor, lambda value: f"{value} {value}")
    path = copied(stored, plan)
    found = entries_of(path, "o", "m")
    assert found == {("k", float(amount)): f"{amount} {amount}" for amount in _AMOUNTS}
    assert {type(user_key) for _, user_key in found} == {float}
    # The entries are in the order of the new bytes. A job could not find them otherwise.
    back: Any = Plan().change_max_parallelism(16)
    SavepointWriter.copy_of(path, stored.parent / "again").write(back)
    assert list(entries_of(path, "o", "m")) == list(entries_of(stored.parent / "again", "o", "m"))


def test_user_keys_that_do_not_fit_the_new_type_are_rejected(stored: Path) -> None:
    with pytest.raises(EntryError, match=r"state 'm', key '[kl]': the user key does not fit"):
        copied(stored, Plan().change_values("o", "m", MapStateDescriptor("m", str, int), lambda value: value))
    assert not (stored.parent / "copy").exists()


def test_user_keys_that_become_equal_are_rejected(stored: Path) -> None:
    plan = Plan().change_values("o", "m", MapStateDescriptor("m", float, int), lambda value: value)
    with pytest.raises((RepeatedKeyError, EntryError), match="key 'l'"):
        copied(stored, plan)
    assert not (stored.parent / "copy").exists()
