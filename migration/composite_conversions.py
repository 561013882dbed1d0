"""Conversions of scalars, containers, unions and values with time-to-live.

A composite is converted by rebuilding it around converting parts (`CompositeConversion`). Its snapshot creates the
outer serializer from parts that read *old* bytes and return *new* values, so the layout of the composite need not be
known, and custom composites work too. The value then passes through the new serializer once, because the outer
configuration may have changed.

Built-in containers have faster conversions that also transcode bytes to bytes. Values with a time-to-live keep the time
of their last access, get one, or lose it; the value inside is converted by its own plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

from migration.conversion import (
    AsIsConversion,
    Conversion,
    Part,
    Read,
    RequiredPartSerializer,
    Write,
    compile_value,
    emit_part_value,
    round_trip,
)
from snapshots.compatibility import PartsPlan
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView
from snapshots.errors import format_value
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.sets import AnySetSerializer
from typeserializers.containers.ttl import TtlSerializer, emit_ttl_value
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.evolution.plans import (
    BecameOptionalPlan,
    BecameUnionPlan,
    NeverNullPlan,
    PromotionPlan,
    TimestampPlan,
    TimestampRemovalPlan,
    UnionPlan,
)
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import ReadingSerializer, check_count
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, IntSerializer


class ConvertingPartSerializer(ReadingSerializer):
    """Reads an old part as a value of the new part."""

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
    """Two composites of one class, or of two classes with one layout."""

    plan: PartsPlan

    def conversions(self) -> list[Conversion]:
        """Returns the conversions of the nested serializers, in order."""
        triples = zip(self.plan.parts, nested_serializers(self.old), nested_serializers(self.new), strict=True)
        return [self.scope.conversion(*triple) for triple in triples]

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        rewritten = reader.function.bind("rewritten", round_trip(self.new))
        value = self.converting_composite().emit_read(reader)
        reader.line(f"{result} = {rewritten}({value})")
        return result

    def converting_composite(self) -> TypeSerializer[Any]:
        """Creates the old composite from parts that convert to the new parts."""
        snapshot = self.old.snapshot_configuration()
        assert isinstance(snapshot, CompositeTypeSerializerSnapshot)
        # An unchanged part stays a plain serializer: a composite may require certain classes.
        parts = [
            conversion.new if type(conversion) is AsIsConversion else ConvertingPartSerializer(conversion)
            for conversion in self.conversions()
        ]
        composite: TypeSerializer[Any] = snapshot.create_outer_serializer(parts)
        return composite


def nested_serializers(serializer: TypeSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
    """Returns the nested serializers of a composite."""
    snapshot = serializer.snapshot_configuration()
    assert isinstance(snapshot, CompositeTypeSerializerSnapshot)
    nested: Sequence[TypeSerializer[Any]] = snapshot.nested_serializers(serializer)
    return nested


_FLAG = BooleanSerializer()
_COUNT = IntSerializer()


class PromotingConversion(Conversion):
    """Widens a scalar."""

    plan: PromotionPlan
    reads_old_whole = True

    def emit_value(self, reader: ReadEmitter) -> str:
        return self.plan.promotion.emit(reader.function, self.old.emit_read(reader))

    @property
    def is_injective(self) -> bool:
        return self.plan.promotion.is_injective


class NullableConversion(CompositeConversion):
    """A null stays null, a value is converted."""

    old: NullableSerializer[Any]
    new: NullableSerializer[Any]

    def _inner(self) -> Conversion:
        return self.scope.conversion(self.plan.parts[0], self.old.inner, self.new.inner)

    def emit_value(self, reader: ReadEmitter) -> str:
        is_null = reader.fixed("?")
        result = reader.function.fresh("v")
        reader.line(f"if {is_null}: {result} = None; pos += {self.old.padding_length}")
        present = reader.child()
        value = emit_part_value(self._inner(), present)
        present.line(f"{result} = {value}")
        reader.block("else:", present)
        return result

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        is_null = reader.fixed("?")
        encoded = reader.function.fresh("b")
        null = b"\x01" + bytes(self.new.padding_length)
        reader.line(f"if {is_null}: {encoded} = {null!r}; pos += {self.old.padding_length}")
        present = reader.child()
        write = self._inner().emit_transcoding(present)
        writer = WriteEmitter(reader.function)
        writer.fixed("?", "False")
        _emit_written(present, writer, write, lambda expression: f"{encoded} = {expression}")
        reader.block("else:", present)
        return lambda outer: outer.append(encoded)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        if not data[position]:
            yield "", self._inner(), position + 1


class BecameOptionalConversion(Conversion):
    """Adds the null flag; every old value is present."""

    plan: BecameOptionalPlan
    new: NullableSerializer[Any]

    def _value(self) -> Conversion:
        return self.scope.conversion(self.plan.value, self.old, self.new.inner)

    def emit_value(self, reader: ReadEmitter) -> str:
        return emit_part_value(self._value(), reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        write = self._value().emit_transcoding(reader)

        def write_present(writer: WriteEmitter) -> None:
            writer.fixed("?", "False")
            write(writer)

        return write_present

    @property
    def reads_old_whole(self) -> bool:
        return self._value().reads_old_whole

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._value(), position


class NeverNullConversion(Conversion):
    """Drops the null flag of a value that is never null."""

    plan: NeverNullPlan
    old: NullableSerializer[Any]

    def _value(self) -> Conversion:
        return self.scope.conversion(self.plan.value, self.old.inner, self.new)

    def emit_value(self, reader: ReadEmitter) -> str:
        reader.fixed("b")
        return emit_part_value(self._value(), reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        reader.fixed("b")
        return self._value().emit_transcoding(reader)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._value(), position + 1


class ListConversion(CompositeConversion):
    """Element by element."""

    old: ListSerializer[Any]
    new: ListSerializer[Any]

    def _element(self) -> Conversion:
        return self.scope.conversion(self.plan.parts[0], self.old.element_serializer, self.new.element_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        return self.converting_composite().emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        count, chunks = reader.fixed("i"), reader.function.fresh("v")
        check = reader.function.bind("check_count", check_count)
        element = reader.function.bind("serializer", self.old.element_serializer)
        reader.line(f"{check}({count}, len(data) - pos, {element})")
        reader.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        body = reader.child()
        write = self._element().emit_transcoding(body)
        _emit_written(body, WriteEmitter(reader.function), write, lambda expression: f"{chunks}_append({expression})")
        reader.block(f"for _ in range({count}):", body)

        def write_list(writer: WriteEmitter) -> None:
            writer.fixed("i", count)
            writer.append(f"b''.join({chunks})")

        return write_list

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        conversion = self._element()
        count, position = _COUNT.codec.read(data, position)
        check_count(count, len(data) - position, self.old.element_serializer)
        for index in range(count):
            yield f"[{index}]", conversion, position
            _, position = self.old.element_serializer.codec.read(data, position)


class MapConversion(CompositeConversion):
    """Entry by entry; a null value stays null. Keys that become equal are rejected, since one would be lost."""

    old: MapSerializer[Any, Any]
    new: MapSerializer[Any, Any]

    def _keys(self) -> Conversion:
        return self.scope.conversion(self.plan.parts[0], self.old.key_serializer, self.new.key_serializer)

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.parts[1], self.old.value_serializer, self.new.value_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        return self.converting_composite().emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        if not self._keys().is_injective:
            return super().emit_transcoding(reader)
        function = reader.function
        count, chunks = reader.fixed("i"), function.fresh("chunks")
        self._check_count(reader, count)
        reader.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        body = reader.child()
        write_key = self._keys().emit_transcoding(body)
        is_null = body.fixed("?")
        body.flush()
        _emit_written(body, WriteEmitter(function), write_key, lambda expression: f"{chunks}_append({expression})")
        body.line(f"if {is_null}: {chunks}_append(b'\\x01')")
        present = body.child()
        write = self._values().emit_transcoding(present)
        writer = WriteEmitter(function)
        writer.fixed("?", "False")
        _emit_written(present, writer, write, lambda expression: f"{chunks}_append({expression})")
        body.block("else:", present)
        reader.block(f"for _ in range({count}):", body)

        def write_map(outer: WriteEmitter) -> None:
            outer.fixed("i", count)
            outer.append(f"b''.join({chunks})")

        return write_map

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        values = self._values()
        count, position = _COUNT.codec.read(data, position)
        check_count(count, len(data) - position, self.old.key_serializer, _FLAG)
        for _ in range(count):
            yield "<key>", self._keys(), position
            key, position = self.old.key_serializer.codec.read(data, position)
            is_null, position = _FLAG.codec.read(data, position)
            if not is_null:
                yield f"[{format_value(key)}]", values, position
                _, position = self.old.value_serializer.codec.read(data, position)

    def equal_keys(self, data: bytes, position: int) -> tuple[Any, Any] | None:
        return _equal_values(self._keys(), data, (at for name, _, at in self.parts(data, position) if name == "<key>"))

    def _check_count(self, reader: ReadEmitter, count: str) -> None:
        check = reader.function.bind("check_count", check_count)
        key = reader.function.bind("serializer", self.old.key_serializer)
        reader.line(f"{check}({count}, len(data) - pos, {key}, {reader.function.bind('flag', _FLAG)})")


class SetConversion(CompositeConversion):
    """Element by element. Elements that become equal are rejected, since one would be lost."""

    old: AnySetSerializer[Any]
    new: AnySetSerializer[Any]

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        (conversion,) = self.conversions()
        count, position = _COUNT.codec.read(data, position)
        check_count(count, len(data) - position, _FLAG)
        for _ in range(count):
            is_null, position = _FLAG.codec.read(data, position)
            if not is_null:
                yield "<element>", conversion, position
                _, position = self.old.element_serializer.codec.read(data, position)

    def equal_keys(self, data: bytes, position: int) -> tuple[Any, Any] | None:
        (conversion,) = self.conversions()
        return _equal_values(conversion, data, (at for _, _, at in self.parts(data, position)))


class TupleConversion(CompositeConversion):
    """Field by field, by position."""

    old: TupleSerializer
    new: TupleSerializer

    def emit_value(self, reader: ReadEmitter) -> str:
        return f"({', '.join([emit_part_value(part, reader) for part in self.conversions()])},)"

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        writes = [part.emit_transcoding(reader) for part in self.conversions()]

        def write_tuple(writer: WriteEmitter) -> None:
            for write in writes:
                write(writer)

        return write_tuple

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        for index, part in enumerate(self.conversions()):
            yield f"[{index}]", part, position
            _, position = part.old.codec.read(data, position)


class LiteralConversion(CompositeConversion):
    """A value of the type, which must be one of those that are allowed."""

    def emit_value(self, reader: ReadEmitter) -> str:
        (value,) = self.conversions()
        result = reader.function.fresh("v")
        rewritten = reader.function.bind("rewritten", round_trip(self.new))
        expression = emit_part_value(value, reader)
        reader.line(f"{result} = {rewritten}({expression})")
        return result


def _equal_values(conversion: Conversion, data: bytes, positions: Iterable[int]) -> tuple[Any, Any] | None:
    read, old_of = compile_value(conversion), dict[Any, Any]()
    for position in positions:
        old, new = conversion.old.deserialize(DataInputView(data, position)), read(data, position)[0]
        if new in old_of:
            return old_of[new], old
        old_of[new] = old
    return None


def _emit_written(reader: ReadEmitter, writer: WriteEmitter, write: Write, use: Callable[[str], str]) -> None:
    """Emits the write right after the read, in the reader's lines; ``use`` turns the expression into a statement."""
    reader.flush()
    write(writer)
    reader.lines += [*writer.lines, use(writer.expression())]


