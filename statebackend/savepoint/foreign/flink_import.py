"""Selects the state to import from a Flink savepoint, and reads the positions of its sources.

Operators without state are not imported. Sources are not imported either, because the new job has its own sources.
Positions of Kafka sources (FLIP-27, `KafkaSource`) become the option ``startingOffsets`` of Spark's Kafka source. An
element of ``SourceReaderState`` has this form:

    element := i32(n) i32(version of the split) i32(n) split
    split   := UTF(topic) i32(partition) i64(next offset) i64(stopping offset)             of Kafka, version 0
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Final

from attrs import evolve, frozen

from snapshots.data_views import DataInputView
from snapshots.errors import StateFormatError
from statebackend.checkpoint.state_handles import OperatorState
from statebackend.savepoint.foreign.flink_files import with_uids
from statebackend.savepoint.restored_state import RestoredState
from statebackend.state.operator_state_handles import read_slices
from typeserializers.scalars.byte_arrays import BytesSerializer

__all__ = ["FlinkSource", "without_sources"]

READER_STATE: Final = "SourceReaderState"

_EARLIEST: Final = -2
"""The earliest offset, in Flink and in Spark's Kafka source. -1 is the latest."""


@frozen
class FlinkSource:
    """A source of a Flink job. ``offsets`` are by topic and partition, None for a source other than Kafka."""

    uid: str
    split_count: int
    offsets: Mapping[str, Mapping[int, int]] | None

    @property
    def starting_offsets(self) -> str | None:
        """The option ``startingOffsets`` of Spark's Kafka source, as JSON; None if the positions are unknown."""
        if self.offsets is None:
            return None
        return json.dumps({topic: {str(one): at for one, at in found.items()} for topic, found in self.offsets.items()})


def without_sources(restored: RestoredState, uids: Iterable[str]) -> tuple[RestoredState, list[FlinkSource]]:
    """Return the state to import and the sources. ``uids`` name operators that are stored with their ids only.

    Raises:
        CheckpointError: A file is missing or damaged.
    """
    restored = with_uids(restored, uids)
    operators, sources = [], []
    for operator in restored.metadata.operators:
        if any(meta.name == READER_STATE for meta in restored.operator_state_metas_of(operator.uid)):
            sources.append(_source(restored, operator))
        elif any(one.keyed is not None or one.operator is not None for one in operator.subtasks):
            operators.append(operator)
    metadata = evolve(restored.metadata, operators=tuple(operators))
    return evolve(restored, metadata=metadata), sources


def _source(restored: RestoredState, operator: OperatorState) -> FlinkSource:
    read = BytesSerializer().from_bytes
    splits = [
        read(value or b"")
        for handle in restored.operator_state_handles(operator.uid)
        for state in handle.states
        if state.name == READER_STATE
        for part in state.parts
        for _, value in read_slices(restored.file_system, part.slices)
    ]
    offsets: dict[str, dict[int, int]] = {}
    try:
        for topic, partition, offset in map(_kafka_split, splits):
            offsets.setdefault(topic, {})[partition] = offset
    except StateFormatError:
        return FlinkSource(operator.uid, len(splits), None)
    in_order = {topic: dict(sorted(found.items())) for topic, found in sorted(offsets.items())}
    return FlinkSource(operator.uid, len(splits), in_order or None)


def _kafka_split(data: bytes) -> tuple[str, int, int]:
    source = DataInputView(data)
    version, size_bytes = source.read_int(), source.read_int()
    if version != 0 or size_bytes != source.remaining:
        raise StateFormatError(f"a split of version {version} with {size_bytes} bytes")
    topic, partition, offset, _ = source.read_utf(), source.read_int(), source.read_long(), source.read_long()
    if source.remaining or not topic or partition < 0 or offset < _EARLIEST:
        raise StateFormatError("no split of Kafka with a position")
    return topic, partition, offset
