"""Plans that rename, split and merge operators: state that no job could find is rejected, and no loss is silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from statebackend import (
    BroadcastStateDescriptor,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    SplitListStateDescriptor,
    UnionListStateDescriptor,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.errors import PlanError
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.state.errors import StateRegistrationError
from statebackend.state.key_columns import columns_of_key
from statebackend.state.state_meta import decode_meta

NUMBER = ValueStateDescriptor("number", int)
TIMERS = "_timer_state/event_user-timers"


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    plan = Plan()
    for uid, more in (("one", int), ("two", str)):
        plan.add_operator(uid, "string").add_state(uid, NUMBER, [(uid, 1)])
        plan.add_timers(uid, [(uid, 5)], time="event")
        plan.add_operator_state(uid, SplitListStateDescriptor("list", more), [more(1), more(2)])
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    return tmp_path / "stored"


def copied(stored: Path, plan: Plan) -> Savepoint:
    target = stored.parent / "copy"
    SavepointWriter.copy_of(stored, target).write(plan)
    return Savepoint.open(target)


def rejected(stored: Path, plan: Plan, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        copied(stored, plan)
    assert not (stored.parent / "copy").exists()


def key_types(path: Path, uid: str) -> list[tuple[int, int, tuple[str, ...]]]:
    """The key groups of each subtask of an operator, with the types of its key columns."""
    [operator] = [one for one in Savepoint.open(path).metadata.operators if one.uid == uid]
    return [
        (one.key_group_start, one.key_group_end, columns_of_key(meta.key_snapshot.restore_serializer()))
        for one in operator.keyed_handles
        for meta in [decode_meta(one.meta, len(one.files))]
    ]


def test_an_operator_without_keyed_state_keeps_its_key_types(stored: Path, tmp_path: Path) -> None:
    plan = Plan().remove_state("one", "number").remove_state("one", TIMERS).add_operator("three", ["string", "bigint"])
    copied(stored, plan)
    known = key_types(tmp_path / "copy", "one")
    assert known == [(start, end, ("string",)) for start, end, _ in key_types(stored, "one")]
    assert known
    assert key_types(tmp_path / "copy", "three") == [(0, 7, ("string", "bigint"))]
    # The next plan uses these key types.
    again = Plan().change_max_parallelism(16).keep_elements("one", "list", lambda element: element > 1)
    again.add_state("one", NUMBER, [("a", 7)]).change_keys("three", lambda key: key[1], "bigint")
    SavepointWriter.copy_of(tmp_path / "copy", tmp_path / "again").write(again)
    assert [(one.key, one.value) for one in Savepoint.open(tmp_path / "again").read("one", "number")] == [("a", 7)]
    assert key_types(tmp_path / "again", "three") == [(0, 15, ("bigint",))]


class Ignores(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(("schema", "is_taken_over"), [("k string", True), ("k bigint", False)])
def test_a_start_checks_the_key_types_of_an_operator_whose_last_keyed_state_was_removed(
    stored: Path, schema: str, is_taken_over: bool
) -> None:
    copied(stored, Plan().remove_operator("two").remove_state("one", "number").remove_state("one", TIMERS))
    environment = LocalStreamEnvironment(max_parallelism=8)
    environment.from_elements([], schema).key_by("k").process(Ignores(), uid="one", schema=schema).sink_to([])
    [report] = environment.check(from_savepoint=stored.parent / "copy", allow_non_restored_state=True).values()
    assert report.is_compatible is is_taken_over


def test_a_renamed_operator_keeps_its_name_unless_it_was_its_uid(tmp_path: Path) -> None:
    plan = Plan().add_operator("one", "string").add_operator("two", "string", name="Totals per shop")
    for uid in ("one", "two"):
        plan.add_state(uid, NUMBER, [("a", 1)])
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    found = copied(tmp_path / "stored", Plan().rename_operator("one", "three").rename_operator("two", "four"))
    assert {uid: one.name for uid, one in found.operators.items()} == {"three": "three", "four": "Totals per shop"}


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "x" * 201, 5, None, [], TIMERS, "_timer_state/x"])
@pytest.mark.parametrize("state", ["number", "list"])
def test_a_state_name_that_no_job_would_find_is_rejected(stored: Path, state: str, name: Any) -> None:
    rejected(stored, Plan().rename_state("one", state, name).remove_state("two", TIMERS), "RenameState.*name")


@pytest.mark.parametrize("name", [TIMERS, "_timer_state/x"])
def test_state_cannot_be_renamed_to_timers(stored: Path, name: str) -> None:
    for plan in (
        Plan().add_state("one", ValueStateDescriptor(name, int), []),
        Plan().change_values("one", "number", ValueStateDescriptor(name, int), lambda value: value),
        Plan().add_operator_state("one", BroadcastStateDescriptor(name, str, int), {}),
    ):
        rejected(stored, plan, "those of timers")


def test_timers_are_renamed_to_another_service_only(stored: Path) -> None:
    rejected(stored, Plan().rename_state("one", TIMERS, "timers"), "is not a name of its timers")
    to = "_timer_state/processing_user-timers"
    found = copied(stored, Plan().rename_state("one", TIMERS, to)).read("one", to)
    assert [(entry.key, entry.value) for entry in found] == [("one", 5)]


def test_a_timer_service_has_a_valid_name(stored: Path) -> None:
    rejected(stored, Plan().add_timers("one", [("a", 1)], time="event", service="a\0"), "control character U\\+0000")


@pytest.mark.parametrize("name", [["one"], {}, 5, None])
def test_an_invalid_name_is_reported_as_unknown(stored: Path, name: Any) -> None:
    for plan in (
        Plan().remove_operator(name),
        Plan().rename_operator(name, "three"),
        Plan().remove_state(name, "list"),
    ):
        rejected(stored, plan, "there is no operator .*; there are 'one', 'two'")
    for plan in (
        Plan().remove_state("one", name),
        Plan().rename_state("one", name, "other"),
        Plan().change_values("one", name, NUMBER, bool),
    ):
        rejected(stored, plan, "operator 'one' has no keyed state")
    rejected(stored, Plan().keep_elements("one", name, bool), "operator 'one' has no operator state")


@pytest.mark.parametrize("descriptor", [ValueStateDescriptor, SplitListStateDescriptor])
def test_a_lone_surrogate_is_rejected_in_a_state_name(descriptor: Any) -> None:
    with pytest.raises(StateRegistrationError, match="surrogate"):
        descriptor("a\ud800", int)


@pytest.mark.parametrize("uid", ["", " ", "a\0b", "a\nb", "\ud800", "x" * 201, 5, None, []])
def test_an_invalid_uid_of_an_operator_is_rejected(stored: Path, uid: Any) -> None:
    for plan in (
        Plan().add_operator(uid),
        Plan().rename_operator("one", uid),
        Plan().merge_operators(["one"], uid),
    ):
        rejected(stored, plan, "uid")


@pytest.mark.parametrize("name", ["", 5, "\ud800"])
def test_an_operator_name_that_cannot_be_encoded_is_rejected(stored: Path, name: Any) -> None:
    rejected(stored, Plan().add_operator("three", name=name), "the name of an operator")


def test_timers_added_to_a_part_of_a_split_operator_are_not_in_the_other_part(stored: Path) -> None:
    plan = Plan().split_operator("one", ["a", "b"], lambda key: "a", operator_state="a")
    savepoint = copied(stored, plan.add_timers("b", [("more", 7)], time="event"))
    assert [(timer.key, timer.value) for timer in savepoint.read("a", TIMERS)] == [("one", 5)]
    assert [(timer.key, timer.value) for timer in savepoint.read("b", TIMERS)] == [("more", 7)]


def added(left: int, right: int) -> int:
    return left + right


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan.change_values("one", "number", NUMBER, lambda value: value + 1),
        lambda plan: plan.keep_entries("one", lambda entry: entry.value > 1),
        lambda plan: plan.change_keys("one", lambda key: "all", "string"),
        lambda plan: plan.change_keys("one", lambda key: "all", "string", merge={"number": max}),
        lambda plan: plan.merge_operators(["one", "two"], "both", merge={"number": max}),
    ],
)
def test_merged_values_are_not_changed_again(stored: Path, change: Any) -> None:
    merged = Plan().remove_state("two", "list").change_keys("one", lambda key: "x", "string", merge={"number": added})
    rejected(stored, change(merged), "an earlier change merges the values of 'number'.* or into another plan")


def test_keys_of_merged_values_may_be_removed(stored: Path) -> None:
    plan = Plan().remove_state("one", "list").remove_state("two", "list")
    for uid in ("one", "two"):
        plan.change_keys(uid, lambda key: key[0], "string")
    plan.merge_operators(["one", "two"], "both", merge={"number": added}).keep_keys("both", lambda key: key == "t")
    assert [(entry.key, entry.value) for entry in copied(stored, plan).read("both", "number")] == [("t", 1)]


def test_an_operator_is_split_into_at_least_one_part(stored: Path) -> None:
    rejected(
        stored,
        Plan().split_operator("one", [], lambda key: "a", operator_state="a"),
        "split into no operators; .*remove",
    )


@pytest.mark.parametrize("names", ["xy", 7, {"x", "y"}, ["x", 5], None])
def test_lists_of_names_must_be_lists(names: Any) -> None:
    for change in (
        lambda: Plan().split_operator("one", names, lambda key: "x"),
        lambda: Plan().merge_operators(names, "x"),
        lambda: Plan().keep_keys("one", bool, states=names or 7),
        lambda: Plan().keep_entries("one", bool, states=names or 7),
    ):
        with pytest.raises(PlanError, match="must be a list of names"):
            change()


@pytest.mark.parametrize("merge", [max, "max", {"number": "max"}, [("number", max)]])
def test_merges_are_functions_by_state_name(merge: Any) -> None:
    for change in (
        lambda: Plan().merge_operators(["one", "two"], "x", merge=merge),
        lambda: Plan().change_keys("one", str, "string", merge=merge),
    ):
        with pytest.raises(PlanError, match="merge must map state names to functions"):
            change()


@pytest.mark.parametrize("uids", [[], ["one", "one"], ["one", "two", "one"]])
def test_merged_operators_are_several_and_distinct(stored: Path, uids: list[str]) -> None:
    rejected(stored, Plan().merge_operators(uids, "x"), "merge one or more operators, each of them once")


@pytest.mark.parametrize("number", [8.0, 7.5, True, "7", None])
def test_numbers_of_key_groups_and_parts_are_integers(stored: Path, number: Any) -> None:
    for plan in (Plan().change_max_parallelism(number), Plan().change_parallelism(number)):
        rejected(stored, plan, "parallelism is a whole number, not")
    with pytest.raises(PlanError, match="max_parallelism must be a whole number, not"):
        SavepointWriter.new(stored.parent / "new", max_parallelism=number).write(Plan())


def test_an_invalid_descriptor_of_a_state_is_rejected(stored: Path) -> None:
    without_keys: Any = SplitListStateDescriptor("other", int)
    keyed: Any = ValueStateDescriptor("other", int)
    no_descriptor: Any = int
    for plan in (
        Plan().add_state("one", no_descriptor, []),
        Plan().replace_state("one", without_keys, []),
        Plan().change_values("one", "number", no_descriptor, lambda value: value),
        Plan().add_operator_state("one", no_descriptor, []),
        Plan().add_operator_state("one", keyed, []),
    ):
        rejected(stored, plan, "is not a descriptor of (keyed state|state without keys)")


def elements(savepoint: Savepoint, uid: str, name: str) -> list[Any]:
    return sorted(entry.value for entry in savepoint.read_operator_state(uid, name))


def test_the_former_name_of_a_state_can_be_reused(stored: Path) -> None:
    numbers = SplitListStateDescriptor("list", int)
    copied(stored, Plan().rename_state("one", "list", "former").add_operator_state("one", numbers, [7, 8, 9]))
    plan = Plan().rename_state("one", "list", "second").add_operator_state("one", numbers, [0])
    plan.keep_elements("one", "second", lambda element: element != 8)
    SavepointWriter.copy_of(stored.parent / "copy", stored.parent / "again").write(plan)
    savepoint = Savepoint.open(stored.parent / "again")
    assert elements(savepoint, "one", "former") == [1, 2]
    assert elements(savepoint, "one", "second") == [7, 9]
    assert elements(savepoint, "one", "list") == [0]
    assert list(savepoint.verify())


def test_swapped_states_of_merged_operators_keep_their_elements(stored: Path) -> None:
    # Both operators have a file with the same name, and each state gets the former name of the other.
    plan = Plan().rename_state("one", "list", "from one").merge_operators(["one", "two"], "both")
    savepoint = copied(stored, plan)
    assert elements(savepoint, "both", "from one") == [1, 2]
    assert elements(savepoint, "both", "list") == ["1", "2"]
    assert list(savepoint.verify())


def test_paths_do_not_grow_with_every_merge(tmp_path: Path) -> None:
    numbers = SplitListStateDescriptor("list", int)
    first = Plan().add_operator("one").add_operator_state("one", numbers, [0])
    SavepointWriter.new(tmp_path / "0", max_parallelism=8).write(first)
    for number in range(1, 5):
        plan = Plan().add_operator("other").add_operator_state("other", numbers, [number])
        SavepointWriter.copy_of(tmp_path / f"{number - 1}", tmp_path / f"{number}, apart").write(plan)
        merge = Plan().merge_operators(["one", "other"], "one")
        SavepointWriter.copy_of(tmp_path / f"{number}, apart", tmp_path / f"{number}").write(merge)
    savepoint = Savepoint.open(tmp_path / "4")
    assert elements(savepoint, "one", "list") == [0, 1, 2, 3, 4]
    assert list(savepoint.verify())
    names = {file.path.rsplit("/", 1)[0] for file in savepoint.metadata.files}
    assert names == {"operators/one/operator=split/list"}
    assert len({len(file.path) for file in savepoint.metadata.files}) == 1


@pytest.mark.parametrize("kind", [SplitListStateDescriptor, UnionListStateDescriptor])
def test_lists_of_two_types_are_not_joined(tmp_path: Path, kind: Any) -> None:
    plan = Plan()
    for uid, element in (("one", int), ("two", str), ("three", int)):
        plan.add_operator(uid).add_operator_state(uid, kind("list", element), [element(uid == "three")])
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    rejected(
        tmp_path / "stored", Plan().merge_operators(["one", "two"], "x"), "'list' of operator 'two' are of another"
    )
    rejected(tmp_path / "stored", Plan().merge_operators(["one", "three", "two"], "x"), "of operator 'two'")
    merged = copied(tmp_path / "stored", Plan().merge_operators(["three", "one"], "x"))
    assert elements(merged, "x", "list") == [0, 1]


@attrs.frozen
class Order:
    """The elements of an operator state."""

    amount: int


@pytest.mark.parametrize("mode", [SplitListStateDescriptor, BroadcastStateDescriptor])
def test_elements_are_passed_as_records_of_the_given_classes(tmp_path: Path, mode: Any) -> None:
    orders = [Order(1), Order(5)]
    if mode is BroadcastStateDescriptor:
        descriptor, elements = mode("orders", Order, int), dict.fromkeys(orders, 7)
    else:
        descriptor, elements = mode("orders", Order), orders
    plan = Plan().add_operator("o").add_operator_state("o", descriptor, elements)
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    large = Plan().keep_elements("o", "orders", lambda order: isinstance(order, Order) and order.amount > 3)
    SavepointWriter.copy_of(tmp_path / "stored", tmp_path / "copy", known=[Order]).write(large)
    [left] = Savepoint.open(tmp_path / "copy", known=[Order]).read_operator_state("o", "orders")
    assert Order(5) in (left.key, left.value)


class KeepBoth(KeyedProcessFunction[str, Any, Any]):
    """Uses one name for a keyed state and an operator state."""

    def open(self, context: RuntimeContext) -> None:
        self.all = context.operator_state.get_list_state(SplitListStateDescriptor("number", int))
        self.own = context.get_state(NUMBER)

    def process_element(self, value: Any, context: ProcessContext[str]) -> Iterator[Any]:
        self.own.update(value.n)
        self.all.add(value.n)
        return iter(())


def test_a_name_of_keyed_and_operator_state_is_removed_for_both_and_cannot_be_renamed(tmp_path: Path) -> None:
    environment = LocalStreamEnvironment(max_parallelism=8)
    numbered = environment.from_elements([{"k": "a", "n": 1}], "k string, n bigint").key_by("k")
    numbered.process(KeepBoth(), uid="one", schema="k string, n bigint").sink_to([])
    environment.execute().savepoint(tmp_path / "stored")
    stored = Savepoint.open(tmp_path / "stored").operators["one"]
    assert ("number" in stored.states, "number" in stored.operator_states) == (True, True)
    rejected(tmp_path / "stored", Plan().rename_state("one", "number", "other"), "which one is to")
    left = copied(tmp_path / "stored", Plan().remove_state("one", "number")).operators["one"]
    assert ("number" in left.states, "number" in left.operator_states) == (False, False)
