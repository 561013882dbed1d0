"""The conversion of records: field by field, or through the converters of the class.

Each old field is converted to the new one that the plan says goes on from it; removed fields are stepped over; added
ones get their default, from the factory for each record anew. Where the class has converters between the two schema
versions, the whole record goes through `migration.converter_chain` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from migration.conversion import AsIsConversion, Conversion, ConversionScope, Part, Write, emit_part_value
from migration.converted_values import fitted_by
from migration.converter_chain import ConverterChain
from migration.reading_parts import RequiredPartSerializer
from migration.reference_conversion import RecursiveMigration
from snapshots.errors import MalformedDataError
from snapshots.plans import AS_IS, Plan
from typeserializers.evolution.evolution_plans import FieldConverterPlan, RecordConvertersPlan, RecordPlan
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.stepping_over import stepping_over
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.record_shape import RecordField
from typeserializers.records.records import AttrsSerializer


class RecordConversion(Conversion):
    """One record class, or what it became, field by field."""

    plan: RecordPlan
    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    @cached_property
    def _inside(self) -> ConversionScope:
        return self.scope.inside(self.old.shape.name, RecursiveMigration(self))

    def _successors(self) -> dict[int, tuple[RecordField, Conversion]]:
        """By the index of an old field the new one that goes on from it."""
        return {
            origin.index: (part, field_conversion(self._inside, origin.plan, self.old.fields[origin.index], part))
            for part, origin in zip(self.new.fields, self.plan.origins, strict=True)
            if origin is not None
        }

    def emit_value(self, reader: ReadEmitter) -> str:
        successors = self._successors()
        values: dict[str, str] = {}
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            if successor is None:
                stepping_over(part.serializer).emit_read(reader)
                continue
            new, conversion = successor
            values[new.name] = emit_part_value(conversion, reader)
        arguments = [
            values[part.name] if part.name in values else _default_expression(reader, part) for part in self.new.fields
        ]
        return self.new.emit_construction(reader, arguments)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        successors = self._successors()
        writes: dict[str, Write] = {}
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            if successor is None:
                stepping_over(part.serializer).emit_read(reader)
            else:
                new, conversion = successor
                writes[new.name] = conversion.emit_transcoding(reader)

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
        successors = self._successors()
        for index, part in enumerate(self.old.fields):
            successor = successors.get(index)
            if successor is not None:
                yield f".{successor[0].name}", successor[1], position
            _, position = stepping_over(part.serializer).codec.read(data, position)


class RecordConvertersConversion(Conversion):
    """A record whose class has converters between the two schema versions: they get the values of all its fields."""

    plan: RecordConvertersPlan
    old: AttrsSerializer[Any]
    new: AttrsSerializer[Any]

    @cached_property
    def _inside(self) -> ConversionScope:
        return self.scope.inside(self.old.shape.name, RecursiveMigration(self))

    def emit_value(self, reader: ReadEmitter) -> str:
        chain = ConverterChain(self._inside, self.plan, self.old, self.new)
        convert = reader.function.bind("converted", chain.convert)
        items = [part.serializer.emit_read(reader) for part in self.old.fields]
        result = reader.function.fresh("v")
        reader.line(f"{result} = {convert}([{', '.join(items)}])")
        arguments = [f"{result}[{index}]" for index in range(len(self.new.fields))]
        return self.new.emit_construction(reader, arguments)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        for part in self.old.fields:
            yield f".{part.name}", AsIsConversion(self._inside, AS_IS, part.serializer, part.serializer), position
            _, position = stepping_over(part.serializer).codec.read(data, position)


class ConvertedFieldConversion(Conversion):
    """The function in the field's metadata; what it returns must fit."""

    plan: FieldConverterPlan

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        fitted = fitted_by(self.plan.converter, self.new, is_required=self.plan.is_required)
        convert = reader.function.bind("convert", fitted)
        value = self.old.emit_read(reader)
        reader.line(f"{result} = {convert}({value})")
        return result

    @property
    def reads_old_whole(self) -> bool:
        return True


def field_conversion(scope: ConversionScope, plan: Plan, old: RecordField, new: RecordField) -> Conversion:
    """The conversion of a field; a null that it did not mean is refused, though its serializer reads one."""
    reading: TypeSerializer[Any] = old.serializer
    if old.refuses_none:
        reading = RequiredPartSerializer(old.serializer, old.name)
    return scope.conversion(plan, reading, new.serializer)


def _refuse_made(name: str) -> None:
    raise MalformedDataError(f".{name}: its factory made None, but the field is not optional")


def _default_expression(reader: ReadEmitter, part: RecordField) -> str:
    if part.default_factory is not None:
        return f"{reader.function.bind('factory', part.default_factory)}()"
    if part.serializer.is_immutable_type:
        return reader.function.bind("default", part.default)
    copy = reader.function.bind("copy", part.serializer.copy)
    return f"{copy}({reader.function.bind('default', part.default)})"
