"""From what an old serializer wrote to what a new one wants, as generated code.

A *conversion* exists for a pair of serializers of which a verdict has said *compatible after migration* or better. It
is emitted in one of two forms. As a *value*, old bytes become a new object, which is what the heap needs. As a
*transcoding*, old bytes become new bytes: there a record is taken apart into local variables and put together again,
field by field, and no object of either class is ever made.

Which code is emitted for a pair is looked up by the classes of the two serializers in a registry of rules. A pair that
no rule knows is converted by reading with the old serializer and writing with the new: that is right whenever the
verdict came from the serializers' own snapshots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

from attrs import frozen

from typeserializers.code_generation import ReadEmitter, WriteEmitter
from typeserializers.type_serializer import TypeSerializer

Write = Callable[[WriteEmitter], None]
"""Emits the writing of something that has been read; used once, after the reader was flushed."""


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


class PassingConversion(Conversion):
    """The old value is the new value: equal serializers, or a custom pair whose verdict allowed it."""

    def emit_value(self, reader: ReadEmitter) -> str:
        return self.old.emit_read(reader)


_rules: dict[tuple[type[TypeSerializer[Any]], type[TypeSerializer[Any]]], type[Conversion]] = {}
_wrapping_rules: dict[type[TypeSerializer[Any]], type[Conversion]] = {}


def register_conversion(rule: type[Conversion]) -> type[Conversion]:
    """Class decorator: the rule for its ``old_class`` and ``new_class``."""
    _rules[rule.old_class, rule.new_class] = rule
    return rule


def register_wrapping_conversion(rule: type[Conversion]) -> type[Conversion]:
    """Class decorator: the rule for ``new_class`` over any other old class, such as a nullable over a value."""
    _wrapping_rules[rule.new_class] = rule
    return rule


def conversion_between(old: TypeSerializer[Any], new: TypeSerializer[Any]) -> Conversion:
    """The conversion of a pair; the caller has made sure that the verdict allows one."""
    if old == new and not old.accepts_none:
        return PassingConversion(old, new)
    rule = _rules.get((type(old), type(new)))
    if rule is None and type(old) is not type(new):
        rule = _wrapping_rules.get(type(new))
    return (rule or PassingConversion)(old, new)
