"""Positions of Flink's Kafka sources become `startingOffsets`. Other sources are only listed."""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Sequence

import pytest

from statebackend import SplitListStateDescriptor
from statebackend.savepoint.foreign.flink_import import FlinkSource, without_sources
from statebackend.savepoint.rewrite import Plan, SavepointWriter
from statebackend.savepoint.rewrite.flink_writer import write_flink_savepoint
from statebackend.savepoint.state_location import find_state


def kafka_split(topic: str, partition: int, offset: int, *, version: int = 0) -> bytes:
    name = topic.encode()
    split = len(name).to_bytes(2, "big") + name + struct.pack(">iqq", partition, offset, -(1 << 63))
    return struct.pack(">ii", version, len(split)) + split


def source_of(directory: pathlib.Path, splits: Sequence[bytes]) -> FlinkSource:
    plan = Plan().add_operator("orders")
    plan.add_operator_state("orders", SplitListStateDescriptor("SourceReaderState", bytes), splits)
    SavepointWriter.new(directory / "ours", max_parallelism=4).write(plan.change_parallelism(2))
    write_flink_savepoint(find_state(directory / "ours"), directory / "flink")
    restored, [source] = without_sources(find_state(directory / "flink"), ["orders"])
    assert restored.metadata.operators == ()
    assert (source.uid, source.split_count) == ("orders", len(splits))
    return source


def test_positions_of_kafka(tmp_path: pathlib.Path) -> None:
    splits = [kafka_split("orders", 1, 4650), kafka_split("orders", 0, 4711), kafka_split("käse", 0, -2)]
    offsets = source_of(tmp_path, splits).starting_offsets
    assert offsets is not None
    assert json.loads(offsets) == {"orders": {"0": 4711, "1": 4650}, "käse": {"0": -2}}


@pytest.mark.parametrize(
    "unknown",
    [
        kafka_split("orders", 2, 5, version=1),
        # This is the offset committed by the consumer group.
        kafka_split("orders", 2, -3),
        kafka_split("orders", 2, 5) + b"\0",
        # A split with the numbers from 0 to 9.
        struct.pack(">iih1sqq", 1, 19, 1, b"0", 0, 9),
        b"",
    ],
)
def test_other_positions_are_unknown(unknown: bytes, tmp_path: pathlib.Path) -> None:
    assert source_of(tmp_path, [kafka_split("orders", 0, 1), unknown]).starting_offsets is None
