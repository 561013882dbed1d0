"""Timestamps as keys: a plan may use any time zone, and a job that starts from the savepoint finds the keys."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

from statebackend import (
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessContext,
    RuntimeContext,
    Savepoint,
    ValueStateDescriptor,
)
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.errors import EntryError, RepeatedKeyError
from statebackend.savepoint.rewrite import Plan, SavepointWriter

UTC = datetime.timezone.utc
NOON = datetime.datetime(2020, 7, 1, 12, tzinfo=UTC)
BERLIN = datetime.timezone(datetime.timedelta(hours=2))
COUNT = ValueStateDescriptor("count", int)
FORMS = {
    "in UTC": NOON,
    "in a zone of that name": NOON.astimezone(ZoneInfo("UTC")),
    "at an offset": NOON.astimezone(BERLIN),
    "at no offset, with a name": NOON.replace(tzinfo=datetime.timezone(datetime.timedelta(0), "Z")),
    "in the second pass of an hour": NOON.replace(fold=1),
}


class Tell(KeyedProcessFunction[Any, Any, Any]):
    """Emits the state of each key."""

    def open(self, context: RuntimeContext) -> None:
        self.count = context.get_state(COUNT)

    def process_element(self, value: Any, context: ProcessContext[Any]) -> Iterator[Any]:
        yield {"found": f"{value['name']} {self.count.value()}"}


def found(savepoint: Path, *key: str) -> list[str]:
    environment = LocalStreamEnvironment(backend="rocksdb", max_parallelism=8)
    records = [{"at": NOON, "name": "shop"}]
    output: list[Any] = []
    environment.from_elements(records, schema="at timestamp, name string").key_by(*key).process(
        Tell(), uid="o", schema="found string"
    ).sink_to(output)
    environment.execute("job", from_savepoint=savepoint)
    return [row["found"] for row in output]


def write(path: Path, entries: Any, key: Any = "timestamp") -> Path:
    plan = Plan().add_operator("o", key).add_state("o", COUNT, entries)
    SavepointWriter.new(path, max_parallelism=8).write(plan)
    return path


@pytest.mark.parametrize("moment", FORMS.values(), ids=FORMS)
def test_a_job_finds_a_timestamp_given_in_any_zone(tmp_path: Path, moment: datetime.datetime) -> None:
    assert found(write(tmp_path / "alone", [(moment, 7)]), "at") == ["shop 7"]
    assert found(write(tmp_path / "pair", [(("shop", moment), 7)], ("string", "timestamp")), "name", "at") == ["shop 7"]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "+02:00"])
def test_a_job_finds_the_timestamps_of_a_table(tmp_path: Path, zone: str) -> None:
    keys = pa.array([NOON], pa.timestamp("ms", zone))
    path = write(tmp_path / "alone", pa.table({"key": keys, "value": [7]}))
    assert found(path, "at") == ["shop 7"]
    again = write(tmp_path / "again", Savepoint.open(path).read("o", "count").to_arrow())
    assert found(again, "at") == ["shop 7"]
    pairs = pa.StructArray.from_arrays([pa.array(["shop"]), keys], ["a", "b"])
    path = write(tmp_path / "pair", pa.table({"key": pairs, "value": [7]}), ("string", "timestamp"))
    assert found(path, "name", "at") == ["shop 7"]


def test_one_instant_in_two_zones_is_one_key(tmp_path: Path) -> None:
    with pytest.raises(RepeatedKeyError, match="two entries have the same key"):
        write(tmp_path / "new", [(NOON, 1), (NOON.astimezone(BERLIN), 2)])


def test_keys_converted_to_timestamps_are_found_too(tmp_path: Path) -> None:
    plan = Plan().add_operator("o", "string").add_state("o", COUNT, [("14:00+02:00", 7)])
    plan.add_timers("o", [("14:00+02:00", 5)], time="event")
    SavepointWriter.new(tmp_path / "texts", max_parallelism=8).write(plan)
    plan = Plan().change_keys("o", lambda key: datetime.datetime.fromisoformat(f"2020-07-01T{key}"), "timestamp")
    SavepointWriter.copy_of(tmp_path / "texts", tmp_path / "moments").write(plan)
    plan = Plan().remove_state("o", "_timer_state/event_user-timers")
    SavepointWriter.copy_of(tmp_path / "moments", tmp_path / "without timers").write(plan)
    assert found(tmp_path / "without timers", "at") == ["shop 7"]
    for state in ("count", "_timer_state/event_user-timers"):
        [entry] = Savepoint.open(tmp_path / "moments").read("o", state)
        assert (entry.key, entry.key.tzinfo) == (NOON, UTC)


@pytest.mark.parametrize(
    ("moment", "reason"),
    [
        (NOON.replace(tzinfo=None), "has no time zone"),
        (NOON.date(), "is not a datetime.datetime"),
        (datetime.datetime(1, 1, 1, tzinfo=BERLIN), "date value out of range"),
    ],
)
def test_times_that_are_not_instants_are_rejected(tmp_path: Path, moment: Any, reason: str) -> None:
    timers = Plan().add_operator("o", "timestamp").add_timers("o", [(moment, 1)], time="event")
    for make in (
        lambda: write(tmp_path / "new", [(NOON, 1), (moment, 1)]),
        lambda: write(tmp_path / "new", [((moment, 1), 1)], ("timestamp", "int")),
        lambda: SavepointWriter.new(tmp_path / "new", max_parallelism=8).write(timers),
    ):
        with pytest.raises(EntryError, match=f"the key does not fit: .*{reason}"):
            make()
    table = pa.table({"key": pa.array([NOON.replace(tzinfo=None)], pa.timestamp("us")), "value": [1]})
    with pytest.raises(EntryError, match="has no time zone"):
        write(tmp_path / "new", table)
    assert not (tmp_path / "new").exists()


def test_the_timestamps_of_a_table_are_in_utc_as_user_keys_and_values_too(tmp_path: Path) -> None:
    moments = pa.array([NOON], pa.timestamp("us", "UTC"))
    table = pa.table({"key": ["a"], "user_key": moments, "value": moments})
    descriptor = MapStateDescriptor("map", datetime.datetime, datetime.datetime)
    plan = Plan().add_operator("o", "string").add_state("o", descriptor, table)
    SavepointWriter.new(tmp_path / "new", max_parallelism=8).write(plan)
    [entry] = Savepoint.open(tmp_path / "new").read("o", "map")
    assert (entry.user_key.tzinfo, entry.value.tzinfo) == (UTC, UTC)
