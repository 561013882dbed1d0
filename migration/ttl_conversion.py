"""The conversions of values with a time-to-live: they keep the time of their last access, get one, or lose it.

What is inside is converted by its own rules, byte to byte where they can.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from migration.composite_conversion import CompositeConversion
from migration.conversion import Conversion, Part, Write, emit_part_value
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.evolution.evolution_plans import TimestampPlan, TimestampRemovalPlan
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter

_TIMESTAMP_BYTES: Final = 8


class TtlConversion(CompositeConversion):
    """A value keeps its time."""

    old: TtlSerializer[Any]
    new: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.parts[1], self.old.value_serializer, self.new.value_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        timestamp = reader.fixed("q")
        value = emit_part_value(self._values(), reader)
        return f"{reader.function.bind('ttl_value', TtlValue)}({value}, {timestamp})"

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position + _TIMESTAMP_BYTES

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        timestamp = reader.fixed("q")
        return _stamped(timestamp, self._values().emit_transcoding(reader))


class StampingConversion(Conversion):
    """A value gets a time. Raises `ValueError` for a plan in which nobody has put it."""

    plan: TimestampPlan
    new: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.value, self.old, self.new.value_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        value = emit_part_value(self._values(), reader)
        return f"{reader.function.bind('ttl_value', TtlValue)}({value}, {self._timestamp()})"

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        return _stamped(self._timestamp(), self._values().emit_transcoding(reader))

    def _timestamp(self) -> str:
        if self.plan.timestamp_ms is None:
            raise ValueError("the values get a time-to-live, but the plan does not say when they count as accessed")
        return str(self.plan.timestamp_ms)


class UnstampingConversion(Conversion):
    """A value loses its time."""

    plan: TimestampRemovalPlan
    old: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.value, self.old.value_serializer, self.new)

    def emit_value(self, reader: ReadEmitter) -> str:
        reader.fixed("q")
        return emit_part_value(self._values(), reader)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position + _TIMESTAMP_BYTES

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        reader.fixed("q")
        return self._values().emit_transcoding(reader)


def _stamped(timestamp: str, write: Write) -> Write:
    def write_stamped(writer: WriteEmitter) -> None:
        writer.fixed("q", timestamp)
        write(writer)

    return write_stamped
