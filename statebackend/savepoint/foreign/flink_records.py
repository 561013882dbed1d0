"""The records that operators of Flink store: of windows with an evictor, asynchronous functions, and joins.

    element := 00 i64(timestamp) value        a record
             | 01 value                       a record without a timestamp
             | 02 i64(timestamp)              a watermark; only an asynchronous function stores it, among its records
    entry   := bool(has been joined) value    of an interval join
    tagged  := 01 value | 02 value            of a join or coGroup of windows: the first or the second input

The snapshots are composites around the snapshots of the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError
from typeserializers.containers.eithers import Left, Right
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["JoinEntrySerializer", "StreamElementSerializer", "StreamWatermark", "TaggedSerializer"]

_STREAMING: Final = "org.apache.flink.streaming."


class StreamWatermark(NamedTuple):
    """A watermark among the records of an asynchronous function. ``value`` is always None."""

    value: None
    timestamp_ms: int


class _RecordSerializer(TypeSerializer[Any]):
    def __init__(self, *value_serializers: TypeSerializer[Any]) -> None:
        self.value_serializers = value_serializers

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.value_serializers))})"


class StreamElementSerializer(_RecordSerializer):
    """A record as ``(value, timestamp in milliseconds or None)``, or a `StreamWatermark`.

    Windows with an evictor store the same tuples here.
    """

    def create_instance(self) -> tuple[Any, int | None]:
        return self.value_serializers[0].create_instance(), None

    def serialize(self, value: Any, out: DataOutputView) -> None:
        content, timestamp = value
        out.write_byte(2 if isinstance(value, StreamWatermark) else int(timestamp is None))
        if timestamp is not None:
            out.write_long(timestamp)
        if not isinstance(value, StreamWatermark):
            self.value_serializers[0].serialize(content, out)

    def deserialize(self, source: DataInputView) -> tuple[Any, int | None]:
        tag = _tag(source, (0, 1, 2))
        timestamp = None if tag == 1 else source.read_long()
        if tag == 2 and timestamp is not None:
            return StreamWatermark(None, timestamp)
        return self.value_serializers[0].deserialize(source), timestamp

    def snapshot_configuration(self) -> StreamElementSerializerSnapshot:
        return StreamElementSerializerSnapshot(self)


class JoinEntrySerializer(_RecordSerializer):
    """A record of an interval join as ``(value, has been joined)``."""

    def create_instance(self) -> tuple[Any, bool]:
        return self.value_serializers[0].create_instance(), False

    def serialize(self, value: tuple[Any, bool], out: DataOutputView) -> None:
        content, has_been_joined = value
        out.write_boolean(has_been_joined)
        self.value_serializers[0].serialize(content, out)

    def deserialize(self, source: DataInputView) -> tuple[Any, bool]:
        has_been_joined = source.read_boolean()
        return self.value_serializers[0].deserialize(source), has_been_joined

    def snapshot_configuration(self) -> JoinEntrySerializerSnapshot:
        return JoinEntrySerializerSnapshot(self)


class TaggedSerializer(_RecordSerializer):
    """A record of the first input as `Left`, of the second one as `Right`."""

    @property
    def left_serializer(self) -> TypeSerializer[Any]:
        """The serializer of the first input."""
        return self.value_serializers[0]

    @property
    def right_serializer(self) -> TypeSerializer[Any]:
        """The serializer of the second input."""
        return self.value_serializers[1]

    def create_instance(self) -> Left[Any]:
        return Left(self.left_serializer.create_instance())

    def serialize(self, value: Left[Any] | Right[Any], out: DataOutputView) -> None:
        is_right = isinstance(value, Right)
        out.write_byte(1 + is_right)
        self.value_serializers[is_right].serialize(value.value, out)

    def deserialize(self, source: DataInputView) -> Left[Any] | Right[Any]:
        if _tag(source, (1, 2)) == 1:
            return Left(self.left_serializer.deserialize(source))
        return Right(self.right_serializer.deserialize(source))

    def snapshot_configuration(self) -> TaggedSerializerSnapshot:
        return TaggedSerializerSnapshot(self)


def _tag(source: DataInputView, known: Sequence[int]) -> int:
    tag = source.read_unsigned_byte()
    if tag not in known:
        raise MalformedDataError(f"a stored record has the unknown tag {tag} at byte {source.position - 1}")
    return tag


class _RecordSnapshot(CompositeTypeSerializerSnapshot[Any, _RecordSerializer]):
    current_outer_version = 2

    def nested_serializers(self, outer: _RecordSerializer) -> Sequence[TypeSerializer[Any]]:
        return outer.value_serializers

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> _RecordSerializer:
        return self.outer_serializer_class(*nested)


@register_snapshot(_STREAMING + "runtime.streamrecord.StreamElementSerializer$StreamElementSerializerSnapshot")
class StreamElementSerializerSnapshot(_RecordSnapshot):
    outer_serializer_class = StreamElementSerializer


@register_snapshot(_STREAMING + "api.operators.co.IntervalJoinOperator$BufferEntrySerializerSnapshot")
class JoinEntrySerializerSnapshot(_RecordSnapshot):
    outer_serializer_class = JoinEntrySerializer


@register_snapshot(_STREAMING + "api.datastream.CoGroupedStreams$UnionSerializerSnapshot")
class TaggedSerializerSnapshot(_RecordSnapshot):
    outer_serializer_class = TaggedSerializer
