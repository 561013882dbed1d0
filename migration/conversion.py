"""Conversions: generated code from the bytes of an old serializer to the values and bytes of a new one.

A *conversion* executes a plan (`snapshots.compatibility`, `typeserializers.evolution.plans`) for one pair: the
serializer that the old snapshot restores, and the new serializer. It decides nothing; the plan says which part
continues which. A conversion is generated in two forms:

* as a *value*, old bytes become a new object. The heap backend needs this form.
* as a *transcoding*, old bytes become new bytes. A record is read into local variables and written field by field, and
  no object of either class is created.

Invariant: the value read from the new bytes equals the new value.

`ConversionTable` maps the class of a plan to its conversion, and for the parts of two composites the class of the old
serializer. `migration.conversion_table` has the table of this library. A `snapshots.compatibility.CustomPlan` has its
own code.

Python allows twenty nested blocks in one function. For deeper types, each part becomes a function of its own
(`MigrationFunction.calls_parts`).
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
    """Reads a record field that is not optional: rejects the null that the old serializer would accept."""

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
        # Converters are chosen by the old serializer; this wrapper is never stored.
        return self.inner.snapshot_configuration()

    def _present(self, value: Any) -> Any:
        if value is None:
            raise MalformedDataError(f".{self.name} is null, but the field was not optional: the bytes are damaged")
        return value


Write = Callable[[WriteEmitter], None]
"""Emits the write of a value that was read; called once, after the reader was flushed."""

Read = Callable[[bytes, int], "tuple[Any, int]"]
"""``read(data, position)`` returns the result and the position after the old value."""

Part = tuple[str, "Conversion", int]
"""A part of an old value: its path segment, its conversion and its start position."""


class MigrationFunction(GeneratedFunction):
    """A function under construction that reads old bytes."""

    def __init__(self, name: str, *, calls_parts: bool = False) -> None:
        super().__init__(name, "data, pos")
        self.calls_parts = calls_parts


@frozen
class ConversionTable:
    """Maps plans to conversions.

    A program with plans of its own extends the table with `attrs.evolve` and passes it to `SchemaMigration`.
    """

    by_plan: Mapping[type[Plan], type[Conversion]]
    """By the class of the plan; `PartsPlan` applies to composites that are not in ``by_composite``."""
    by_composite: Mapping[type[TypeSerializer[Any]], type[Conversion]] = field(factory=dict)
    """For a `PartsPlan`, by the class of the old serializer."""
    parts_as_is: Mapping[type[TypeSerializer[Any]], Callable[[Any], Plan]] = field(factory=dict)
    """From a serializer to the plan that splits it and changes no part; used to find the part that fails."""

    def rule_for(self, plan: Plan, old: TypeSerializer[Any]) -> type[Conversion]:
        """Returns the conversion class of a plan; raises `KeyError` if the table has none."""
        if isinstance(plan, PartsPlan):
            rule = self.by_composite.get(type(old))
            if rule is not None:
                return rule
        return self.by_plan[type(plan)]

    def rules(self) -> Iterator[type[Conversion]]:
        """Yields all conversion classes in the table."""
        yield from self.by_plan.values()
        yield from self.by_composite.values()


@frozen
class ConversionScope:
    """Creates conversions: the table, and the enclosing records that references may name."""

    table: ConversionTable
    enclosing: Mapping[str, Any] = field(factory=dict)
    """By the name of the old record, its `migration.record_conversions.RecursiveMigration`."""

    def conversion(self, plan: Plan, old: TypeSerializer[Any], new: TypeSerializer[Any]) -> Conversion:
        """Creates the conversion that executes a plan for a pair of serializers."""
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
        """Returns the scope inside a record."""
        return evolve(self, enclosing={**self.enclosing, name: record})

    def record_named(self, name: str) -> Any:
        """Returns the conversion of the enclosing record; raises `UnresolvableSerializerError` if there is none."""
        found = self.enclosing.get(name)
        if found is None:
            raise UnresolvableSerializerError(
                f"the reference to {name} is outside the record {name}, so it has no target: the snapshot is damaged"
            )
        return found


@frozen
class Conversion(ABC):
    """A plan and its pair of serializers; subclasses generate the code."""

    scope: ConversionScope
    plan: Any
    old: TypeSerializer[Any]
    new: TypeSerializer[Any]

    @abstractmethod
    def emit_value(self, reader: ReadEmitter) -> str:
        """Emits the read of an old value as a new one; the returned expression is valid after the next flush."""

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        """Emits the read of an old value; the returned function emits the write of the new one."""
        value = self.emit_value(reader)
        return lambda writer: self.new.emit_write(writer, value)

    @property
    def is_injective(self) -> bool:
        """Whether different old values always stay different, so that keys need no check for duplicates."""
        return False

    @property
    def reads_old_whole(self) -> bool:
        """Whether only the old serializer reads the old value; False if the conversion splits it into parts."""
        return False

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        """Yields the parts of the old value at a position, to find the part that fails; none by default.

        The iterator reads past a part only after that part was converted.
        """
        return iter(())

    def equal_keys(self, data: bytes, position: int) -> tuple[Any, Any] | None:
        """Returns two keys or set elements of the old value that become equal; None if there are none."""
        return None


class AsIsConversion(Conversion):
    """Keeps the old bytes; the new serializer reads them."""

    is_injective = True
    reads_old_whole = True

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
        # A value of variable length is copied once its end is known.
        start, chunk = reader.function.fresh("start"), reader.function.fresh("b")
        reader.line(f"{start} = pos")
        self._reading.emit_read(reader)
        reader.line(f"{chunk} = data[{start}:pos]")
        return lambda writer: writer.append(chunk)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        # The type is unchanged, but its class may reject old values now.
        parts_as_is = self.scope.table.parts_as_is.get(type(self.new))
        if parts_as_is is None:
            return iter(())
        return self.scope.conversion(parts_as_is(self.new), self.new, self.new).parts(data, position)


class RewritingConversion(Conversion):
    """The old serializer reads the value; the new one writes it and reads it back."""

    reads_old_whole = True

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        rewritten = reader.function.bind("rewritten", round_trip(self.new))
        value = self.old.emit_read(reader)
        reader.line(f"{result} = {rewritten}({value})")
        return result


class RequiredConversion(Conversion):
    """A part that was not optional, if the conversion splits the old value: it is read whole first, then by part."""

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


def round_trip(serializer: TypeSerializer[Any]) -> Callable[[Any], Any]:
    """Returns a function that writes a value and reads it back; it raises `SerializationError`."""
    return lambda value: serializer.from_bytes(serializer.to_bytes(value))


def emit_part_value(conversion: Conversion, reader: ReadEmitter) -> str:
    """Emits the value of a part: inline, or as a call if the type is nested too deep."""
    function = reader.function
    if not (isinstance(function, MigrationFunction) and function.calls_parts):
        return conversion.emit_value(reader)
    result = function.fresh("v")
    read = function.bind("read_part", compile_value(conversion, calls_parts=True))
    reader.line(f"{result}, pos = {read}(data, pos)")
    return result


def compile_value(conversion: Conversion, *, calls_parts: bool = False) -> Read:
    """Compiles the function from old bytes to the new value."""
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
    """Compiles the function from old bytes to new bytes."""
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
