"""The shared body of serializers whose value is a fixed row of numbers, such as a date or a window.

A subclass names a value class, the ``struct`` format of its bytes and the attributes that go there. What Flink writes
for null, where it writes one at all, is one more row of numbers, which no real value has.

A value of exactly the value class was validated when it was made and is written without further checks. Anything else
goes through `converted`, where a subclass says what it accepts besides (a ``datetime`` for an `Instant`) and refuses
the rest with the reason; the same function therefore answers for the compiled and the view-based code and for
`problems`.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.value_text import misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer

T = TypeVar("T")


class FixedFieldsSerializer(CompiledTypeSerializer[T]):
    """Writes the attributes of an immutable value at fixed width."""

    format_characters: ClassVar[str]
    """One ``struct`` character per attribute; big-endian."""

    value_class: ClassVar[Callable[..., Any]]
    """Made from the fields in order; raises `ValueError` for fields that are no value."""

    attribute_names: ClassVar[tuple[str, ...]]

    null_fields: ClassVar[tuple[int, ...] | None] = None
    """What stands for None, or None if it cannot be written."""

    @property
    def length(self) -> int:
        return struct.calcsize(">" + self.format_characters)

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def accepts_none(self) -> bool:
        return self.null_fields is not None

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def converted(self, value: Any) -> Any:
        """The value class's form of something else that fits; raises `TypeError` or `ValueError` with the reason."""
        raise TypeError(f"is not a {getattr(self.value_class, '__name__', 'value')}")

    def fields_of(self, value: Any) -> tuple[Any, ...]:
        """The numbers to write for a value or, if it may be written, for None."""
        if value is None and self.null_fields is not None:
            return self.null_fields
        if value.__class__ is not self.value_class:
            value = self.converted(value)
        return tuple([operator.attrgetter(name)(value) for name in self.attribute_names])

    def value_of(self, *fields: Any) -> T | None:
        """The value of the numbers that were read."""
        if fields == self.null_fields:
            return None
        value: T = self.value_class(*fields)
        return value

    def write_to(self, value: T, out: DataOutputView) -> None:
        out.write(struct.pack(">" + self.format_characters, *self.fields_of(value)))

    def read_from(self, source: DataInputView) -> T:
        value: Any = self.value_of(*struct.unpack(">" + self.format_characters, source.read(self.length)))
        return value  # type: ignore[no-any-return]

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        names = [function.fresh("f") for _ in self.attribute_names]
        attributes = ", ".join(f"{value}.{name}" for name in self.attribute_names)
        targets = ", ".join(names)
        emitter.line(f"if {value}.__class__ is {function.bind('value_class', self.value_class)}:")
        emitter.line(f"    {targets} = {attributes}")
        emitter.line(f"else: {targets}, = {function.bind('fields_of', self.fields_of)}({value})")
        for character, name in zip(self.format_characters, names, strict=True):
            emitter.fixed(character, name)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        arguments = ", ".join([emitter.fixed(character) for character in self.format_characters])
        value_class = function.bind("value_class", self.value_class)
        if self.null_fields is None:
            return f"{value_class}({arguments})"
        result = function.fresh("v")
        emitter.line(f"{result} = {function.bind('value_of', self.value_of)}({arguments})")
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            struct.pack(">" + self.format_characters, *self.fields_of(value))
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            yield misfit(path, value, error)
