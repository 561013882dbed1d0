"""The conversion of Arrow data: columns by name, cast where they were widened, null where they are new."""

from __future__ import annotations

from typing import Any

from migration.conversion import Conversion, register_conversion
from typeserializers.arrow.arrow_evolution import convert_batch
from typeserializers.arrow.arrow_serializer import ArrowIpcSerializer, ArrowSerializer, ArrowStructSerializer
from typeserializers.kernel.code_generation import ReadEmitter


class ArrowConversion(Conversion):
    """Batches, and structs as batches of one row."""

    old: ArrowIpcSerializer[Any]
    new: ArrowIpcSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")

        def convert(data: bytes, position: int) -> tuple[Any, int]:
            batch, position = self.old.read_batch(data, position)
            return self.new.from_batch(convert_batch(batch, self.new.schema)), position

        reader.line(f"{result}, pos = {reader.function.bind('convert', convert)}(data, pos)")
        return result


@register_conversion
class ArrowBatchConversion(ArrowConversion):
    """Record batches."""

    old_class = ArrowSerializer
    new_class = ArrowSerializer


@register_conversion
class ArrowStructConversion(ArrowConversion):
    """Struct values."""

    old_class = ArrowStructSerializer
    new_class = ArrowStructSerializer
