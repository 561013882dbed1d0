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
    Conversion,
    PassingConversion,
    Read,
    compile_value,
    conversion_between,
    emit_part_value,
    passed_through,
    register_composite_conversion,
)
from migration.reading_parts import ReadingSerializer
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView
from typeserializers.kernel.code_generation import ReadEmitter
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


@register_composite_conversion
class CompositeConversion(Conversion):
    """Any two composites of one class."""

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        passed = reader.function.bind("passed", passed_through(self.new))
        value = converting_composite(self.old, self.new).emit_read(reader)
        reader.line(f"{result} = {passed}({value})")
        return result


def converting_composite(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> TypeSerializer[Any]:
    """The old composite, put together from parts that convert to those of the new one."""
    snapshot = old.snapshot_configuration()
    assert isinstance(snapshot, CompositeTypeSerializerSnapshot)
    conversions = [conversion_between(*pair) for pair in zip(_nested(old), _nested(new), strict=True)]
    # A part that does not change stays what it is: a composite may know the classes of some of its parts.
    parts = [
        conversion.old if type(conversion) is PassingConversion else ConvertingPartSerializer(conversion)
        for conversion in conversions
    ]
    composite: TypeSerializer[Any] = snapshot.create_outer_serializer(parts)
    return composite


def _nested(serializer: TypeSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
    snapshot = serializer.snapshot_configuration()
    assert isinstance(snapshot, CompositeTypeSerializerSnapshot)
    nested: Sequence[TypeSerializer[Any]] = snapshot.nested_serializers(serializer)
    return nested
