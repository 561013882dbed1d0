"""From what an old serializer wrote to what a new one wants, as generated code.

A *conversion* exists for a pair of serializers of which a verdict has said *compatible after migration* or better. It
is emitted in one of two forms. As a *value*, old bytes become a new object, which is what the heap needs. As a
*transcoding*, old bytes become new bytes: there a record is taken apart into local variables and put together again,
field by field, and no object of either class is ever made. The law between the two: the value of the new bytes is the
new value.

Which code is emitted for a pair is looked up in a registry of rules, in this order: equal serializers pass; then the
rule for the two classes; then the rule for the old class under any other, or for the new class over any other (a
nullable over a value); then, for two composites of one class, the rule for composites. A pair that no rule knows was
adopted by the new serializer's snapshot: the old value goes through the new serializer, which accepts it on write and
reads it back as its own.

Python allows twenty nested blocks in one function. Where a type is nested deeper, each part is a function of its own
that is called (`MigrationFunction.calls_parts`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from attrs import evolve, frozen

from migration.reading_parts import RequiredPartSerializer
from snapshots.composite import CompositeTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.references import holds_reference
from typeserializers.kernel.type_serializer import TypeSerializer

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
class Conversion(ABC):
    """One pair of serializers; subclasses are the rules."""

    old: TypeSerializer[Any]
    new: TypeSerializer[Any]

    old_class: ClassVar[type[TypeSerializer[Any]]]
    new_class: ClassVar[type[TypeSerializer[Any]]]

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


class PassingConversion(Conversion):
    """The old value is the new value, because the serializers are equal."""

    def emit_value(self, reader: ReadEmitter) -> str:
        return self.old.emit_read(reader)

    def emit_transcoding(self, reader: ReadEmitter) -> Write:
        if self.old.length >= 0:
            return super().emit_transcoding(reader)
        # What varies in length is copied as it is, once its end is known.
        start, chunk = reader.function.fresh("start"), reader.function.fresh("b")
        reader.line(f"{start} = pos")
        self.old.emit_read(reader)
        reader.line(f"{chunk} = data[{start}:pos]")
        return lambda writer: writer.append(chunk)

    @property
    def is_injective(self) -> bool:
        return True

    @property
    def reads_old_whole(self) -> bool:
        return True

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        # Equal records may hold what their class has begun to refuse.
        rule = _rules.get((type(self.old), type(self.new)))
        return iter(()) if rule is None else rule(self.old, self.new).parts(data, position)


class AdoptedConversion(Conversion):
    """A pair that only the new serializer's snapshot knows: it accepts the old value and reads it back as its own."""

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
    """A part that was not optional, of a pair that takes the old value apart: it is first read whole, and then anew."""

    old: RequiredPartSerializer

    def emit_value(self, reader: ReadEmitter) -> str:
        start = reader.function.fresh("start")
        reader.line(f"{start} = pos")
        self.old.emit_read(reader)
        reader.line(f"pos = {start}")
        return emit_part_value(conversion_between(self.old.inner, self.new), reader)

    def parts(self, data: bytes, position: int) -> Iterator[Part]:
        return conversion_between(self.old.inner, self.new).parts(data, position)


def passed_through(serializer: TypeSerializer[Any]) -> Callable[[Any], Any]:
    """A function that writes a value and reads it back; raises `SerializationError` for one that does not fit."""
    return lambda value: serializer.from_bytes(serializer.to_bytes(value))


_rules: dict[tuple[type[TypeSerializer[Any]], type[TypeSerializer[Any]]], type[Conversion]] = {}
_wrapping_rules: dict[type[TypeSerializer[Any]], type[Conversion]] = {}
_unwrapping_rules: dict[type[TypeSerializer[Any]], type[Conversion]] = {}
_composite_rules: list[type[Conversion]] = []


def register_conversion(rule: type[Conversion]) -> type[Conversion]:
    """Class decorator: the rule for its ``old_class`` and ``new_class``."""
    _rules[rule.old_class, rule.new_class] = rule
    return rule


def register_wrapping_conversion(rule: type[Conversion]) -> type[Conversion]:
    """Class decorator: the rule for ``new_class`` over any other old class, such as a nullable over a value."""
    _wrapping_rules[rule.new_class] = rule
    return rule


def register_unwrapping_conversion(rule: type[Conversion]) -> type[Conversion]:
    """Class decorator: the rule for ``old_class`` under any other new class."""
    _unwrapping_rules[rule.old_class] = rule
    return rule


def register_composite_conversion(rule: type[Conversion]) -> type[Conversion]:
    """Class decorator: the rule for two composites of the same class that have no rule of their own."""
    _composite_rules[:] = [rule]
    return rule


def classes_of_foreign_rules() -> set[type[TypeSerializer[Any]]]:
    """The new serializers whose bytes a rule makes that is not one of this library."""
    own = __name__.partition(".")[0]
    rules = [*((new, rule) for (_, new), rule in _rules.items()), *_wrapping_rules.items()]
    return {new for new, rule in rules if rule.__module__.partition(".")[0] != own}


def conversion_between(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> Conversion:
    """The conversion of a pair; the caller has made sure that the verdict allows one."""
    if isinstance(old, RequiredPartSerializer):
        conversion = conversion_between(old.inner, new)
        return evolve(conversion, old=old) if conversion.reads_old_whole else RequiredConversion(old, new)
    # References are equal by name alone: what they mean may still differ.
    if old is new or (old == new and not holds_reference(old)):
        return PassingConversion(old, new)
    rule = _rules.get((type(old), type(new)))
    if rule is None and type(old) is not type(new):
        rule = _unwrapping_rules.get(type(old)) or _wrapping_rules.get(type(new))
    if rule is None and type(old) is type(new):
        is_composite = isinstance(old.snapshot_configuration(), CompositeTypeSerializerSnapshot)
        rule = _composite_rules[0] if is_composite else None
    return (rule or AdoptedConversion)(old, new)


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
    except (SyntaxError, RecursionError):
        if calls_parts:
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
    except (SyntaxError, RecursionError):
        read, encode = compile_value(conversion, calls_parts=True), conversion.new.codec.write

        def transcode(data: bytes, position: int) -> tuple[Any, int]:
            value, position = read(data, position)
            return encode(value), position

        return transcode
