"""Savepoints rewritten from savepoints and from checkpoints of both backends contain only the planned changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from inspected_job import NOW_MS, SALES, SHOPS, Totals, stored_in
from state_contents import contents, entries_of

from statebackend import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    Savepoint,
    StateTtlConfig,
    ValueStateDescriptor,
)
from statebackend.checkpoint import SavepointExistsError
from statebackend.savepoint.errors import EntryError, PlanError, RemainsError, RepeatedKeyError
from statebackend.savepoint.rewrite import Plan, SavepointWriter, require_absent

pytestmark = pytest.mark.slow

TIMERS = "_timer_state/processing_user-timers"


@pytest.fixture(scope="module", params=[("heap", "job"), ("rocksdb", "job"), ("rocksdb", "savepoint")])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job directory with checkpoints of one backend, or a savepoint."""
    return stored_in(tmp_path_factory.mktemp("state"), *request.param)


@pytest.fixture(scope="module")
def stored_contents(stored: Path) -> dict[tuple[str, str], Any]:
    return contents(stored)


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stored_in(tmp_path_factory.mktemp("state"), "rocksdb", "savepoint")


def written(source: Path, target: Path, plan: Plan, **options: Any) -> Path:
    SavepointWriter.copy_of(source, target, **options).write(plan)
    return target


@pytest.mark.extended_after(1)
def test_an_empty_plan_copies_everything(stored: Path, stored_contents: Any, tmp_path: Path) -> None:
    copy = written(stored, tmp_path / "copy", Plan())
    assert contents(copy) == stored_contents
    assert list(Savepoint.open(copy).verify())


def test_files_of_unchanged_operators_are_copied_byte_by_byte(savepoint: Path, tmp_path: Path) -> None:
    groups = Savepoint.open(savepoint).metadata.max_parallelism
    plan = Plan().rename_operator("per shop", "shops / all").change_max_parallelism(groups)
    result = SavepointWriter.copy_of(savepoint, tmp_path / "copy").write(plan)
    assert result.copied_operators == ("shops / all",)
    copy = tmp_path / "copy"
    before, after = (Savepoint.open(path).metadata for path in (savepoint, copy))
    assert sorted(file.checksum for file in before.files) == sorted(file.checksum for file in after.files)
    assert next(file.path for file in after.files).startswith("operators/shops%20%2F%20all/")
    assert contents(copy) == {("shops / all", name): found for (_, name), found in contents(savepoint).items()}


def test_removed_and_renamed_states_leave_the_files_of_others_unchanged(savepoint: Path, tmp_path: Path) -> None:
    plan = (
        Plan()
        .remove_state("per shop", "seen")
        .rename_state("per shop", "totals", "a/b")
        .remove_state("per shop", "names")
    )
    copy = written(savepoint, tmp_path / "copy", plan)
    expected = contents(savepoint)
    del expected["per shop", "seen"], expected["per shop", "names"]
    expected["per shop", "a/b"] = expected.pop(("per shop", "totals"))
    assert contents(copy) == expected
    known = {file.checksum for file in Savepoint.open(savepoint).metadata.files}
    assert all(file.checksum in known for file in Savepoint.open(copy).metadata.files)


@pytest.mark.extended_after(3)
@pytest.mark.parametrize("max_parallelism", [1, 7, 32768])
def test_other_key_groups_change_nothing_else(
    stored: Path, stored_contents: Any, tmp_path: Path, max_parallelism: int
) -> None:
    copy = written(stored, tmp_path / "copy", Plan().change_max_parallelism(max_parallelism))
    assert contents(copy) == stored_contents
    opened = Savepoint.open(copy)
    assert opened.metadata.max_parallelism == max_parallelism
    assert [entry.value for entry in opened.read("per shop", "largest", key="shop 7")] == [81]


@pytest.mark.extended_after(2)
@pytest.mark.parametrize("parallelism", [1, 5])
def test_another_split_changes_nothing_else(
    stored: Path, stored_contents: Any, tmp_path: Path, parallelism: int
) -> None:
    plan = Plan().change_parallelism(parallelism).keep_keys("per shop", lambda shop: True)
    copy = written(stored, tmp_path / "copy", plan)
    assert contents(copy) == stored_contents
    assert Savepoint.open(copy).operators["per shop"].parallelism == parallelism


