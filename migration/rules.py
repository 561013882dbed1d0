"""The built-in conversions: promotions, optionals, lists, maps, tuples and records."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migration.conversion import (
    Conversion,
    Write,
    conversion_between,
    register_conversion,
    register_wrapping_conversion,
)
from typeserializers.code_generation import ReadEmitter, WriteEmitter
from typeserializers.counts import check_count
from typeserializers.fixed_width import BooleanSerializer
from typeserializers.lists import ListSerializer
from typeserializers.maps import MapSerializer
from typeserializers.nullable import NullableSerializer
from typeserializers.promotions import PROMOTIONS
from typeserializers.record_evolution import match_fields
from typeserializers.record_shape import RecordField
from typeserializers.records import AttrsSerializer
from typeserializers.tuples import TupleSerializer

_FLAG = BooleanSerializer()


def _register_promotion(pair: tuple[Any, Any]) -> None:
    expression = PROMOTIONS[pair].expression

    class PromotingConversion(Conversion):
        """A widening: the old value goes through the expression of the promotion."""

        old_class, new_class = pair

        def emit_value(self, reader: ReadEmitter) -> str:
            return expression.format(self.old.emit_read(reader))

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
        value = conversion_between(self.old.inner, self.new.inner).emit_value(present)
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


@register_wrapping_conversion
class BecameOptionalConversion(Conversion):
    """Every old value is present."""

    new_class = NullableSerializer

    new: NullableSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        return conversion_between(self.old, self.new.inner).emit_value(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        write = conversion_between(self.old, self.new.inner).emit_transcoding(reader)

        def write_present(writer: WriteEmitter) -> None:
            writer.fixed("?", "False")
            write(writer)

        return write_present


@register_conversion
class ListConversion(Conversion):
    """Element by element."""

    old_class = ListSerializer
    new_class = ListSerializer

    old: ListSerializer[Any]
    new: ListSerializer[Any]

    def _begin(self, reader: ReadEmitter) -> tuple[str, str, Conversion]:
        count, result = reader.fixed("i"), reader.function.fresh("v")
        check = reader.function.bind("check_count", check_count)
        element = reader.function.bind("serializer", self.old.element_serializer)
        reader.line(f"{check}({count}, len(data) - pos, {element})")
        reader.line(f"{result} = []; {result}_append = {result}.append")
        return count, result, conversion_between(self.old.element_serializer, self.new.element_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        count, result, elements = self._begin(reader)
        body = reader.child()
        value = elements.emit_value(body)
        body.line(f"{result}_append({value})")
        reader.block(f"for _ in range({count}):", body)
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        count, chunks, elements = self._begin(reader)
        body = reader.child()
        write = elements.emit_transcoding(body)
        _emit_written(body, WriteEmitter(reader.function), write, lambda expression: f"{chunks}_append({expression})")
        reader.block(f"for _ in range({count}):", body)

        def write_list(writer: WriteEmitter) -> None:
            writer.fixed("i", count)
            writer.append(f"b''.join({chunks})")

        return write_list


@register_conversion
class MapConversion(Conversion):
    """Entry by entry; a null value stays null. Keys that become equal are refused, since one would be lost."""

    old_class = MapSerializer
    new_class = MapSerializer

    old: MapSerializer[Any, Any]
    new: MapSerializer[Any, Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        function = reader.function
        count, result, key = reader.fixed("i"), function.fresh("v"), function.fresh("k")
        self._check_count(reader, count)
        reader.line(f"{result} = {{}}")
        body = reader.child()
        key_value = conversion_between(self.old.key_serializer, self.new.key_serializer).emit_value(body)
        is_null = body.fixed("?")
        body.line(f"{key} = {key_value}")
        body.line(f"if {is_null}: {result}[{key}] = None")
        present = body.child()
        value = conversion_between(self.old.value_serializer, self.new.value_serializer).emit_value(present)
        present.line(f"{result}[{key}] = {value}")
        body.block("else:", present)
        reader.block(f"for _ in range({count}):", body)
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        function = reader.function
        count, chunks = reader.fixed("i"), function.fresh("chunks")
        self._check_count(reader, count)
        reader.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        body = reader.child()
        write_key = conversion_between(self.old.key_serializer, self.new.key_serializer).emit_transcoding(body)
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
        return f"({', '.join([part.emit_value(reader) for part in self._parts()])},)"

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        writes = [part.emit_transcoding(reader) for part in self._parts()]

        def write_tuple(writer: WriteEmitter) -> None:
            for write in writes:
                write(writer)

        return write_tuple


@register_conversion
class RecordConversion(Conversion):
    """By field name and former names; removed fields are read and dropped, added ones get their default."""

    old_class = AttrsSerializer
    new_class = AttrsSerializer

    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    def _new_field_of(self) -> dict[int, RecordField]:
        matches = match_fields([part.name for part in self.old.fields], self.new.fields)
        return {match.old_index: match.new for match in matches if match.old_index is not None}

    def emit_value(self, reader: ReadEmitter) -> str:
        new_field_of = self._new_field_of()
        values: dict[str, str] = {}
        for index, part in enumerate(self.old.fields):
            new = new_field_of.get(index)
            if new is None:
                part.serializer.emit_read(reader)
            else:
                values[new.name] = conversion_between(part.serializer, new.serializer).emit_value(reader)
        arguments = [
            values[part.name] if part.name in values else _default_expression(reader, part) for part in self.new.fields
        ]
        return self.new.emit_construction(reader.function, arguments)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        new_field_of = self._new_field_of()
        writes: dict[str, Write] = {}
        for index, part in enumerate(self.old.fields):
            new = new_field_of.get(index)
            if new is None:
                part.serializer.emit_read(reader)
            else:
                writes[new.name] = conversion_between(part.serializer, new.serializer).emit_transcoding(reader)

        def write_record(writer: WriteEmitter) -> None:
            for part in self.new.fields:
                write = writes.get(part.name)
                if write is not None:
                    write(writer)
                elif part.default_factory is not None:
                    factory = writer.function.bind("factory", part.default_factory)
                    part.serializer.emit_write(writer, writer.once(f"{factory}()"))
                else:
                    writer.append(repr(part.serializer.to_bytes(part.make_default())))

        return write_record


def _default_expression(reader: ReadEmitter, part: RecordField) -> str:
    if part.default_factory is not None:
        return f"{reader.function.bind('factory', part.default_factory)}()"
    if part.serializer.is_immutable_type:
        return reader.function.bind("default", part.default)
    copy = reader.function.bind("copy", part.serializer.copy)
    return f"{copy}({reader.function.bind('default', part.default)})"


def _emit_written(reader: ReadEmitter, writer: WriteEmitter, write: Write, use: Callable[[str], str]) -> None:
    """Emits the write right behind the read, in the reader's lines; ``use`` makes a statement of the expression."""
    reader.flush()
    write(writer)
    reader.lines += [*writer.lines, use(writer.expression())]


