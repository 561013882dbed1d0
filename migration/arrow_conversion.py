"""The conversion of Arrow data: columns by the plan, cast where they were widened, null where they are new."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from migration.conversion import Conversion
from typeserializers.arrow.arrow_serializer import ArrowIpcSerializer
from typeserializers.evolution.evolution_plans import ArrowPlan
from typeserializers.kernel.code_generation import ReadEmitter


class ArrowConversion(Conversion):
    """Batches, and structs as batches of one row."""

    plan: ArrowPlan
    old: ArrowIpcSerializer[Any]
    new: ArrowIpcSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")

        def convert(data: bytes, position: int) -> tuple[Any, int]:
            batch, position = self.old.read_batch(data, position)
            return self.new.from_batch(self._converted(batch)), position

        reader.line(f"{result}, pos = {reader.function.bind('convert', convert)}(data, pos)")
        return result

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch under the new schema; raises `pyarrow.ArrowInvalid` if values would change."""
        columns = [
            pa.nulls(batch.num_rows, part.type) if place is None else batch.column(place).cast(part.type, safe=True)
            for part, place in zip(self.new.schema, self.plan.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.new.schema)
