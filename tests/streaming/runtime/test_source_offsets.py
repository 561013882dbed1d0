"""Positions of replayable sources in the form of each runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attrs import evolve

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.checkpoint.store.savepoint_directory import read_savepoint
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.restored_state import RestoredState
from statebackend.streaming.runtime.source_offsets import (
    SOURCE_FORMAT,
    are_of_splits,
    positions_of_splits,
    with_source_positions,
)
from statebackend.streaming.stream_graph import SplitRead


class Numbers:
    """Two splits of numbers."""

    def splits(self) -> Mapping[str, int]:
        return {"a": 0, "b": 0}

    def read(self, split: str, position: int, max_records: int) -> SplitRead:
        end = {"a": 5, "b": 3}[split]
        return SplitRead(list(range(position, end)), end, is_at_end=True)


class Count(KeyedProcessFunction[int, Any, Any]):
    count = ValueStateDescriptor("count", int, default=0)

    def process_element(self, value: Any, context: Any) -> Iterator[Any]:
        self.count.update(self.count.value() + 1)
        return iter(())


def savepoint(directory: Path) -> RestoredState:
    environment = LocalStreamEnvironment(job_dir=directory / "job")
    numbers = environment.from_source(Numbers(), "number bigint", uid="numbers")
    numbers.key_by("number").process(Count(), uid="count", schema="n bigint").sink_to([])
    environment.execute().savepoint(directory / "savepoint")
    file_system, metadata = read_savepoint(str(directory / "savepoint"))
    return RestoredState(metadata, file_system)


def test_positions_of_a_local_job_become_spark_offsets(tmp_path: Path) -> None:
    state = with_source_positions(savepoint(tmp_path), {"numbers", "other"})
    positions = state.metadata.source_positions
    assert positions is not None
    version, batch, line = positions.offsets.decode().split("\n")
    assert (version, json.loads(batch)["batchWatermarkMs"], json.loads(line)) == ("v1", 0, {"a": 5, "b": 3})
    assert positions.sources == (ReadSource(SOURCE_FORMAT, "numbers", "0"),)
    assert are_of_splits(positions)
    assert positions_of_splits(positions, "numbers") == {"a": 5, "b": 3}
    assert positions_of_splits(positions, "other") == {}
    assert with_source_positions(state, {"numbers"}) is state


def test_a_state_without_positions_of_these_sources_is_unchanged(tmp_path: Path) -> None:
    state = savepoint(tmp_path)
    assert with_source_positions(state, {"other"}) is state
    assert with_source_positions(state, ()) is state


def test_other_sources_of_spark_have_no_splits() -> None:
    files, splits = ReadSource("FileSource[/in]", "files", "0"), ReadSource(SOURCE_FORMAT, "numbers", "numbers")
    offsets = b'v2\n{}\n0:{"logOffset":4}\nnumbers:{"a":7}'
    positions = SourcePositions(batch_id=3, offsets=offsets, sources=(files, splits))
    assert positions_of_splits(positions, "files") == {}
    assert positions_of_splits(positions, "numbers") == {"a": 7}
    assert positions_of_splits(evolve(positions, offsets=b"v1\n{}\n-\n-"), "numbers") == {}
    assert positions_of_splits(None, "numbers") == {}
    assert not are_of_splits(positions)
    assert not are_of_splits(None)
