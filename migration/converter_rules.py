"""The conversion into a `ConvertingSerializer`: by the rules of its inner serializer, else through its function."""

from __future__ import annotations

from typing import Any

from migration.conversion import (
    Conversion,
    Write,
    conversion_between,
    emit_part_value,
    passed_through,
    register_conversion,
    register_wrapping_conversion,
)
from typeserializers.code_generation import ReadEmitter
from typeserializers.converting import Converter, ConvertingSerializer


@register_wrapping_conversion
class ConvertingConversion(Conversion):
    """Anything that the inner serializer, or the source of a converter, may take over."""

    new_class = ConvertingSerializer

    new: ConvertingSerializer[Any]

    def _converter(self) -> Converter | None:
        return self.new.converter_for(self.old.snapshot_configuration())

    def emit_value(self, reader: ReadEmitter) -> str:
        converter = self._converter()
        if converter is None:
            return emit_part_value(conversion_between(self.old, self.new.inner), reader)
        result = reader.function.fresh("v")
        convert = reader.function.bind("convert", converter.function)
        fitted = reader.function.bind("fitted", passed_through(self.new.inner))
        value = emit_part_value(conversion_between(self.old, converter.source), reader)
        reader.line(f"{result} = {fitted}({convert}({value}))")
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        if self._converter() is None:
            return conversion_between(self.old, self.new.inner).emit_transcoding(reader)
        return super().emit_transcoding(reader)


@register_conversion
class InnerConversion(ConvertingConversion):
    """Two converting serializers: the old one wrote what its inner serializer writes."""

    old_class = ConvertingSerializer

    old: ConvertingSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        return ConvertingConversion(self.old.inner, self.new).emit_value(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        return ConvertingConversion(self.old.inner, self.new).emit_transcoding(reader)
