"""The conversion of unions: each old member to the one that goes on from it; a value that becomes one of several."""

from __future__ import annotations

from migration.conversion import Conversion, Write, emit_part_value
from migration.reading_parts import RequiredPartSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.evolution.evolution_plans import BecameUnionPlan, UnionPlan
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter


class UnionConversion(Conversion):
    """Member by member."""

    plan: UnionPlan
    old: UnionSerializer
    new: UnionSerializer

    def _members(self) -> list[tuple[int, Conversion]]:
        members = []
        for member, successor in zip(self.old.member_serializers, self.plan.successors, strict=True):
            reading = member
            if self.old.refuses_none(member):
                reading = RequiredPartSerializer(member, f"{{member {member.type_name}}}")
            new = self.new.member_serializers[successor.index]
            members.append((successor.index, self.scope.conversion(successor.plan, reading, new)))
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


class BecameUnionConversion(Conversion):
    """Every old value is of one member."""

    plan: BecameUnionPlan
    new: UnionSerializer

    def _value(self) -> Conversion:
        member = self.new.member_serializers[self.plan.successor.index]
        reading = self.old
        if reading.accepts_none and self.new.refuses_none(member):
            reading = RequiredPartSerializer(reading, reading.type_name)
        return self.scope.conversion(self.plan.successor.plan, reading, member)

    def emit_value(self, reader: ReadEmitter) -> str:
        return emit_part_value(self._value(), reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        prefix = repr(self.new.prefixes[self.plan.successor.index])
        write = self._value().emit_transcoding(reader)

        def write_member(writer: WriteEmitter) -> None:
            writer.append(prefix)
            write(writer)

        return write_member
