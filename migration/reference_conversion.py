"""The conversion of a record inside itself: a call of the conversion of the record, looked up when it runs.

The two records of a pair are converted in one way wherever they stand, so there is one migration for each pair, which
its own generated code refers to. It lives as long as some generated code does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakValueDictionary

from migration.conversion import (
    Conversion,
    Part,
    Read,
    Write,
    compile_transcoding,
    compile_value,
    conversion_between,
    register_conversion,
)
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.type_serializer import TypeSerializer


class RecursiveMigration:
    """The two functions of a pair of records, compiled when the first value inside a value is met."""

    def __init__(self, old: TypeSerializer[Any], new: TypeSerializer[Any]) -> None:
        self.old = old
        self.new = new
        self._read: Read | None = None
        self._transcode: Read | None = None

    def read(self, data: bytes, position: int) -> tuple[Any, int]:
        """The new value of an old one inside the data."""
        if self._read is None:
            self._read = compile_value(conversion_between(self.old, self.new))
        return self._read(data, position)

    def transcode(self, data: bytes, position: int) -> tuple[Any, int]:
        """The new bytes of an old value inside the data."""
        if self._transcode is None:
            self._transcode = compile_transcoding(conversion_between(self.old, self.new))
        return self._transcode(data, position)


# The migration holds both serializers, so an identity cannot be given to another one while its entry is there.
_migrations: WeakValueDictionary[tuple[int, int], RecursiveMigration] = WeakValueDictionary()


def recursive_migration(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> RecursiveMigration:
    """The one migration of the pair."""
    key = id(old), id(new)
    found = _migrations.get(key)
    if found is None:
        found = _migrations[key] = RecursiveMigration(old, new)
    return found


@register_conversion
class ReferenceConversion(Conversion):
    """The record that is meant, converted as it is at the top."""

    old_class = ReferenceSerializer
    new_class = ReferenceSerializer

    old: ReferenceSerializer
    new: ReferenceSerializer

    def _migration(self, reader: ReadEmitter) -> str:
        return reader.function.bind("migration", recursive_migration(self.old.target, self.new.target))

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", conversion_between(self.old.target, self.new.target), position

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        reader.line(f"{result}, pos = {self._migration(reader)}.read(data, pos)")
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        encoded = reader.function.fresh("b")
        reader.line(f"{encoded}, pos = {self._migration(reader)}.transcode(data, pos)")
        return lambda writer: writer.append(encoded)
