"""Serializers of values with a fixed row of numbers, serializers of one value, and a check for lossy libraries.

`FixedFieldsSerializer`: a subclass names a value class, the ``struct`` format of its bytes and the attributes to write.
If Flink has an encoding of null, it is one more row of numbers that no real value has. A value of exactly the value
class was validated when it was created and needs no check. Any other value goes through `converted`, where a subclass
accepts more types (a ``datetime`` for an `Instant`) or rejects the value with a reason. Compiled code, view-based code
and `problems` share this function.

`SingleValueSerializer`: types with one value, written as one zero byte.

`lost_values`: libraries change a value to fit a type. They round integers to doubles, cut off microseconds, assume the
time zone of the host, or turn large numbers into infinity. State would then silently hold another value. A serializer
that writes through a library therefore compares what it reads back and rejects a value that differs.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError, format_value, misfit
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer

T = TypeVar("T")


class FixedFieldsSerializer(CompiledTypeSerializer[T]):
    """Writes the attributes of an immutable value, each at fixed width."""

    format_characters: ClassVar[str]
    """One ``struct`` character per attribute; big-endian."""

    value_class: ClassVar[Callable[..., Any]]
    """Called with the fields in order; raises `ValueError` for invalid fields."""

    attribute_names: ClassVar[tuple[str, ...]]

    null_fields: ClassVar[tuple[int, ...] | None] = None
    """The numbers that represent None; None if it cannot be written."""

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
        """Converts another value to the value class; raises `TypeError` or `ValueError` with the reason."""
        raise TypeError(f"is not a {getattr(self.value_class, '__name__', 'value')}")

    def fields_of(self, value: Any) -> tuple[Any, ...]:
        """Returns the numbers to write for a value or, if it is accepted, for None."""
        if value is None and self.null_fields is not None:
            return self.null_fields
        if value.__class__ is not self.value_class:
            value = self.converted(value)
        return tuple([operator.attrgetter(name)(value) for name in self.attribute_names])

    def value_of(self, *fields: Any) -> T | None:
        """Returns the value of the numbers that were read."""
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

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        own, base = type(self), FixedFieldsSerializer
        if own.fields_of is not base.fields_of or own.value_of is not base.value_of:
            return None
        # The value class checks the ranges of its numbers, but not that they are whole.
        whole = [f"type({again}.{name}) is int" for name in self.attribute_names]
        return " and ".join([f"type({first}) is {function.bind('value_class', self.value_class)}", *whole])

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            struct.pack(">" + self.format_characters, *self.fields_of(value))
        except (struct.error, TypeError, ValueError, OverflowError) as error:
            yield misfit(path, value, error)


class SingleValueSerializer(CompiledTypeSerializer[T]):
    """Base class: a subclass names the value, whose ``repr`` is used in messages."""

    value: ClassVar[Any]

    @property
    def length(self) -> int:
        return 1

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> T:
        value: T = self.value
        return value

    def write_to(self, value: T, out: DataOutputView) -> None:
        self._require(value)
        out.write(b"\x00")

    def read_from(self, source: DataInputView) -> T:
        require_zero(source.read_unsigned_byte())
        return self.create_instance()

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        require, only = function.bind("require", self._require), function.bind("only", self.value)
        emitter.line(f"if {value} is not {only}: {require}({value})")
        emitter.append("b'\\x00'")

    def emit_read(self, emitter: ReadEmitter) -> str:
        byte = emitter.fixed("B")
        emitter.line(f"{emitter.function.bind('require_zero', require_zero)}({byte})")
        return emitter.function.bind("value", self.value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not self.value:
            yield misfit(path, value, f"is not {self.value!r}")

    def _require(self, value: Any) -> None:
        if value is not self.value:
            raise TypeError(f"{format_value(value)} is not {self.value!r}")


def require_zero(byte: int) -> None:
    """Raises `MalformedDataError` for any byte except zero."""
    if byte:
        raise MalformedDataError(f"a value of a type with one value is one zero byte, found {byte:#x}")


def _as_given(value: Any, read: Any) -> Any:
    return value


def lost_values(value: Any, read: Any, path: str, meant: Callable[[Any, Any], Any] = _as_given) -> Iterator[str]:
    """Yields the parts of a value that were read back as another value, each with its path.

    A tuple may be read back as a list, and a Python float rounded to fewer bits if it stays finite: that is the purpose
    of narrow types. ``meant`` returns the plain value of one that also selects how it is written.
    """
    value = meant(value, read)
    if value == read or _is_rounded(value, read):
        return
    if isinstance(value, Mapping) and isinstance(read, dict) and value.keys() == read.keys():
        for name, part in value.items():
            yield from lost_values(part, read[name], f"{path}.{name}", meant)
    elif isinstance(value, (list, tuple)) and isinstance(read, (list, tuple)) and len(value) == len(read):
        for place, part in enumerate(value):
            yield from lost_values(part, read[place], f"{path}[{place}]", meant)
    else:
        yield f"{path or 'value'}: {format_value(value)} would come back as {format_value(read)}"


def _is_rounded(value: Any, read: Any) -> bool:
    if not isinstance(value, float) or not isinstance(read, float):
        return False
    return math.isnan(value) if math.isnan(read) else math.isfinite(read)
