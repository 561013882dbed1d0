"""The conversion of unions: each old member to the one that goes on from it; a value that becomes one of several."""

from __future__ import annotations

from typing import Any

from migration.conversion import (
    Conversion,
    Write,
    conversion_between,
    emit_part_value,
    register_conversion,
    register_wrapping_conversion,
)
from migration.reading_parts import RequiredPartSerializer
from snapshots.errors import UnresolvableSerializerError
from typeserializers.containers.unions import UnionSerializer
from typeserializers.evolution.union_evolution import match_members
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.type_serializer import TypeSerializer


def _continuing(old: TypeSerializer[Any], new: UnionSerializer) -> list[int]:
    """The index of the new member that goes on from each old one: of a union, or of one type that becomes a member."""
    old = old.inner if isinstance(old, RequiredPartSerializer) else old
    olds = old.member_serializers if isinstance(old, UnionSerializer) else (old,)
    matches = match_members([member.snapshot_configuration() for member in olds], new.member_serializers)
    indexes = [match.new_index for match in matches if match.new_index is not None]
    if len(indexes) != len(olds):
        raise UnresolvableSerializerError(f"{old!r} cannot become {new!r}: some member has nothing to go on as")
    return indexes


@register_conversion
class UnionConversion(Conversion):
    """Member by member."""

    old_class = UnionSerializer
    new_class = UnionSerializer

    old: UnionSerializer
    new: UnionSerializer

    def _members(self) -> list[tuple[int, Conversion]]:
        members = []
        for member, index in zip(self.old.member_serializers, _continuing(self.old, self.new), strict=True):
            reading = member
            if self.old.refuses_none(member):
                reading = RequiredPartSerializer(member, f"{{member {member.type_name}}}")
            members.append((index, conversion_between(reading, self.new.member_serializers[index])))
        return members

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        members = self._members()

        def emit_member(branch: ReadEmitter, index: int) -> None:
            branch.line(f"{result} = {emit_part_value(members[index][1], branch)}")

        self.old.emit_branches(reader, emit_member)
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        encoded = reader.function.fresh("b")
        members = self._members()

        def emit_member(branch: ReadEmitter, index: int) -> None:
            new_index, conversion = members[index]
            write = conversion.emit_transcoding(branch)
            branch.flush()
            writer = WriteEmitter(branch.function)
            writer.append(repr(self.new.prefixes[new_index]))
            write(writer)
            branch.lines += [*writer.lines, f"{encoded} = {writer.expression()}"]

        self.old.emit_branches(reader, emit_member)
        return lambda outer: outer.append(encoded)


@register_wrapping_conversion
class BecameUnionConversion(Conversion):
    """Every old value is of one member."""

    new_class = UnionSerializer

    new: UnionSerializer

    def _conversion(self) -> tuple[int, Conversion]:
        (index,) = _continuing(self.old, self.new)
        reading = self.old
        if reading.accepts_none and self.new.refuses_none(self.new.member_serializers[index]):
            reading = RequiredPartSerializer(reading, reading.type_name)
        return index, conversion_between(reading, self.new.member_serializers[index])

    def emit_value(self, reader: ReadEmitter) -> str:
        return emit_part_value(self._conversion()[1], reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        index, conversion = self._conversion()
        write = conversion.emit_transcoding(reader)

        def write_member(writer: WriteEmitter) -> None:
            writer.append(repr(self.new.prefixes[index]))
            write(writer)

        return write_member
