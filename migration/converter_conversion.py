"""The conversion into a `ConvertingSerializer`: by the rules of its inner serializer, else through its function."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migration.conversion import (
    Conversion,
    Part,
    Write,
    conversion_between,
    emit_part_value,
    register_conversion,
    register_wrapping_conversion,
)
from migration.converted_values import fitted_by
from typeserializers.containers.converting import Converter, ConvertingSerializer
from typeserializers.kernel.code_generation import ReadEmitter


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
        convert = reader.function.bind("convert", fitted_by(converter.function, self.new.inner))
        value = emit_part_value(conversion_between(self.old, converter.source), reader)
        reader.line(f"{result} = {convert}({value})")
        return result

    @property
    def reads_old_whole(self) -> bool:
        converter = self._converter()
        target = self.new.inner if converter is None else converter.source
        return conversion_between(self.old, target).reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        converter = self._converter()
        yield "", conversion_between(self.old, self.new.inner if converter is None else converter.source), position

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
