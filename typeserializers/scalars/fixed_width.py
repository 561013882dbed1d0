"""Serializers of numbers and booleans: big-endian, fixed width, no null.

Each has one ``struct`` format character, plus Java's rules: a boolean is one byte 01 or 00, and every NaN is written as
the canonical NaN of ``Float.floatToIntBits`` and ``Double.doubleToLongBits``.

A float serializer also accepts integers and decimals that a float can hold exactly. 2**53 + 1 would become another
number and is rejected. Only a Python float is rounded to the 32 bits of a `FloatSerializer`.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Iterator
from typing import Any, ClassVar, Final, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import BASE, nested_snapshot

N = TypeVar("N", bound=float)

NAN = float("nan")
BOOLEANS = {True: True, False: False}
"""Accepts exactly the values that equal a boolean; ``struct`` alone would accept any object."""


_ONE_DIGIT: Final = (1 << 30) - 1
"""The largest integer that CPython stores in one digit."""

_SIGNED: Final = "bhiq"
"""The format characters of integers in two's complement."""


class FixedWidthSerializer(CompiledTypeSerializer[N]):
    """Base class: one format character of ``struct``."""

    format_character: ClassVar[str]
    value_class: ClassVar[type]
    is_immutable_type = True
    equal_values_have_equal_bytes = True

    @property
    def length(self) -> int:
        return struct.calcsize(">" + self.format_character)

    def create_instance(self) -> N:
        value: N = self.value_class()
        return value

    def copy(self, value: N) -> N:
        return value

    def write_to(self, value: N, out: DataOutputView) -> None:
        out.write(struct.pack(">" + self.format_character, value))

    def read_from(self, source: DataInputView) -> N:
        value: N = struct.unpack(">" + self.format_character, source.read(self.length))[0]
        return value

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.fixed(self.format_character, value)

    def emit_read(self, emitter: ReadEmitter) -> str:
        return emitter.fixed(self.format_character)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            struct.pack(">" + self.format_character, value)
        except (struct.error, OverflowError, TypeError):
            yield misfit(path, value, f"is not {self.describe_range()}")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        if self.value_class is not int or self.format_character not in _SIGNED:
            return None
        # Bounds in the source are constants of the generated code, which a call of bit_length() costs more than. Those
        # of one digit of Python's integers come first, since they are compared several times as fast.
        largest = (1 << 8 * self.length - 1) - 1
        within = f"{-largest - 1} <= {again} <= {largest}"
        if largest > _ONE_DIGIT:
            within = f"(-{_ONE_DIGIT} <= {again} <= {_ONE_DIGIT} or {within})"
        return f"type({first}) is int and {within}"

    def describe_range(self) -> str:
        """Returns the accepted range as text, for error messages."""
        bits = self.length * 8
        return f"an integer from -2**{bits - 1} to 2**{bits - 1} - 1"


class BooleanSerializer(FixedWidthSerializer[bool]):
    """One byte, 01 or 00."""

    format_character = "?"
    value_class = bool

    def write_to(self, value: bool, out: DataOutputView) -> None:
        out.write_boolean(BOOLEANS[value])

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.fixed("?", f"{emitter.function.bind('booleans', BOOLEANS)}[{value}]")

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            BOOLEANS[value]
        except (KeyError, TypeError):
            yield misfit(path, value, "is not True or False")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return f"type({first}) is bool"

    def snapshot_configuration(self) -> BooleanSerializerSnapshot:
        return BooleanSerializerSnapshot()


class ByteSerializer(FixedWidthSerializer[int]):
    """A signed 8-bit integer."""

    format_character = "b"
    value_class = int

    def snapshot_configuration(self) -> ByteSerializerSnapshot:
        return ByteSerializerSnapshot()


class ShortSerializer(FixedWidthSerializer[int]):
    """A signed 16-bit integer."""

    format_character = "h"
    value_class = int

    def snapshot_configuration(self) -> ShortSerializerSnapshot:
        return ShortSerializerSnapshot()


class IntSerializer(FixedWidthSerializer[int]):
    """A signed 32-bit integer."""

    format_character = "i"
    value_class = int

    def snapshot_configuration(self) -> IntSerializerSnapshot:
        return IntSerializerSnapshot()


class LongSerializer(FixedWidthSerializer[int]):
    """A signed 64-bit integer."""

    format_character = "q"
    value_class = int

    def snapshot_configuration(self) -> LongSerializerSnapshot:
        return LongSerializerSnapshot()


def stored_number(value: Any, format_character: str) -> Any:
    """Returns a number that is not a plain Python float in the form that ``struct`` packs as a float.

    Raises `ValueError` for a number that would change, and what ``struct`` raises for other values.
    """
    [stored] = struct.unpack(f">{format_character}", struct.pack(f">{format_character}", value))
    if value != value:
        return NAN
    # numpy would round its integers to compare them with a float.
    exact = operator.index(value) if hasattr(value, "__index__") else value
    if stored != exact and not isinstance(value, float):
        raise ValueError(f"cannot be stored as a float: it would become {stored!r}")
    return value


class FloatingPointSerializer(FixedWidthSerializer[float]):
    """Base class of float and double: canonical NaN, exact numbers only, and two encodings of zero."""

    value_class = float
    equal_values_have_equal_bytes = False

    def write_to(self, value: float, out: DataOutputView) -> None:
        out.write(struct.pack(">" + self.format_character, stored_number(value, self.format_character)))

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        value = emitter.once(value)
        other = f"{emitter.function.bind('stored_number', stored_number)}({value}, {self.format_character!r})"
        emitter.fixed(
            self.format_character, f"{value} if {value}.__class__ is float and {value} == {value} else {other}"
        )

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            stored_number(value, self.format_character)
        except ValueError as error:
            yield misfit(path, value, error)
        except (struct.error, OverflowError, TypeError):
            yield misfit(path, value, f"is not {self.describe_range()}")


class FloatSerializer(FloatingPointSerializer):
    """IEEE 754 binary32: a Python float is rounded to it."""

    format_character = "f"

    def describe_range(self) -> str:
        return "a number within the range of IEEE binary32"

    def snapshot_configuration(self) -> FloatSerializerSnapshot:
        return FloatSerializerSnapshot()


class DoubleSerializer(FloatingPointSerializer):
    """IEEE 754 binary64, which is Python's float."""

    format_character = "d"

    def describe_range(self) -> str:
        return "a number within the range of IEEE binary64"

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return f"type({first}) is float"

    def snapshot_configuration(self) -> DoubleSerializerSnapshot:
        return DoubleSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "BooleanSerializer"))
class BooleanSerializerSnapshot(SimpleTypeSerializerSnapshot[bool]):
    serializer_class = BooleanSerializer


@register_snapshot(nested_snapshot(BASE, "ByteSerializer"))
class ByteSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = ByteSerializer


@register_snapshot(nested_snapshot(BASE, "ShortSerializer"))
class ShortSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = ShortSerializer


@register_snapshot(nested_snapshot(BASE, "IntSerializer"))
class IntSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = IntSerializer


@register_snapshot(nested_snapshot(BASE, "LongSerializer"))
class LongSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    serializer_class = LongSerializer


@register_snapshot(nested_snapshot(BASE, "FloatSerializer"))
class FloatSerializerSnapshot(SimpleTypeSerializerSnapshot[float]):
    serializer_class = FloatSerializer


@register_snapshot(nested_snapshot(BASE, "DoubleSerializer"))
class DoubleSerializerSnapshot(SimpleTypeSerializerSnapshot[float]):
    serializer_class = DoubleSerializer