@pytest.mark.extended_after(1)
def test_a_customer_is_removed_from_every_state_of_every_kind(stored: Path, tmp_path: Path) -> None:
    own = {sale["amount"] for sale in SALES if sale["shop"] == "shop 7"}
    plan = Plan().keep_keys("per shop", lambda shop: shop != "shop 7")
    plan.keep_elements("per shop", "handled", lambda amount: amount not in own)
    copy = written(stored, tmp_path / "copy", plan)
    gone: Any = {
        "entries": lambda entry: entry.key == "shop 7",
        "elements": lambda element: element.key is None and element.value in own,
    }
    require_absent(Savepoint.open(copy), **gone, marker="shop 7")
    with pytest.raises(RemainsError, match=r"state 'totals'.*shop 7"):
        require_absent(Savepoint.open(stored), **gone)
    assert set(entries_of(copy, "per shop", "totals")) == set(SHOPS) - {"shop 7"}
    assert {entry.key for entry in Savepoint.open(copy).read("per shop", TIMERS)} == set(SHOPS) - {"shop 7"}


@pytest.mark.parametrize("marker", ["shop 7", b"\x00\x00\x00\x00\x00\x00\x00\x51"])
def test_a_marker_is_found_in_compressed_columns(savepoint: Path, marker: Any) -> None:
    with pytest.raises(RemainsError, match="in the column"):
        require_absent(Savepoint.open(savepoint), marker=marker)


@pytest.mark.extended_after(1)
def test_keys_are_converted_with_their_timers_and_times(stored: Path, tmp_path: Path) -> None:
    plan = Plan().change_keys("per shop", lambda shop: int(shop.removeprefix("shop ")), "bigint")
    copy = written(stored, tmp_path / "copy", plan)
    assert Savepoint.open(copy).key_columns("per shop") == ("bigint",)
    for state in ("totals", "timed", "amounts", "largest"):
        before = entries_of(stored, "per shop", state)
        after = entries_of(copy, "per shop", state)
        assert {f"shop {key}": repr(value) for key, value in after.items()} == {
            key: repr(value) for key, value in before.items()
        }
    timers = sorted((entry.key, entry.value) for entry in Savepoint.open(copy).read("per shop", TIMERS))
    assert timers == sorted(
        (int(sale["shop"].removeprefix("shop ")), NOW_MS + 1000 * sale["amount"] + 1) for sale in SALES
    )
    [entry] = Savepoint.open(copy).read("per shop", "timed", key=7)
    assert entry.last_access_ms == NOW_MS
    [entry] = Savepoint.open(copy).read("per shop", "seen", key=7)
    assert set(entry.last_access_ms) == {NOW_MS}


def test_a_key_can_become_one_of_several_columns(savepoint: Path, tmp_path: Path) -> None:
    plan = Plan().change_keys("per shop", lambda shop: (shop[:4], int(shop[5:])), ("string", "int"))
    copy = written(savepoint, tmp_path / "copy", plan)
    assert entries_of(copy, "per shop", "largest")["shop", 3] == entries_of(savepoint, "per shop", "largest")["shop 3"]


def test_keys_that_become_equal_are_rejected_before_anything_is_written(stored: Path, tmp_path: Path) -> None:
    plan = Plan().change_keys("per shop", lambda shop: len(shop), "int")
    with pytest.raises(RepeatedKeyError, match=r"operator 'per shop', state '.*': two entries have the same key [67]"):
        written(stored, tmp_path / "copy", plan)
    assert not (tmp_path / "copy").exists()


def test_keys_that_become_equal_are_merged_by_a_function_per_state(stored: Path, tmp_path: Path) -> None:
    add: Any = lambda one, other: one + other  # noqa: E731
    merge: Any = {
        "totals": lambda one, other: Totals(one.sales + other.sales, one.turnover + other.turnover),
        "timed": add,
        "amounts": add,
        "seen": add,
        "by amount": lambda one, other: one,
        "largest": max,
    }
    plan = Plan().change_keys("per shop", len, "int", merge=merge)
    copy = written(stored, tmp_path / "copy", plan, known=[Totals])
    by_length: dict[int, list[int]] = {}
    for sale in SALES:
        by_length.setdefault(len(sale["shop"]), []).append(sale["amount"])
    assert entries_of(copy, "per shop", "largest") == {key: max(own) for key, own in by_length.items()}
    totals = entries_of(copy, "per shop", "totals")
    assert {key: (one.sales, one.turnover) for key, one in totals.items()} == {
        key: (len(own), float(sum(own))) for key, own in by_length.items()
    }
    amounts = entries_of(copy, "per shop", "amounts")
    assert {key: sorted(own) for key, own in amounts.items()} == {key: sorted(own) for key, own in by_length.items()}
    assert set(entries_of(copy, "per shop", "by amount")) == {
        (key, amount) for key, own in by_length.items() for amount in own
    }


