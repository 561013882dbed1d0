"""The conversion of Avro data: Avro's schema resolution, then once through the new schema, whose types it gets."""

from __future__ import annotations

from typing import Any

from migration.conversion import Conversion, passed_through
from typeserializers.avro.avro_serializer import AvroSerializer
from typeserializers.evolution.evolution_plans import AvroPlan
from typeserializers.kernel.code_generation import ReadEmitter


class AvroConversion(Conversion):
    """The writer's schema resolved to the reader's."""

    plan: AvroPlan
    old: AvroSerializer
    new: AvroSerializer

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        fitted = passed_through(self.new)
        by_aliases = AvroSerializer(self.plan.reader_schema)

        def resolve(data: bytes, position: int) -> tuple[Any, int]:
            value, position = by_aliases.resolved_from(self.old, data, position)
            return fitted(value), position

        reader.line(f"{result}, pos = {reader.function.bind('resolve', resolve)}(data, pos)")
        return result
