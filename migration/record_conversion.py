"""The conversion of records: by field name and former names, and through converters where the rules end.

Field by field, each old field is converted to the new one that continues it; removed fields are stepped over;
added ones get their default, from the factory for each record anew. A field that the rules refuse goes through the
converter in its metadata. Where the class has converters between the two schema versions, the whole record goes
through `migration.converter_chain` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migration.conversion import (
    Conversion,
    Part,
    PassingConversion,
    Write,
    conversion_between,
    emit_part_value,
    register_conversion,
)
from migration.converted_values import fitted_by
from migration.converter_chain import ConverterChain
from migration.reading_parts import RequiredPartSerializer
from migration.skipped_parts import skipping
from snapshots.errors import MalformedDataError
from typeserializers.evolution.field_matching import match_fields
from typeserializers.evolution.part_evolution import resolve_part
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_shape import RecordField
from typeserializers.records.records import AttrsSerializer


@register_conversion
class RecordConversion(Conversion):
    """One record class, or what it became."""

    old_class = AttrsSerializer
    new_class = AttrsSerializer

    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    def _new_field_of(self) -> dict[int, RecordField]:
        matches = match_fields(self.old.fields, self.new.fields)
        return {match.old_index: match.new for match in matches if match.old_index is not None}

    def emit_value(self, reader: ReadEmitter) -> str:
        if self.new.shape.conversion_steps(self.old.shape.schema_version):
            return self._emit_chain(reader)
        new_field_of = self._new_field_of()
        values: dict[str, str] = {}
        for index, part in enumerate(self.old.fields):
            new = new_field_of.get(index)
            if new is None:
                skipping(part.serializer).emit_read(reader)
                continue
            values[new.name] = emit_part_value(part_conversion(part, new), reader)
        arguments = [
            values[part.name] if part.name in values else _default_expression(reader, part) for part in self.new.fields
        ]
        return self.new.emit_construction(reader, arguments)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        if self.new.shape.conversion_steps(self.old.shape.schema_version):
            return super().emit_transcoding(reader)
        new_field_of = self._new_field_of()
        writes: dict[str, Write] = {}
        for index, part in enumerate(self.old.fields):
            new = new_field_of.get(index)
            if new is None:
                skipping(part.serializer).emit_read(reader)
            else:
                writes[new.name] = part_conversion(part, new).emit_transcoding(reader)

        def write_record(writer: WriteEmitter) -> None:
            for part in self.new.fields:
                write = writes.get(part.name)
                if write is not None:
                    write(writer)
                elif part.default_factory is not None:
                    made = writer.once(f"{writer.function.bind('factory', part.default_factory)}()")
                    if part.refuses_none:
                        refuse = writer.function.bind("refuse_made", _refuse_made)
                        writer.line(f"if {made} is None: {refuse}({part.name!r})")
                    part.serializer.emit_write(writer, made)
                else:
                    writer.append(repr(part.serializer.to_bytes(part.make_default())))

        return write_record

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        is_chain = bool(self.new.shape.conversion_steps(self.old.shape.schema_version))
        new_field_of = {} if is_chain else self._new_field_of()
        for index, part in enumerate(self.old.fields):
            new = new_field_of.get(index)
            if new is not None:
                yield f".{new.name}", part_conversion(part, new), position
            elif is_chain:
                yield f".{part.name}", PassingConversion(part.serializer, part.serializer), position
            _, position = skipping(part.serializer).codec.read(data, position)

    def _emit_chain(self, reader: ReadEmitter) -> str:
        chain = reader.function.bind("converted", ConverterChain(self.old, self.new).convert)
        items = [part.serializer.emit_read(reader) for part in self.old.fields]
        result = reader.function.fresh("v")
        reader.line(f"{result} = {chain}([{', '.join(items)}])")
        arguments = [f"{result}[{index}]" for index in range(len(self.new.fields))]
        return self.new.emit_construction(reader, arguments)


def part_conversion(old: RecordField, new: RecordField) -> Conversion:
    """The conversion of a field: by the rules if they allow it, else by the field's converter."""
    reading: TypeSerializer[Any] = old.serializer
    if old.refuses_none:
        reading = RequiredPartSerializer(old.serializer, old.name)
    converter = new.converter
    if converter is None or not resolve_part(old.serializer.snapshot_configuration(), new.serializer).is_incompatible:
        return conversion_between(reading, new.serializer)
    convert = fitted_by(converter, new.serializer, is_required=new.refuses_none)

    class ConvertedFieldConversion(Conversion):
        """The function in the field's metadata; what it returns must fit."""

        def emit_value(self, reader: ReadEmitter) -> str:
            result = reader.function.fresh("v")
            function = reader.function.bind("convert", convert)
            value = self.old.emit_read(reader)
            reader.line(f"{result} = {function}({value})")
            return result

        @property
        def reads_old_whole(self) -> bool:
            return True

    return ConvertedFieldConversion(reading, new.serializer)


def _refuse_made(name: str) -> None:
    raise MalformedDataError(f".{name}: its factory made None, but the field is not optional")


def _default_expression(reader: ReadEmitter, part: RecordField) -> str:
    if part.default_factory is not None:
        return f"{reader.function.bind('factory', part.default_factory)}()"
    if part.serializer.is_immutable_type:
        return reader.function.bind("default", part.default)
    copy = reader.function.bind("copy", part.serializer.copy)
    return f"{copy}({reader.function.bind('default', part.default)})"
