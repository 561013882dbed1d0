"""A timestamp is one map key in any time zone of the session or of the value."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import attrs
import pytest

from statebackend import BroadcastStateDescriptor, KeyedProcessFunction, MapStateDescriptor, RuntimeContext
from statebackend.local import LocalStreamEnvironment

UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 10, 27, 12, tzinfo=UTC)
ZONES = [
    ZoneInfo("Europe/Berlin"),
    UTC,
    datetime.timezone(datetime.timedelta(hours=5, minutes=45)),
    ZoneInfo("America/New_York"),
]


@attrs.frozen
class Trip:
    start: datetime.datetime
    number: int


KEYS: dict[str, tuple[Any, Any]] = {
    "moment": (datetime.datetime, lambda moment: moment),
    "tuple": (tuple[int, datetime.datetime | None], lambda moment: (1, moment)),
    "record": (Trip, lambda moment: Trip(moment, 1)),
    "set": (frozenset[datetime.datetime], lambda moment: frozenset([moment])),
}


class CountsDistinct(KeyedProcessFunction[int, Any, Any]):
    def __init__(self, key: str) -> None:
        self.hint, self.make_key = KEYS[key]

    def open(self, context: RuntimeContext) -> None:
        self.seen = context.get_map_state(MapStateDescriptor("seen", self.hint, int))

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        key = self.make_key(NOON.astimezone(ZONES[value[1]]))
        before = self.seen.get(key)
        self.seen.put(key, (before or 0) + 1)
        keys = list(self.seen.keys())
        assert keys == [self.make_key(NOON)]
        assert "tzinfo=datetime.timezone.utc" in repr(keys)
        yield value[0], self.seen.get(key)


def run(key: str, elements: list[Any], **options: Any) -> list[int]:
    results: list[Any] = []
    environment = LocalStreamEnvironment(epoch_size=1, **options)
    stream = environment.from_elements(elements, "key bigint, zone bigint").key_by("key")
    stream.process(CountsDistinct(key), uid="counts", schema="key bigint, times bigint").sink_to(results)
    environment.execute()
    return [row.times for row in results]


@pytest.mark.parametrize("backend", ["heap", "rocksdb"])
@pytest.mark.parametrize("key", KEYS)
def test_a_timestamp_of_any_zone_is_found_also_after_a_restart(tmp_path: Path, backend: str, key: str) -> None:
    options: dict[str, Any] = {"backend": backend, "job_dir": tmp_path / "job"}
    assert run(key, [(1, 0), (1, 1)], **options) == [1, 2]
    assert run(key, [(1, 2), (1, 3)], **options) == [3, 4]


def test_broadcast_keys_are_written_in_utc_and_values_are_not() -> None:
    descriptor = BroadcastStateDescriptor("rates", datetime.datetime, datetime.datetime)
    berlin = NOON.astimezone(ZONES[0])
    key, value = descriptor.key_serializer, descriptor.value_serializer
    assert key.to_bytes(berlin) == key.to_bytes(NOON)
    assert value.from_bytes(value.to_bytes(berlin)).tzinfo == ZONES[0]


def test_both_passes_of_a_repeated_hour_differ_and_local_times_are_unchanged() -> None:
    key = MapStateDescriptor("map", datetime.datetime, int).key_serializer
    first = datetime.datetime(2024, 10, 27, 2, 30, tzinfo=ZONES[0])
    second = first.replace(fold=1)
    assert key.from_bytes(key.to_bytes(first)) == datetime.datetime(2024, 10, 27, 0, 30, tzinfo=UTC)
    assert key.from_bytes(key.to_bytes(second)) == datetime.datetime(2024, 10, 27, 1, 30, tzinfo=UTC)
    naive = datetime.datetime(2024, 10, 27, 2, 30)
    assert key.from_bytes(key.to_bytes(naive)) == naive
