"""The built-in conversions of scalars and containers: promotions, optionals, lists, maps and tuples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from migration.composite_conversion import converting_composite
from migration.conversion import (
    Conversion,
    Part,
    Write,
    conversion_between,
    emit_part_value,
    register_conversion,
    register_wrapping_conversion,
)
from snapshots.value_text import shown
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.evolution.promotions import PROMOTIONS, Pair
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.counts import check_count
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, IntSerializer

_FLAG = BooleanSerializer()
_COUNT = IntSerializer()


def _register_promotion(pair: Pair) -> None:
    promotion = PROMOTIONS[pair]

    class PromotingConversion(Conversion):
        """A widening: the old value goes through what the promotion says."""

        old_class, new_class = pair

        def emit_value(self, reader: ReadEmitter) -> str:
            return promotion.emit(reader.function, self.old.emit_read(reader))

        @property
        def reads_old_whole(self) -> bool:
            return True

        @property
        def is_injective(self) -> bool:
            return promotion.is_injective

    register_conversion(PromotingConversion)


for _pair in PROMOTIONS:
    _register_promotion(_pair)


@register_conversion
class NullableConversion(Conversion):
    """A null stays null, a value is converted."""

    old_class = NullableSerializer
    new_class = NullableSerializer

    old: NullableSerializer[Any]
    new: NullableSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        is_null = reader.fixed("?")
        result = reader.function.fresh("v")
        reader.line(f"if {is_null}: {result} = None; pos += {self.old.padding_length}")
        present = reader.child()
        value = emit_part_value(conversion_between(self.old.inner, self.new.inner), present)
        present.line(f"{result} = {value}")
        reader.block("else:", present)
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        is_null = reader.fixed("?")
        encoded = reader.function.fresh("b")
        null = b"\x01" + bytes(self.new.padding_length)
        reader.line(f"if {is_null}: {encoded} = {null!r}; pos += {self.old.padding_length}")
        present = reader.child()
        write = conversion_between(self.old.inner, self.new.inner).emit_transcoding(present)
        writer = WriteEmitter(reader.function)
        writer.fixed("?", "False")
        _emit_written(present, writer, write, lambda expression: f"{encoded} = {expression}")
        reader.block("else:", present)
        return lambda outer: outer.append(encoded)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        if not data[position]:
            yield "", conversion_between(self.old.inner, self.new.inner), position + 1


@register_wrapping_conversion
class BecameOptionalConversion(Conversion):
    """Every old value is present."""

    new_class = NullableSerializer

    new: NullableSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        return emit_part_value(conversion_between(self.old, self.new.inner), reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        write = conversion_between(self.old, self.new.inner).emit_transcoding(reader)

        def write_present(writer: WriteEmitter) -> None:
            writer.fixed("?", "False")
            write(writer)

        return write_present

    @property
    def reads_old_whole(self) -> bool:
        return conversion_between(self.old, self.new.inner).reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", conversion_between(self.old, self.new.inner), position


class ListConversion(Conversion):
    """Element by element."""

    old: ListSerializer[Any]
    new: ListSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        return converting_composite(self.old, self.new).emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        count, chunks = reader.fixed("i"), reader.function.fresh("v")
        check = reader.function.bind("check_count", check_count)
        element = reader.function.bind("serializer", self.old.element_serializer)
        reader.line(f"{check}({count}, len(data) - pos, {element})")
        reader.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        body = reader.child()
        write = conversion_between(self.old.element_serializer, self.new.element_serializer).emit_transcoding(body)
        _emit_written(body, WriteEmitter(reader.function), write, lambda expression: f"{chunks}_append({expression})")
        reader.block(f"for _ in range({count}):", body)

        def write_list(writer: WriteEmitter) -> None:
            writer.fixed("i", count)
            writer.append(f"b''.join({chunks})")

        return write_list

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        conversion = conversion_between(self.old.element_serializer, self.new.element_serializer)
        count, position = _COUNT.codec.read(data, position)
        for index in range(count):
            yield f"[{index}]", conversion, position
            _, position = self.old.element_serializer.codec.read(data, position)


def _register_list(old: type[TypeSerializer[Any]], new: type[TypeSerializer[Any]]) -> None:
    names = {"old_class": old, "new_class": new, "__module__": __name__}
    register_conversion(type("ListConversion", (ListConversion,), names))


# The two list serializers have one layout and adopt each other's state.
for _old_class in (ListSerializer, ArrayListSerializer):
    for _new_class in (ListSerializer, ArrayListSerializer):
        _register_list(_old_class, _new_class)


@register_conversion
class MapConversion(Conversion):
    """Entry by entry; a null value stays null. Keys that become equal are refused, since one would be lost."""

    old_class = MapSerializer
    new_class = MapSerializer

    old: MapSerializer[Any, Any]
    new: MapSerializer[Any, Any]

    def _keys(self) -> Conversion:
        return conversion_between(self.old.key_serializer, self.new.key_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        return converting_composite(self.old, self.new).emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        if not self._keys().is_injective:
            return super().emit_transcoding(reader)
        function = reader.function
        count, chunks = reader.fixed("i"), function.fresh("chunks")
        self._check_count(reader, count)
        reader.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        body = reader.child()
        write_key = self._keys().emit_transcoding(body)
        is_null = body.fixed("?")
        body.flush()
        _emit_written(body, WriteEmitter(function), write_key, lambda expression: f"{chunks}_append({expression})")
        body.line(f"if {is_null}: {chunks}_append(b'\\x01')")
        present = body.child()
        write = conversion_between(self.old.value_serializer, self.new.value_serializer).emit_transcoding(present)
        writer = WriteEmitter(function)
        writer.fixed("?", "False")
        _emit_written(present, writer, write, lambda expression: f"{chunks}_append({expression})")
        body.block("else:", present)
        reader.block(f"for _ in range({count}):", body)

        def write_map(outer: WriteEmitter) -> None:
            outer.fixed("i", count)
            outer.append(f"b''.join({chunks})")

        return write_map

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        values = conversion_between(self.old.value_serializer, self.new.value_serializer)
        count, position = _COUNT.codec.read(data, position)
        for _ in range(count):
            yield "<key>", self._keys(), position
            key, position = self.old.key_serializer.codec.read(data, position)
            is_null, position = _FLAG.codec.read(data, position)
            if not is_null:
                yield f"[{shown(key)}]", values, position
                _, position = self.old.value_serializer.codec.read(data, position)

    def _check_count(self, reader: ReadEmitter, count: str) -> None:
        check = reader.function.bind("check_count", check_count)
        key = reader.function.bind("serializer", self.old.key_serializer)
        reader.line(f"{check}({count}, len(data) - pos, {key}, {reader.function.bind('flag', _FLAG)})")


@register_conversion
class TupleConversion(Conversion):
    """Field by field, by position."""

    old_class = TupleSerializer
    new_class = TupleSerializer

    old: TupleSerializer
    new: TupleSerializer

    def _parts(self) -> list[Conversion]:
        pairs = zip(self.old.field_serializers, self.new.field_serializers, strict=True)
        return [conversion_between(old, new) for old, new in pairs]

    def emit_value(self, reader: ReadEmitter) -> str:
        return f"({', '.join([emit_part_value(part, reader) for part in self._parts()])},)"

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        writes = [part.emit_transcoding(reader) for part in self._parts()]

        def write_tuple(writer: WriteEmitter) -> None:
            for write in writes:
                write(writer)

        return write_tuple

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        for index, part in enumerate(self._parts()):
            yield f"[{index}]", part, position
            _, position = part.old.codec.read(data, position)


def _emit_written(reader: ReadEmitter, writer: WriteEmitter, write: Write, use: Callable[[str], str]) -> None:
    """Emits the write right behind the read, in the reader's lines; ``use`` makes a statement of the expression."""
    reader.flush()
    write(writer)
    reader.lines += [*writer.lines, use(writer.expression())]
