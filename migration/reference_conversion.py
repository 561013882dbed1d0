"""The conversion of a record inside itself: a call of the conversion of the record, looked up when it runs.

Each record that is converted is known by its name to what is inside it (`ConversionScope.inside`), as one migration, to
which its own generated code refers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migration.conversion import Conversion, Part, Read, Write, compile_transcoding, compile_value
from typeserializers.evolution.evolution_plans import ReferencePlan
from typeserializers.kernel.code_generation import ReadEmitter


class RecursiveMigration:
    """The two functions of the conversion of a record, compiled when the first value inside a value is met."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self._read: Read | None = None
        self._transcode: Read | None = None

    def read(self, data: bytes, position: int) -> tuple[Any, int]:
        """The new value of an old one inside the data."""
        if self._read is None:
            self._read = compile_value(self.conversion)
        return self._read(data, position)

    def transcode(self, data: bytes, position: int) -> tuple[Any, int]:
        """The new bytes of an old value inside the data."""
        if self._transcode is None:
            self._transcode = compile_transcoding(self.conversion)
        return self._transcode(data, position)


class ReferenceConversion(Conversion):
    """The record that is meant, converted as it is around the reference."""

    plan: ReferencePlan

    def _record(self) -> RecursiveMigration:
        record: RecursiveMigration = self.scope.record_named(self.plan.name)
        return record

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._record().conversion, position

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        record = reader.function.bind("record", self._record())
        reader.line(f"{result}, pos = {record}.read(data, pos)")
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        encoded = reader.function.fresh("b")
        record = reader.function.bind("record", self._record())
        reader.line(f"{encoded}, pos = {record}.transcode(data, pos)")
        return lambda writer: writer.append(encoded)
