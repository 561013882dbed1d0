"""Positions of replayable sources in the form of each runtime."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from statebackend import KeyedProcessFunction, ValueStateDescriptor
from statebackend.checkpoint.metadata import ReadSource, SourcePositions
from statebackend.checkpoint.store.savepoint_directory import read_savepoint
from statebackend.local import LocalStreamEnvironment
from statebackend.savepoint.restored_state import RestoredState
from statebackend.streaming.errors import StreamJobError
from statebackend.streaming.runtime.source_offsets import (
    SOURCE_FORMAT,
    SplitOffset,
    are_of_splits,
    offset_of_splits,
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


class IdentifiedNumbers(Numbers):
    """The first split has an identity."""

    def split_identities(self) -> Mapping[str, str]:
        return {"a": "first"}


def savepoint(directory: Path, source: Numbers | None = None) -> RestoredState:
    environment = LocalStreamEnvironment(job_dir=directory / "job")
    numbers = environment.from_source(source or Numbers(), "number bigint", uid="numbers")
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
    assert offset_of_splits(positions, "numbers").positions == {"a": 5, "b": 3}
    assert offset_of_splits(positions, "other").positions == {}
    assert with_source_positions(state, {"numbers"}) is state


def test_a_state_without_positions_of_these_sources_is_unchanged(tmp_path: Path) -> None:
    state = savepoint(tmp_path)
    assert with_source_positions(state, {"other"}) is state
    assert with_source_positions(state, ()) is state


def test_other_sources_of_spark_have_no_splits() -> None:
    files, splits = ReadSource("FileSource[/in]", "files", "0"), ReadSource(SOURCE_FORMAT, "numbers", "numbers")
    offsets = b'v2\n{}\n0:{"logOffset":4}\nnumbers:{"a":7}'
    positions = SourcePositions(batch_id=3, offsets=offsets, sources=(files, splits))
    assert offset_of_splits(positions, "files").positions == {}
    assert offset_of_splits(positions, "numbers").positions == {"a": 7}
    assert offset_of_splits(evolve(positions, offsets=b"v1\n{}\n-\n-"), "numbers").positions == {}
    assert offset_of_splits(None, "numbers").positions == {}
    assert not are_of_splits(positions)
    assert not are_of_splits(None)


def test_identities_of_a_local_job_become_part_of_spark_offsets(tmp_path: Path) -> None:
    stored = savepoint(tmp_path, IdentifiedNumbers())
    assert stored.positioned_sources == ["numbers"]
    positions = with_source_positions(stored, {"numbers"}).metadata.source_positions
    assert positions is not None
    line = positions.offsets.decode().split("\n")[2]
    assert json.loads(line) == {"a": 5, "b": 3, "identities": {"a": "first"}}
    assert offset_of_splits(positions, "numbers") == SplitOffset({"a": 5, "b": 3}, {"a": "first"})


def test_an_offset_without_identities_is_as_in_earlier_versions(tmp_path: Path) -> None:
    offset = {"a": 5, "b": 3}
    assert SplitOffset.of_json(offset).to_json() == offset
    names = [meta.name for meta in savepoint(tmp_path).operator_state_metas_of("numbers")]
    assert names == ["splits"]


def test_a_split_with_another_identity_is_an_error() -> None:
    stored = SplitOffset({"a": 5, "b": 3}, {"a": "first", "b": "b"})
    assert stored.identified_by(Numbers(), "here", "x=") == stored
    # Split b reported no identity, so the stored one is kept.
    assert stored.identified_by(IdentifiedNumbers(), "here", "x=") == stored
    assert SplitOffset({"a": 5}).identified_by(IdentifiedNumbers(), "here", "x=").identities == {"a": "first"}
    other = evolve(stored, identities={"a": "other"})
    with pytest.raises(StreamJobError, match="here: split 'a', which was read up to position 5, was deleted and creat"):
        other.identified_by(IdentifiedNumbers(), "here", "x=")
