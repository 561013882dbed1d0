"""The conversion of two composites of one class: whatever it is, it is rebuilt around converting parts.

A composite's snapshot knows how to put the outer serializer together from nested ones. Put together from parts that
read *old* bytes and return *new* values, it reads the old composite as a new value; its layout is not known here, so
this works for a user's composite as for our own. The value then goes through the new serializer once, because the
outer configuration may have changed too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from migration.conversion import (
    AsIsConversion,
    Conversion,
    Read,
    compile_value,
    emit_part_value,
    passed_through,
)
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView
from snapshots.plans import PartsPlan
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.reading_only import ReadingSerializer
from typeserializers.kernel.type_serializer import TypeSerializer


class ConvertingPartSerializer(ReadingSerializer):
    """Reads what the old part wrote as a value of the new one."""

    def __init__(self, conversion: Conversion) -> None:
        self.conversion = conversion
        self._read: Read | None = None

    @property
    def length(self) -> int:
        return self.conversion.old.length

    @property
    def minimum_length(self) -> int:
        return self.conversion.old.minimum_length

    def create_instance(self) -> Any:
        return self.conversion.new.create_instance()

    def read_from(self, source: DataInputView) -> Any:
        if self._read is None:
            self._read = compile_value(self.conversion)
        value, source.position = self._read(source.data, source.position)
        return value

    def emit_read(self, emitter: ReadEmitter) -> str:
        return emit_part_value(self.conversion, emitter)


class CompositeConversion(Conversion):
    """Two composites of one class, or of two that have one layout."""

    plan: PartsPlan

    def conversions(self) -> list[Conversion]:
        """Those of the nested serializers, in their order."""
        triples = zip(self.plan.parts, nested_serializers(self.old), nested_serializers(self.new), strict=True)
        return [self.scope.conversion(*triple) for triple in triples]

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        passed = reader.function.bind("passed", passed_through(self.new))
        value = self.converting_composite().emit_read(reader)
        reader.line(f"{result} = {passed}({value})")
        return result

    def converting_composite(self) -> TypeSerializer[Any]:
        """The old composite, put together from parts that convert to those of the new one."""
        snapshot = self.old.snapshot_configuration()
        assert isinstance(snapshot, CompositeTypeSerializerSnapshot)
        # A part that does not change stays a serializer: a composite may know the classes of some of its parts.
        parts = [
            conversion.new if type(conversion) is AsIsConversion else ConvertingPartSerializer(conversion)
            for conversion in self.conversions()
        ]
        composite: TypeSerializer[Any] = snapshot.create_outer_serializer(parts)
        return composite


def nested_serializers(serializer: TypeSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
    """The nested serializers of a composite."""
    snapshot = serializer.snapshot_configuration()
    assert isinstance(snapshot, CompositeTypeSerializerSnapshot)
    nested: Sequence[TypeSerializer[Any]] = snapshot.nested_serializers(serializer)
    return nested
