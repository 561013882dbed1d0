"""Tables of keyed state, timers and operator state have the entries that reading one by one returns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from inspected_job import SALES
from pyspark.sql.datasource import EqualNullSafe, EqualTo, Filter, GreaterThan, In, LessThanOrEqual, Not
from tables_read import parts_of, reader_of, rows_of

from statebackend import Savepoint
from statebackend.checkpoint.errors import SavepointError
from statebackend.savepoint.errors import UnknownOperatorError, UnknownStateError
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.spark.state_tables.options import StateTableError
from statebackend.state.key_groups import KeyGroupRange

STATES = ("totals", "timed", "amounts", "seen", "by amount", "largest", "_timer_state/processing_user-timers")


def as_rows(path: Path, state: str, **options: Any) -> list[dict[str, Any]]:
    """The entries of a state as rows."""
    rows = []
    for entry in Savepoint.open(path).read("per shop", state, **options):
        row = {name: plain_value(getattr(entry, name)) for name in ("key_group", "key", "value")}
        if state == "by amount":
            row["user_key"] = entry.user_key
        if entry.last_access_ms is not None:
            row["last_access_ms"] = plain_value(entry.last_access_ms)
        rows.append(row)
    return rows


def sorted_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(str(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("state", STATES)
def test_rows_are_the_entries(stored: Path, state: str) -> None:
    assert sorted_rows(rows_of(stored, state=state)) == sorted_rows(as_rows(stored, state))


@pytest.mark.extended_after(6)
@pytest.mark.parametrize("state", STATES)
def test_each_single_column_equals_that_of_the_whole_table(stored: Path, state: str) -> None:
    whole = rows_of(stored, state=state)
    for name in whole[0]:
        assert rows_of(stored, state=state, columns=name) == [{name: row[name]} for row in whole]
    backwards = ",".join(reversed(list(whole[0])))
    assert rows_of(stored, state=state, columns=backwards) == whole


@pytest.mark.extended_after(8)
@pytest.mark.parametrize("state", ["totals", "amounts", "by amount"])
@pytest.mark.parametrize(
    ("condition", "keys"),
    [
        (EqualTo(("key",), "shop 3"), {"shop 3"}),
        (EqualNullSafe(("key",), "shop 3"), {"shop 3"}),
        (In(("key",), ("shop 3", "shop 17", "no shop", None)), {"shop 3", "shop 17"}),
        (EqualTo(("key",), "no shop"), set()),
    ],
)
def test_only_keys_that_a_query_names_are_read(stored: Path, state: str, condition: Filter, keys: set[str]) -> None:
    found = rows_of(stored, condition, state=state)
    assert sorted_rows(found) == sorted_rows([row for row in as_rows(stored, state) if row["key"] in keys])


def test_only_partitions_that_can_have_rows_are_planned(stored: Path) -> None:
    assert len(parts_of(reader_of(stored, state="totals"))) == 2
    [one] = parts_of(reader_of(stored, EqualTo(("key",), "shop 3"), state="totals"))
    [row] = as_rows(stored, "totals", key="shop 3")
    assert one.value.key_groups == (KeyGroupRange(row["key_group"], row["key_group"]),)
    assert not parts_of(reader_of(stored, EqualTo(("key",), "a"), EqualTo(("key",), "b"), state="totals"))


def test_filters_on_key_groups_prune_and_others_do_not(stored: Path) -> None:
    everything = as_rows(stored, "by amount")
    half = rows_of(stored, LessThanOrEqual(("key_group",), 63), GreaterThan(("key_group",), 9), state="by amount")
    assert sorted_rows(half) == sorted_rows([row for row in everything if 9 < row["key_group"] <= 63])
    for left_to_spark in (
        EqualTo(("user_key",), 7),
        Not(EqualTo(("key",), "shop 3")),
        EqualTo(("key",), 3),
        EqualNullSafe(("key",), None),
    ):
        assert len(rows_of(stored, left_to_spark, state="by amount")) == len(everything)


def test_timers_are_rows_with_their_domain_service_and_time(stored: Path) -> None:
    rows = rows_of(stored, kind="timers")
    assert sorted((row["key"], row["timestamp_ms"]) for row in rows) == sorted(
        (entry.key, entry.value) for entry in Savepoint.open(stored).read("per shop", STATES[-1])
    )
    assert {(row["operator"], row["service"], row["domain"]) for row in rows} == {
        ("per shop", "user-timers", "processing")
    }
    assert all(row["timestamp"].timestamp() * 1000 == pytest.approx(row["timestamp_ms"]) for row in rows)
    near = rows_of(stored, EqualTo(("key",), "shop 3"), kind="timers")
    assert [row for row in near if row["key"] == "shop 3"] == [row for row in rows if row["key"] == "shop 3"]
    assert len({row["key_group"] for row in near}) == 1
    assert rows_of(stored, kind="timers", columns="domain") == [{"domain": "processing"}] * len(SALES)
    assert rows_of(stored, kind="timers", state="_timer_state/event_user-timers") == []


def test_operator_state_has_rows_of_subtasks_or_one_copy(stored: Path) -> None:
    handled = rows_of(stored, kind="operator", state="handled")
    assert sorted(row["value"] for row in handled) == sorted(sale["amount"] for sale in SALES)
    assert {row["subtask"] for row in handled} == {0, 1}
    names = rows_of(stored, kind="operator", state="names")
    assert names == [{"subtask": 0, "key": "all", "value": 1}, {"subtask": 1, "key": "all", "value": 1}]
    assert rows_of(stored, kind="broadcast", state="names", columns="value,key") == [{"value": 1, "key": "all"}]


def test_a_missing_state_is_reported_with_the_present_ones(stored: Path) -> None:
    with pytest.raises(StateTableError, match=r"option state is missing: .*'per shop' has the keyed states totals"):
        rows_of(stored)
    with pytest.raises(UnknownStateError, match=r"no keyed state 'total'; it has totals"):
        rows_of(stored, state="total")
    with pytest.raises(UnknownOperatorError, match=r"no operator 'per ship' .*there are per shop"):
        rows_of(stored, operator="per ship", state="totals")
    with pytest.raises(UnknownStateError, match=r"no operator state 'totals': .* handled, names"):
        rows_of(stored, kind="operator", state="totals")
    with pytest.raises(SavepointError, match="no broadcast state 'handled'"):
        rows_of(stored, kind="broadcast", state="handled")
    with pytest.raises(StateTableError, match="has no timers in a state 'totals'; it has them in _timer_state"):
        rows_of(stored, kind="timers", state="totals")
    with pytest.raises(StateTableError, match="no column 'values'; there are key_group, key, value"):
        rows_of(stored, state="totals", columns="values")


def test_a_large_file_is_read_in_partitions_with_each_row_once(
    savepoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for state in ("by amount", "amounts"):
        whole = rows_of(savepoint, state=state)
        with monkeypatch.context() as small:
            small.setattr("statebackend.spark.state_tables.tables.PART_BYTES", 100)
            small.setattr("statebackend.state.canonical_files.READ_AT_ONCE_BYTES", 0)
            parts = parts_of(reader_of(savepoint, state=state))
            assert len(parts) > 16
            assert [part.value.is_verified for part in parts].count(True) == 2, "each file is verified once"
            assert sorted_rows(rows_of(savepoint, state=state)) == sorted_rows(whole)
            one = rows_of(savepoint, EqualTo(("key",), "shop 3"), state=state)
        assert one == [row for row in whole if row["key"] == "shop 3"]


@pytest.mark.parametrize(
    ("timestamp_ms", "year"),
    [
        (-(1 << 63), None),
        (-62_135_596_800_001, None),
        (-62_135_596_800_000, 1),
        (253_402_300_799_999, 9999),
        (253_402_300_800_000, None),
        ((1 << 63) - 1, None),
    ],
)
def test_a_timer_out_of_range_has_its_milliseconds(tmp_path: Path, timestamp_ms: int, year: int | None) -> None:
    plan = Plan().add_operator("o", "string").add_timers("o", [("a", timestamp_ms)], time="event")
    SavepointWriter.new(tmp_path / "new", max_parallelism=8).write(plan)
    [row] = rows_of(tmp_path / "new", kind="timers")
    assert row["timestamp_ms"] == timestamp_ms
    assert (None if row["timestamp"] is None else row["timestamp"].year) == year
