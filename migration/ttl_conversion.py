"""Giving stored values a time-to-live, and taking it away: what is put in the place of the old serializer for that.

A TTL value is a time and a value. When one side has the time and the other has not, the old serializer is wrapped: in a
`StampedSerializer`, which reads old values as accessed at one given moment, or in an `UnstampedSerializer`, which skips
what stands before the values. What is inside is converted by its own rules, byte to byte where they can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from migration.conversion import (
    Conversion,
    Part,
    Write,
    conversion_between,
    emit_part_value,
    register_conversion,
    register_unwrapping_conversion,
)
from migration.reading_parts import ReadingSerializer
from snapshots.data_views import DataInputView
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.type_serializer import TypeSerializer

_TIMESTAMP_BYTES: Final = 8


class _WrappingPartSerializer(ReadingSerializer):
    """An old serializer with something put before it, or taken away."""

    def __init__(self, inner: TypeSerializer[Any]) -> None:
        self.inner = inner

    def create_instance(self) -> Any:
        return self.inner.create_instance()

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:  # type: ignore[override]
        # A list of these asks its parts for theirs before it is put together anew; nobody keeps it.
        return self.inner.snapshot_configuration()


class StampedSerializer(_WrappingPartSerializer):
    """Reads values without a time as accessed at ``timestamp_ms``."""

    def __init__(self, inner: TypeSerializer[Any], timestamp_ms: int) -> None:
        super().__init__(inner)
        self.timestamp_ms = timestamp_ms

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def minimum_length(self) -> int:
        return self.inner.minimum_length

    def read_from(self, source: DataInputView) -> TtlValue[Any]:
        return TtlValue(self.inner.deserialize(source), self.timestamp_ms)

    def emit_read(self, emitter: ReadEmitter) -> str:
        value = self.inner.emit_read(emitter)
        return f"{emitter.function.bind('ttl_value', TtlValue)}({value}, {self.timestamp_ms})"


class UnstampedSerializer(_WrappingPartSerializer):
    """Reads the values behind ``skipped`` bytes: a time of eight, and what stands before it."""

    def __init__(self, inner: TypeSerializer[Any], skipped: int) -> None:
        super().__init__(inner)
        self.skipped = skipped

    @property
    def length(self) -> int:
        return self.inner.length + self.skipped if self.inner.length >= 0 else -1

    @property
    def minimum_length(self) -> int:
        return self.inner.minimum_length + self.skipped

    def read_from(self, source: DataInputView) -> Any:
        source.read(self.skipped)
        return self.inner.deserialize(source)

    def emit_read(self, emitter: ReadEmitter) -> str:
        self.emit_skip(emitter)
        return self.inner.emit_read(emitter)

    def emit_skip(self, emitter: ReadEmitter) -> None:
        """Emits the step over what stands before the value."""
        for _ in range(self.skipped - 8):
            emitter.fixed("b")
        emitter.fixed("q")


@register_conversion
class StampingConversion(Conversion):
    """A value gets a time."""

    old_class = StampedSerializer
    new_class = TtlSerializer

    old: StampedSerializer
    new: TtlSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        value = emit_part_value(conversion_between(self.old.inner, self.new.value_serializer), reader)
        return f"{reader.function.bind('ttl_value', TtlValue)}({value}, {self.old.timestamp_ms})"

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", conversion_between(self.old.inner, self.new.value_serializer), position

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        write = conversion_between(self.old.inner, self.new.value_serializer).emit_transcoding(reader)

        def write_stamped(writer: WriteEmitter) -> None:
            writer.fixed("q", str(self.old.timestamp_ms))
            write(writer)

        return write_stamped


@register_unwrapping_conversion
class UnstampingConversion(Conversion):
    """A value loses its time."""

    old_class = UnstampedSerializer

    old: UnstampedSerializer

    def emit_value(self, reader: ReadEmitter) -> str:
        self.old.emit_skip(reader)
        return emit_part_value(conversion_between(self.old.inner, self.new), reader)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", conversion_between(self.old.inner, self.new), position + self.old.skipped

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        self.old.emit_skip(reader)
        return conversion_between(self.old.inner, self.new).emit_transcoding(reader)


@register_conversion
class TtlConversion(Conversion):
    """A value keeps its time."""

    old_class = TtlSerializer
    new_class = TtlSerializer

    old: TtlSerializer[Any]
    new: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return conversion_between(self.old.value_serializer, self.new.value_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        timestamp = reader.fixed("q")
        value = emit_part_value(self._values(), reader)
        return f"{reader.function.bind('ttl_value', TtlValue)}({value}, {timestamp})"

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position + _TIMESTAMP_BYTES

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        timestamp = reader.fixed("q")
        write = self._values().emit_transcoding(reader)

        def write_stamped(writer: WriteEmitter) -> None:
            writer.fixed("q", timestamp)
            write(writer)

        return write_stamped