def test_values_are_converted_to_another_type(stored: Path, tmp_path: Path) -> None:
    plan = Plan().change_values("per shop", "totals", ValueStateDescriptor("totals", float), lambda one: one.turnover)
    plan.change_values(
        "per shop", "amounts", ListStateDescriptor("amounts", str), lambda own: [str(one) for one in own]
    )
    plan.change_entries(
        "per shop",
        "by amount",
        MapStateDescriptor("by amount", int, str),
        lambda entry: f"{entry.key} {entry.user_key}",
    )
    plan.change_values("per shop", "largest", ReducingStateDescriptor("smallest", min, int), lambda one: -one)
    plan.change_values(
        "per shop", "timed", ValueStateDescriptor("timed", str, ttl=StateTtlConfig(1000)), lambda one: str(one)
    )
    copy = written(stored, tmp_path / "copy", plan)
    totals = entries_of(stored, "per shop", "totals")
    assert entries_of(copy, "per shop", "totals") == {key: one.turnover for key, one in totals.items()}
    assert entries_of(copy, "per shop", "amounts") == {
        key: [str(one) for one in own] for key, own in entries_of(stored, "per shop", "amounts").items()
    }
    assert entries_of(copy, "per shop", "by amount")["shop 7", 1] == "shop 7 1"
    assert entries_of(copy, "per shop", "smallest")["shop 7"] == -81
    [entry] = Savepoint.open(copy).read("per shop", "timed", key="shop 7")
    assert (entry.value, entry.last_access_ms) == ("81", NOW_MS)


def test_a_key_with_an_empty_list_is_left_out(tmp_path: Path) -> None:
    marks = ListStateDescriptor("marks", int)
    entries = [("a", []), ("b", [1]), ("c", [2, 3])]
    plan = Plan().add_operator("one", "string").add_state("one", marks, entries)
    written_first = SavepointWriter.new(tmp_path / "first", max_parallelism=8).write(plan)
    assert written_first.rows == {"one": {"marks": 2}}
    plan = Plan().change_values("one", "marks", marks, lambda values: [value for value in values if value > 1])
    second = written(tmp_path / "first", tmp_path / "second", plan)
    assert entries_of(tmp_path / "first", "one", "marks") == {"b": [1], "c": [2, 3]}
    assert entries_of(second, "one", "marks") == {"c": [2, 3]}


def test_user_keys_of_another_type_are_sorted_by_their_new_bytes(tmp_path: Path) -> None:
    def named(key: type) -> MapStateDescriptor[Any, str]:
        return MapStateDescriptor("names", key, str)

    numbers = [(key, number, str(number)) for key in ("a", "b") for number in (-2, -1, 1, 2)]
    plan = Plan().add_operator("totals", "string").add_state("totals", named(int), numbers)
    SavepointWriter.new(tmp_path / "stored", max_parallelism=8).write(plan)
    plan = Plan().change_values("totals", "names", named(float), lambda value: value)
    SavepointWriter.copy_of(tmp_path / "stored", tmp_path / "copy").write(plan)
    found = Savepoint.open(tmp_path / "copy").read("totals", "names")
    assert sorted((one.key, one.user_key, one.value) for one in found) == numbers
    for file in (tmp_path / "copy").rglob("*.parquet"):
        rows = [tuple(row.values())[:4] for row in pq.read_table(file).to_pylist()]
        assert rows == sorted(rows)


@pytest.mark.extended_after(1)
def test_an_operator_is_split_by_its_keys_and_merged_again(stored: Path, stored_contents: Any, tmp_path: Path) -> None:
    route: Any = lambda shop: "short" if len(shop) == 6 else "long"  # noqa: E731
    plan = Plan().split_operator("per shop", ["short", "long"], route, operator_state="short")
    parts = written(stored, tmp_path / "parts", plan)
    assert set(entries_of(parts, "short", "totals")) == {shop for shop in SHOPS if len(shop) == 6}
    assert set(entries_of(parts, "long", "by amount")) | set(entries_of(parts, "short", "by amount")) == {
        (sale["shop"], sale["amount"]) for sale in SALES
    }
    whole = written(parts, tmp_path / "whole", Plan().merge_operators(["short", "long"], "per shop"))
    assert contents(whole) == stored_contents


