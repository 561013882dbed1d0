"""What conversions put in the place of an old serializer: it reads as that one did, and is stricter.

From what an old serializer wrote to what a new one wants, as generated code.

A *conversion* carries out a plan (`snapshots.compatibility`, `typeserializers.evolution.plans`) for the pair of
serializers that it belongs to: the one that the old snapshot restores, and the new one. It judges nothing: which part
goes on as which is in the plan. It is emitted in one of two forms. As a *value*, old bytes become a new object, which
is what the heap needs. As a *transcoding*, old bytes become new bytes: there a record is taken apart into local
variables and put together again, field by field, and no object of either class is ever made. The law between the two:
the value of the new bytes is the new value.

Which conversion carries out a plan is in a table (`ConversionTable`) by the class of the plan, and for the parts of two
composites by the class of the old one. A table is an object that is passed; that of this library is put together in
`migration.conversion_table`. A plan may also bring its own code (`snapshots.compatibility.CustomPlan`).

Python allows twenty nested blocks in one function. Where a type is nested deeper, each part is a function of its own
that is called (`MigrationFunction.calls_parts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import evolve, field, frozen

from snapshots.compatibility import CustomPlan, PartsPlan, Plan
from snapshots.data_views import DataInputView
from snapshots.errors import MalformedDataError, UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter, is_nested_too_deep
from typeserializers.kernel.compiled import ReadingSerializer
from typeserializers.kernel.type_serializer import TypeSerializer


class RequiredPartSerializer(ReadingSerializer):
    """The old serializer of a record field that is not optional, though the serializer itself would read a null."""

    def __init__(self, inner: TypeSerializer[Any], name: str) -> None:
        self.inner = inner
        self.name = name

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def minimum_length(self) -> int:
        return self.inner.minimum_length

    def create_instance(self) -> Any:
        return self.inner.create_instance()

    def read_from(self, source: DataInputView) -> Any:
        return self._present(self.inner.deserialize(source))

    def emit_read(self, emitter: ReadEmitter) -> str:
        value = self.inner.emit_read(emitter)
        present = emitter.function.bind("present", self._present)
        emitter.line(f"if {value} is None: {present}(None)")
        return value

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:  # type: ignore[override]
        # A converter is chosen by what the old serializer was; nobody keeps this.
        return self.inner.snapshot_configuration()

    def _present(self, value: Any) -> Any:
        if value is None:
            raise MalformedDataError(f".{self.name} is null, but was not optional: the bytes are damaged")
        return value


Write = Callable[[WriteEmitter], None]
"""Emits the writing of something that has been read; used once, after the reader was flushed."""

Read = Callable[[bytes, int], "tuple[Any, int]"]
"""``read(data, position)`` returns what was made and the position behind the old value."""

Part = tuple[str, "Conversion", int]
"""A part of an old value: the path that leads to it, its conversion, and where it begins."""


class MigrationFunction(GeneratedFunction):
    """A function under construction that reads old bytes."""

    def __init__(self, name: str, *, calls_parts: bool = False) -> None:
        super().__init__(name, "data, pos")
        self.calls_parts = calls_parts


@frozen
class ConversionTable:
    """Which conversion carries out which plan."""

    by_plan: Mapping[type[Plan], type[Conversion]]
    """By the class of the plan; `PartsPlan` is that of a composite of a class not in ``by_composite``."""
    by_composite: Mapping[type[TypeSerializer[Any]], type[Conversion]] = field(factory=dict)
    """For a `PartsPlan`, by the class of the old serializer."""
    parts_as_is: Mapping[type[TypeSerializer[Any]], Callable[[Any], Plan]] = field(factory=dict)
    """From a serializer to the plan that takes it apart and changes no part, for issue what a value fails on."""

    def rule_for(self, plan: Plan, old: TypeSerializer[Any]) -> type[Conversion]:
        """The conversion for a plan; raises `KeyError` for a plan that the table does not know."""
        if isinstance(plan, PartsPlan):
            rule = self.by_composite.get(type(old))
            if rule is not None:
                return rule
        return self.by_plan[type(plan)]

    def rules(self) -> Iterator[type[Conversion]]:
        """All conversions in the table."""
        yield from self.by_plan.values()
        yield from self.by_composite.values()


@frozen
class ConversionScope:
    """The table, and the records that are being converted around a place: what makes conversions there."""

    table: ConversionTable
    enclosing: Mapping[str, Any] = field(factory=dict)
    """By the name of the old record, its `migration.record_conversions.RecursiveMigration`."""

    def conversion(self, plan: Plan, old: TypeSerializer[Any], new: TypeSerializer[Any]) -> Conversion:
        """The conversion that carries out a plan for the pair that it belongs to."""
        if isinstance(old, RequiredPartSerializer):
            conversion = self.conversion(plan, old.inner, new)
            if conversion.reads_old_whole:
                return evolve(conversion, old=old)
            return RequiredConversion(self, plan, old, new)
        if isinstance(plan, CustomPlan):
            made: Conversion = plan.conversion(old, new, self)
            return made
        return self.table.rule_for(plan, old)(self, plan, old, new)

    def inside(self, name: str, record: Any) -> ConversionScope:
        """The scope inside a record."""
        return evolve(self, enclosing={**self.enclosing, name: record})

    def record_named(self, name: str) -> Any:
        """The conversion of the enclosing record; raises `UnresolvableSerializerError` if there is none."""
        found = self.enclosing.get(name)
        if found is None:
            raise UnresolvableSerializerError(
                f"the reference to {name} stands outside the record of that name and means nothing"
            )
        return found


@frozen
class Conversion(ABC):
    """One plan and the pair of serializers that it belongs to; subclasses are what carries plans out."""

    scope: ConversionScope
    plan: Any
    old: TypeSerializer[Any]
    new: TypeSerializer[Any]

    @abstractmethod
    def emit_value(self, reader: ReadEmitter) -> str:
        """Emits the read of an old value as a new one; the returned expression is valid after the next flush."""

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        """Emits the read of an old value; what it returns emits the write of the new one."""
        value = self.emit_value(reader)
        return lambda writer: self.new.emit_write(writer, value)

    @property
    def is_injective(self) -> bool:
        """Whether different old values are sure to stay different: then keys need no check for becoming equal."""
        return False

    @property
    def reads_old_whole(self) -> bool:
        """Whether the old value is read by the old serializer and by nothing else; False if it may be taken apart."""
        return False

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        """The parts of the old value at a position; none, as here, if it is not taken apart.

        To find what a migration fails on. A part is asked for its end only if it could be converted.
        """
        return iter(())

    def equal_keys(self, data: bytes, position: int) -> tuple[Any, Any] | None:
        """Two keys, or elements of a set, of the old value at a position that become equal; None if there are none."""
        return None


class AsIsConversion(Conversion):
    """The old bytes are the new ones, and the new serializer reads them."""

    @property
    def _reading(self) -> TypeSerializer[Any]:
        if isinstance(self.old, RequiredPartSerializer):
            return RequiredPartSerializer(self.new, self.old.name)
        return self.new

    def emit_value(self, reader: ReadEmitter) -> str:
        return self._reading.emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        if self.new.length >= 0:
            return super().emit_transcoding(reader)
        # What varies in length is copied as it is, once its end is known.
        start, chunk = reader.function.fresh("start"), reader.function.fresh("b")
        reader.line(f"{start} = pos")
        self._reading.emit_read(reader)
        reader.line(f"{chunk} = data[{start}:pos]")
        return lambda writer: writer.append(chunk)

    @property
    def is_injective(self) -> bool:
        return True

    @property
    def reads_old_whole(self) -> bool:
        return True

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        # What has not changed may still hold what its class has begun to reject.
        parts_as_is = self.scope.table.parts_as_is.get(type(self.new))
        if parts_as_is is None:
            return iter(())
        return self.scope.conversion(parts_as_is(self.new), self.new, self.new).parts(data, position)


class RewritingConversion(Conversion):
    """The new serializer accepts the value that the old one reads, and reads it back as its own."""

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        adopted = reader.function.bind("adopted", passed_through(self.new))
        value = self.old.emit_read(reader)
        reader.line(f"{result} = {adopted}({value})")
        return result

    @property
    def reads_old_whole(self) -> bool:
        return True


class RequiredConversion(Conversion):
    """A part that was not optional, of a pair that takes the old value apart: it is first read whole, and then
    again.
    """

    old: RequiredPartSerializer

    def _inner(self) -> Conversion:
        return self.scope.conversion(self.plan, self.old.inner, self.new)

    def emit_value(self, reader: ReadEmitter) -> str:
        start = reader.function.fresh("start")
        reader.line(f"{start} = pos")
        self.old.emit_read(reader)
        reader.line(f"pos = {start}")
        return emit_part_value(self._inner(), reader)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        return self._inner().parts(data, position)


def passed_through(serializer: TypeSerializer[Any]) -> Callable[[Any], Any]:
    """A function that writes a value and reads it back; raises `SerializationError` for one that does not fit."""
    return lambda value: serializer.from_bytes(serializer.to_bytes(value))


def emit_part_value(conversion: Conversion, reader: ReadEmitter) -> str:
    """Emits the value of a part: in place, or as a call where nesting is too deep for that."""
    function = reader.function
    if not (isinstance(function, MigrationFunction) and function.calls_parts):
        return conversion.emit_value(reader)
    result = function.fresh("v")
    read = function.bind("read_part", compile_value(conversion, calls_parts=True))
    reader.line(f"{result}, pos = {read}(data, pos)")
    return result


def compile_value(conversion: Conversion, *, calls_parts: bool = False) -> Read:
    """The function from old bytes to the new value."""
    try:
        reader = ReadEmitter(MigrationFunction("read_migrated", calls_parts=calls_parts))
        value = conversion.emit_value(reader)
        reader.flush()
        compiled: Read = reader.function.compile([*reader.lines, f"return {value}, pos"])
        return compiled
    except (SyntaxError, RecursionError) as error:
        if calls_parts or not is_nested_too_deep(error):
            raise
        return compile_value(conversion, calls_parts=True)


def compile_transcoding(conversion: Conversion) -> Read:
    """The function from old bytes to new bytes."""
    try:
        reader = ReadEmitter(MigrationFunction("transcode"))
        write = conversion.emit_transcoding(reader)
        reader.flush()
        writer = WriteEmitter(reader.function)
        write(writer)
        compiled: Read = reader.function.compile([*reader.lines, *writer.lines, f"return {writer.expression()}, pos"])
        return compiled
    except (SyntaxError, RecursionError) as error:
        if not is_nested_too_deep(error):
            raise
        read, encode = compile_value(conversion, calls_parts=True), conversion.new.codec.write

        def transcode(data: bytes, position: int) -> tuple[Any, int]:
            value, position = read(data, position)
            return encode(value), position

        return transcode
