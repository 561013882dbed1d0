"""A plan of several changes writes what its changes write one after the other, each from the savepoint before it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

import pytest
from effort import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from state_contents import contents

from statebackend import (
    BroadcastStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    Savepoint,
    SplitListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.savepoint.errors import PlanError, RepeatedKeyError
from statebackend.savepoint.rewrite import Plan, SavepointWriter

pytestmark = pytest.mark.slow

Change = Callable[[Plan], Plan]

VALUE = ValueStateDescriptor("value", int)
LIST = ListStateDescriptor("list", int)
MAP = MapStateDescriptor("map", str, int)
NEW_UIDS = ("one", "two", "three", "four")
NAMES = ("value", "list", "map", "text")


def filled(plan: Plan, uid: str) -> Plan:
    """Add an operator with entries of every kind."""
    return (
        plan.add_operator(uid, "string")
        .add_state(uid, VALUE, [("a", 1), ("b", 2)])
        .add_state(uid, LIST, [("a", [1, 2]), ("c", [3])])
        .add_state(uid, MAP, [("a", "x", 1), ("a", "y", 2), ("d", "x", 3)])
        .add_timers(uid, [("a", 5), ("b", 6)], time="event")
        .add_operator_state(uid, SplitListStateDescriptor("elements", int), [1, 2, 3])
        .add_operator_state(uid, BroadcastStateDescriptor("rules", str, int), {"x": 1, "y": 2})
    )


def below(last: str) -> Callable[[str], bool]:
    return lambda key: key < last


def changes(operators: Mapping[str, Collection[str]]) -> st.SearchStrategy[Change]:
    """Changes of these operators, given with the names of their states. Most can be written."""
    free = st.sampled_from([uid for uid in NEW_UIDS if uid not in operators] or NEW_UIDS)
    if not operators:
        return st.builds(lambda to: lambda plan: filled(plan, to), free)
    uids, numbers, keys = st.sampled_from(sorted(operators)), st.integers(-3, 3), st.sampled_from("abcde")
    places = st.sampled_from([(uid, name) for uid, names in operators.items() for name in names] or [("one", "none")])
    return st.one_of(
        st.builds(
            lambda uid, ms: lambda plan: plan.add_timers(uid, [("b", ms)], time="event"), uids, st.integers(5, 8)
        ),
        st.builds(
            lambda uid, to, last: (
                lambda plan: plan.split_operator(
                    uid, [uid, to], lambda key: to if key > last else uid, operator_state=to
                )
            ),
            uids,
            free,
            keys,
        ),
        st.builds(
            lambda more, into: lambda plan: plan.merge_operators(more, into),
            st.lists(uids, min_size=1, max_size=2, unique=True),
            free,
        ),
        st.builds(lambda to: lambda plan: filled(plan, to), free),
        st.builds(lambda uid: lambda plan: plan.remove_operator(uid), uids),
        st.builds(lambda uid, to: lambda plan: plan.rename_operator(uid, to), uids, free),
        st.builds(lambda uid, number: lambda plan: plan.replace_state(uid, VALUE, [("e", number)]), uids, numbers),
        st.builds(lambda place: lambda plan: plan.remove_state(*place), places),
        st.builds(lambda place, to: lambda plan: plan.rename_state(*place, to), places, st.sampled_from(NAMES)),
        st.builds(
            lambda uid, number: lambda plan: plan.change_values(uid, "value", VALUE, lambda value: value + number),
            uids,
            numbers,
        ),
        st.builds(
            lambda uid: lambda plan: plan.change_values(uid, "value", ValueStateDescriptor("text", str), str), uids
        ),
        st.builds(lambda uid, last: lambda plan: plan.keep_keys(uid, below(last)), uids, keys),
        st.builds(
            lambda place, last: (
                lambda plan: plan.keep_entries(place[0], lambda entry: entry.key < last, states=[place[1]])
            ),
            places,
            keys,
        ),
        st.builds(
            lambda uid, number: lambda plan: plan.keep_elements(uid, "elements", lambda element: element > number),
            uids,
            numbers,
        ),
        st.builds(
            lambda uid, more: lambda plan: plan.change_keys(uid, lambda key: key + more, "string"),
            uids,
            st.text("z", max_size=2),
        ),
        st.builds(lambda count: lambda plan: plan.change_max_parallelism(count), st.sampled_from([4, 128])),
    )


def is_written(source: Path, target: Path, parts: Iterable[Change], only_reason: str = "") -> bool:
    """Write a copy by a plan of these changes. Return False if the plan is rejected for this reason."""
    plan = Plan()
    for change in parts:
        change(plan)
    try:
        SavepointWriter.copy_of(source, target).write(plan)
    except (PlanError, RepeatedKeyError) as error:
        if only_reason not in str(error):
            raise
        return False
    return True


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("state") / "stored"
    SavepointWriter.new(path, max_parallelism=8).write(filled(filled(Plan(), "one"), "two"))
    return path


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), count=st.integers(2, 6))
def test_a_plan_writes_what_its_changes_write_one_by_one(stored: Path, data: st.DataObject, count: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        before, written = stored, list[Change]()
        for number in range(count):
            operators = {
                uid: [*one.states, *one.operator_states] for uid, one in Savepoint.open(before).operators.items()
            }
            change = data.draw(changes(operators))
            after, whole = Path(directory, f"{number}-one"), Path(directory, f"{number}-all")
            if not is_written(before, after, [change]):
                continue
            # A plan does not change the entries that it adds.
            if is_written(stored, whole, [*written, change], "come from the plan itself"):
                assert contents(whole) == contents(after)
                before = after
                written.append(change)
