"""Sources of local jobs have uids. A checkpoint stores their event time by uid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from statebackend import JobDefinitionError, KeyedProcessFunction, WatermarkStrategy
from statebackend.checkpoint import CheckpointFileSystem
from statebackend.checkpoint.store.checkpoint_directories import DirectoryPointers
from statebackend.local import LocalStreamEnvironment

SCHEMA = "k string, at bigint"


class Echo(KeyedProcessFunction[str, Any, Any]):
    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        yield tuple(value)


def run(directory: Path, *sources: tuple[str | None, Sequence[int]]) -> dict[str, int | None]:
    """Run a job over sources with these times, and return what its checkpoint stores of each source."""
    environment = LocalStreamEnvironment(job_dir=directory)
    strategy: Any = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
    streams = [
        environment.from_elements([("k", at) for at in times], SCHEMA, uid=uid).assign_timestamps_and_watermarks(
            strategy
        )
        for uid, times in sources
    ]
    united = (streams[0].union(*streams[1:]) if streams[1:] else streams[0]).key_by("k")
    united.process(Echo(), uid="echo", schema=SCHEMA).sink_to([])
    environment.execute()
    newest = DirectoryPointers(CheckpointFileSystem.from_uri(directory)).find().newest()
    assert newest is not None
    assert newest.watermarks is not None
    return {one.source: one.largest_timestamp_ms for one in newest.watermarks.channels}


def test_each_source_keeps_its_event_time_when_sources_are_added_removed_or_reordered(tmp_path: Path) -> None:
    assert run(tmp_path, (None, [10])) == {"source": 10}
    assert run(tmp_path, ("source", [5]), ("fast", [30])) == {"source": 10, "fast": 30}
    assert run(tmp_path, ("slow", [10]), ("fast", [1])) == {"slow": 10, "fast": 30}
    assert run(tmp_path, ("new", [7]), ("fast", [1]), ("slow", [1])) == {"new": 7, "fast": 30, "slow": 10}
    assert run(tmp_path, ("slow", [12]), ("new", [1])) == {"slow": 12, "new": 7}


def test_a_checkpoint_has_the_largest_timestamp_whatever_the_order_of_records(tmp_path: Path) -> None:
    strategy: Any = WatermarkStrategy.for_bounded_out_of_orderness(100).with_timestamps("at").with_channel("k")
    environment = LocalStreamEnvironment(job_dir=tmp_path)
    elements = [("a", 5), ("a", 30), ("b", 7), ("a", 20), ("b", 1)]
    stream = environment.from_elements(elements, SCHEMA).assign_timestamps_and_watermarks(strategy)
    stream.key_by("k").process(Echo(), uid="echo", schema=SCHEMA).sink_to([])
    environment.execute()
    newest = DirectoryPointers(CheckpointFileSystem.from_uri(tmp_path)).find().newest()
    assert newest is not None
    assert newest.watermarks is not None
    assert {one.channel: one.largest_timestamp_ms for one in newest.watermarks.channels} == {"a": 30, "b": 7}


def test_an_ambiguous_uid_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(JobDefinitionError, match="two sources have the uid 'a'"):
        run(tmp_path, ("a", [1]), ("a", [2]))


def test_each_of_several_sources_needs_a_uid(tmp_path: Path) -> None:
    with pytest.raises(JobDefinitionError, match="the job has 2 sources, and source 2 has no uid"):
        run(tmp_path / "job", ("a", [1]), (None, [2]))
    assert not (tmp_path / "job").exists()
