"""Serializers of Flink's mutable ``Value`` types under their own names: state of IntValue, StringValue and so on.

In Python they are plain values. The bytes are those of the plain serializers, except for the string:

    string value := varint(code units) varint(code unit)*         without null

They are not compatible with the plain serializers, as in Flink: an int and an IntValue are different states.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import CharSerializer, decode_units, decode_varint, encode_units, encode_varint


class BooleanValueSerializer(BooleanSerializer):
    """A bool, as Flink's BooleanValue."""

    def snapshot_configuration(self) -> BooleanValueSerializerSnapshot:  # type: ignore[override]
        return BooleanValueSerializerSnapshot()


class ByteValueSerializer(ByteSerializer):
    """An int, as Flink's ByteValue."""

    def snapshot_configuration(self) -> ByteValueSerializerSnapshot:  # type: ignore[override]
        return ByteValueSerializerSnapshot()


class ShortValueSerializer(ShortSerializer):
    """An int, as Flink's ShortValue."""

    def snapshot_configuration(self) -> ShortValueSerializerSnapshot:  # type: ignore[override]
        return ShortValueSerializerSnapshot()


class IntValueSerializer(IntSerializer):
    """An int, as Flink's IntValue."""

    def snapshot_configuration(self) -> IntValueSerializerSnapshot:  # type: ignore[override]
        return IntValueSerializerSnapshot()


class LongValueSerializer(LongSerializer):
    """An int, as Flink's LongValue."""

    def snapshot_configuration(self) -> LongValueSerializerSnapshot:  # type: ignore[override]
        return LongValueSerializerSnapshot()


class FloatValueSerializer(FloatSerializer):
    """A float, as Flink's FloatValue."""

    def snapshot_configuration(self) -> FloatValueSerializerSnapshot:  # type: ignore[override]
        return FloatValueSerializerSnapshot()


class DoubleValueSerializer(DoubleSerializer):
    """A float, as Flink's DoubleValue."""

    def snapshot_configuration(self) -> DoubleValueSerializerSnapshot:  # type: ignore[override]
        return DoubleValueSerializerSnapshot()


class CharValueSerializer(CharSerializer):
    """A str of one UTF-16 code unit, as Flink's CharValue."""

    def snapshot_configuration(self) -> CharValueSerializerSnapshot:  # type: ignore[override]
        return CharValueSerializerSnapshot()


def _write_string_value(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(f"a str is needed, not {type(value).__name__}")
    count, units = encode_units(value)
    return encode_varint(count) + units


def _read_string_value(data: bytes, position: int) -> tuple[str, int]:
    count, position = decode_varint(data, position)
    return decode_units(data, position, count)


class StringValueSerializer(CompiledTypeSerializer[str]):
    """A str, as Flink's StringValue."""

    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> str:
        return ""

    def write_to(self, value: str, out: DataOutputView) -> None:
        out.write(_write_string_value(value))

    def read_from(self, source: DataInputView) -> str:
        text, source.position = _read_string_value(source.data, source.position)
        return text

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.append(f"{emitter.function.bind('write_string_value', _write_string_value)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        text = emitter.function.fresh("s")
        emitter.line(f"{text}, pos = {emitter.function.bind('read_string_value', _read_string_value)}(data, pos)")
        return text

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, str):
            yield misfit(path, value, "is not a str")

    def snapshot_configuration(self) -> StringValueSerializerSnapshot:
        return StringValueSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "BooleanValueSerializer"))
class BooleanValueSerializerSnapshot(SimpleTypeSerializerSnapshot[bool]):
    serializer_class = BooleanValueSerializer


@register_snapshot(nested_snapshot(BASE, "ByteValueSerializer"))
class ByteValueSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = ByteValueSerializer


@register_snapshot(nested_snapshot(BASE, "ShortValueSerializer"))
class ShortValueSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = ShortValueSerializer


@register_snapshot(nested_snapshot(BASE, "IntValueSerializer"))
class IntValueSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = IntValueSerializer


@register_snapshot(nested_snapshot(BASE, "LongValueSerializer"))
class LongValueSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = LongValueSerializer


@register_snapshot(nested_snapshot(BASE, "FloatValueSerializer"))
class FloatValueSerializerSnapshot(SimpleTypeSerializerSnapshot[float]):
    serializer_class = FloatValueSerializer


@register_snapshot(nested_snapshot(BASE, "DoubleValueSerializer"))
class DoubleValueSerializerSnapshot(SimpleTypeSerializerSnapshot[float]):
    serializer_class = DoubleValueSerializer


@register_snapshot(nested_snapshot(BASE, "CharValueSerializer"))
class CharValueSerializerSnapshot(SimpleTypeSerializerSnapshot[str]):
    serializer_class = CharValueSerializer


@register_snapshot(nested_snapshot(BASE, "StringValueSerializer"))
class StringValueSerializerSnapshot(SimpleTypeSerializerSnapshot[str]):
    serializer_class = StringValueSerializer