def test_merging_operators_that_share_a_key_is_rejected_or_merged(savepoint: Path, tmp_path: Path) -> None:
    alike = Plan().remove_state("per shop", "handled").remove_state("per shop", "names")
    one = written(savepoint, tmp_path / "one", alike)
    both = (
        Plan()
        .add_operator("other", "string")
        .add_state("other", ReducingStateDescriptor("largest", max, int), [("shop 7", 1000), ("new", 1)])
    )
    plan = Plan().merge_operators(["per shop", "other"], "all")
    written(one, tmp_path / "two", both)
    with pytest.raises(RepeatedKeyError, match="state 'largest': two entries have the same key 'shop 7'"):
        written(tmp_path / "two", tmp_path / "rejected", plan)
    plan = Plan().merge_operators(["per shop", "other"], "all", merge={"largest": max})
    merged = entries_of(written(tmp_path / "two", tmp_path / "merged", plan), "all", "largest")
    assert (merged["shop 7"], merged["new"], merged["shop 8"]) == (1000, 1, 84)


def test_due_timers_are_reported_with_their_operator(savepoint: Path, tmp_path: Path) -> None:
    first = Savepoint.open(savepoint).metadata.timers_due[0]
    renamed = written(savepoint, tmp_path / "renamed", Plan().rename_operator("per shop", "shops"))
    [due] = Savepoint.open(renamed).metadata.timers_due
    assert (due.operator_uid, due.processing_time_ms) == ("shops", first.processing_time_ms)
    plan = (
        Plan()
        .keep_keys("per shop", lambda shop: shop == "shop 7")
        .add_timers("per shop", [("shop 1", 5), ("shop 1", 5)], time="event")
    )
    [due] = Savepoint.open(written(savepoint, tmp_path / "other", plan)).metadata.timers_due
    assert (due.event_time_ms, due.processing_time_ms) == (5, NOW_MS + 1000 * 1 + 1)
    assert [
        entry.value for entry in Savepoint.open(tmp_path / "other").read("per shop", "_timer_state/event_user-timers")
    ] == [5]


def test_a_target_with_content_is_left_unchanged(savepoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(SavepointExistsError, match=r"letter\.txt"):
        written(savepoint, tmp_path / "mine", Plan())
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_all_errors_of_a_plan_are_reported_at_once(savepoint: Path, tmp_path: Path) -> None:
    plan = (
        Plan().remove_operator("nobody").remove_state("per shop", "nothing").rename_state("per shop", "seen", "totals")
    )
    plan.change_max_parallelism(0)
    with pytest.raises(PlanError) as rejected:
        written(savepoint, tmp_path / "copy", plan)
    for part in (
        "change 1",
        "'nobody'",
        "change 2",
        "'nothing'",
        "change 3",
        "'totals' already",
        "max_parallelism is 0",
    ):
        assert part in str(rejected.value)
    assert not (tmp_path / "copy").exists()


def test_a_value_that_does_not_fit_the_new_type_is_rejected_with_its_key(savepoint: Path, tmp_path: Path) -> None:
    plan = Plan().change_values("per shop", "largest", ValueStateDescriptor("largest", int), str)
    with pytest.raises(EntryError, match=r"state 'largest', key 'shop \d+': the value does not fit"):
        written(savepoint, tmp_path / "copy", plan)
    assert not (tmp_path / "copy").exists()


def test_writing_reports_progress_of_all_rows(savepoint: Path, tmp_path: Path) -> None:
    reported: list[Any] = []
    plan = Plan().change_max_parallelism(7)
    SavepointWriter.copy_of(savepoint, tmp_path / "copy").write(plan, reported.append)
    written = [
        one for one in reported if one.operation.name == "SAVEPOINT" and one.is_done and one.state_name == "totals"
    ]
    assert sum(one.entries for one in written) == len(SHOPS)
    assert all(one.size_bytes and one.total_bytes for one in written)
    assert {one.subtask_index for one in written} == {0, 1}
