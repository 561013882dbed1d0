"""The conversion into a `ConvertingSerializer`: to its inner serializer, by the rules or through a converter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migration.conversion import Conversion, Part, Write, emit_part_value
from migration.converted_values import fitted_by
from typeserializers.containers.converting import ConvertingSerializer
from typeserializers.evolution.evolution_plans import ConverterPlan, InnerPlan
from typeserializers.kernel.code_generation import ReadEmitter


class InnerConversion(Conversion):
    """What the inner serializer may take over by itself."""

    plan: InnerPlan
    new: ConvertingSerializer[Any]

    def _inner(self) -> Conversion:
        return self.scope.conversion(self.plan.inner, self.old, self.new.inner)

    def emit_value(self, reader: ReadEmitter) -> str:
        return emit_part_value(self._inner(), reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        return self._inner().emit_transcoding(reader)

    @property
    def reads_old_whole(self) -> bool:
        return self._inner().reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._inner(), position


class ConverterConversion(Conversion):
    """What the source of a converter reads goes through its function."""

    plan: ConverterPlan
    new: ConvertingSerializer[Any]

    def _source(self) -> Conversion:
        return self.scope.conversion(self.plan.source, self.old, self.plan.converter.source)

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        convert = reader.function.bind("convert", fitted_by(self.plan.converter.function, self.new.inner))
        value = emit_part_value(self._source(), reader)
        reader.line(f"{result} = {convert}({value})")
        return result

    @property
    def reads_old_whole(self) -> bool:
        return self._source().reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._source(), position