class UnionConversion(Conversion):
    """Member by member."""

    plan: UnionPlan
    old: UnionSerializer
    new: UnionSerializer

    def _members(self) -> list[tuple[int, Conversion]]:
        members = []
        for member, successor in zip(self.old.member_serializers, self.plan.successors, strict=True):
            reading = member
            if self.old.rejects_none(member):
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
        if reading.accepts_none and self.new.rejects_none(member):
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


_TIMESTAMP_BYTES: Final = 8


class TtlConversion(CompositeConversion):
    """Keeps the time of the last access."""

    old: TtlSerializer[Any]
    new: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.parts[1], self.old.value_serializer, self.new.value_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        timestamp = reader.fixed("q")
        value = emit_part_value(self._values(), reader)
        return emit_ttl_value(reader.function, value, timestamp)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position + _TIMESTAMP_BYTES

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        timestamp = reader.fixed("q")
        return _stamped(timestamp, self._values().emit_transcoding(reader))


class StampingConversion(Conversion):
    """Adds the time of the last access; raises `ValueError` if the plan has none."""

    plan: TimestampPlan
    new: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.value, self.old, self.new.value_serializer)

    def emit_value(self, reader: ReadEmitter) -> str:
        value = emit_part_value(self._values(), reader)
        return emit_ttl_value(reader.function, value, self._timestamp())

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        return _stamped(self._timestamp(), self._values().emit_transcoding(reader))

    def _timestamp(self) -> str:
        if self.plan.timestamp_ms is None:
            raise ValueError(
                "the values get a time-to-live, but the plan has no timestamp_ms: set it to the time of last access"
            )
        return str(self.plan.timestamp_ms)


class UnstampingConversion(Conversion):
    """Drops the time of the last access."""

    plan: TimestampRemovalPlan
    old: TtlSerializer[Any]

    def _values(self) -> Conversion:
        return self.scope.conversion(self.plan.value, self.old.value_serializer, self.new)

    def emit_value(self, reader: ReadEmitter) -> str:
        reader.fixed("q")
        return emit_part_value(self._values(), reader)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        yield "", self._values(), position + _TIMESTAMP_BYTES

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        reader.fixed("q")
        return self._values().emit_transcoding(reader)


def _stamped(timestamp: str, write: Write) -> Write:
    def write_stamped(writer: WriteEmitter) -> None:
        writer.fixed("q", timestamp)
        write(writer)

    return write_stamped
