"""How micro-batches of a Python source are planned, without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statebackend.spark.sources.micro_batches import _Reader, limited_ends
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.rows.declared_schema import parsed_schema
from statebackend.streaming.stream_graph import MicroBatchSource, SplitRead

limits: Any = pytest.importorskip("pyspark.sql.streaming.datasource", reason="needs Spark 4.2")
ReadAllAvailable, ReadMaxRows = limits.ReadAllAvailable, limits.ReadMaxRows


class Numbers:
    """A source. Each split has the numbers up to its end, except the removed ones."""

    def __init__(self, **ends: int) -> None:
        self.ends, self.first = ends, 0

    def splits(self) -> Mapping[str, int]:
        return dict.fromkeys(self.ends, self.first)

    def position_of_new_split(self, split: str) -> int:
        return self.first

    def end_positions(self) -> Mapping[str, int]:
        return dict(self.ends)

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        raise NotImplementedError

    def read_range(self, split: str, start: int, end: int) -> Iterator[Sequence[Any]]:
        yield list(range(start, end))

    def __repr__(self) -> str:
        return "Numbers"


def reader(source: MicroBatchSource) -> _Reader:
    return _Reader(source, parsed_schema("number bigint", "test"))


def numbers_read(source: MicroBatchSource, start: dict[str, int], end: dict[str, int]) -> dict[str, list[int]]:
    planned = reader(source)
    return {
        one.split: [number for batch in planned.read(one) for number in batch["number"].to_pylist()]
        for one in planned.partitions(start, end)
    }


def test_each_split_is_read_between_its_positions() -> None:
    source = Numbers(a=5, b=3)
    start = reader(source).initialOffset()
    end = reader(source).latestOffset(start, ReadAllAvailable())
    assert numbers_read(source, start, end) == {"a": [0, 1, 2, 3, 4], "b": [0, 1, 2]}
    assert numbers_read(source, end, reader(source).latestOffset(end, ReadAllAvailable())) == {}


def test_the_log_has_the_first_position_of_a_new_split_before_its_records() -> None:
    source = Numbers(a=2)
    source.ends["b"] = 4
    source.first = 1
    planned = reader(source).latestOffset({"a": 2}, ReadAllAvailable())
    assert planned == {"a": 2, "b": 1}
    assert numbers_read(source, {"a": 2}, planned) == {}
    # Removed records do not change what the next batch reads.
    source.first = 3
    assert reader(source).latestOffset(planned, ReadAllAvailable()) == {"a": 2, "b": 4}
    assert numbers_read(source, planned, {"a": 2, "b": 4}) == {"b": [1, 2, 3]}


def test_a_bounded_query_reads_nothing_that_came_later() -> None:
    source = Numbers(a=2)
    planned = reader(source)
    planned.last = dict(source.end_positions())
    source.ends = {"a": 9, "b": 4}
    assert planned.latestOffset({"a": 0}, ReadAllAvailable()) == {"a": 2}


def test_a_removed_or_shorter_split_is_an_error() -> None:
    with pytest.raises(StreamJobError, match="Numbers: split 'b', which was read up to position 7, no longer exists"):
        reader(Numbers(a=2)).latestOffset({"a": 2, "b": 7}, ReadAllAvailable())
    with pytest.raises(StreamJobError, match="Numbers: split 'a' was read up to position 7, and now ends at 2"):
        reader(Numbers(a=2)).latestOffset({"a": 7}, ReadAllAvailable())


class Identified(Numbers):
    """A source whose splits have identities."""

    identity = "first"

    def split_identities(self) -> Mapping[str, str]:
        return dict.fromkeys(self.ends, self.identity)


def test_a_split_that_was_created_again_is_an_error() -> None:
    source = Identified(a=5)
    start = reader(source).initialOffset()
    assert start == {"a": 0, "identities": {"a": "first"}}
    source.ends["b"] = 1
    end = reader(source).latestOffset(start, ReadAllAvailable())
    assert end == {"a": 5, "b": 0, "identities": {"a": "first", "b": "first"}}
    assert numbers_read(source, start, end) == {"a": [0, 1, 2, 3, 4]}
    source.ends["a"], source.identity = 9, "second"
    with pytest.raises(StreamJobError, match=r"'a', which was read up to position 5, was deleted.*allow_dropped_sour"):
        reader(source).latestOffset(end, ReadAllAvailable())


def test_an_offset_without_identities_gets_them() -> None:
    assert reader(Identified(a=5)).latestOffset({"a": 5}, ReadAllAvailable()) == {"a": 5, "identities": {"a": "first"}}


def test_a_batch_has_at_most_the_maximal_number_of_records() -> None:
    planned = reader(Numbers(a=90, b=10)).latestOffset({"a": 0, "b": 0}, ReadMaxRows(20))
    assert planned == {"a": 18, "b": 2}


@given(st.dictionaries(st.text(max_size=3), st.integers(0, 1000), min_size=1), st.integers(1, 2000))
def test_a_limited_batch_is_as_large_as_possible(left: dict[str, int], max_rows: int) -> None:
    start = {split: place * 7 for place, split in enumerate(left)}
    ends = {split: start[split] + count for split, count in left.items()}
    planned = limited_ends(start, ends, max_rows)

    assert all(start[split] <= planned[split] <= ends[split] for split in left)
    assert sum(planned[split] - start[split] for split in left) == min(max_rows, sum(left.values()))
    assert limited_ends(start, ends, None) == ends


def test_no_split_starves() -> None:
    left = {f"p{number}": 10 for number in range(5)}
    start = dict.fromkeys(left, 0)
    for _ in range(5):
        start = limited_ends(start, left, 1)
    assert set(start.values()) == {1}
