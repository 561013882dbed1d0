"""Widenings of scalars, after Avro's promotions: which serializer may take over a record field of which.

A promotion is a pair of serializer classes, and what turns the old value into the new: an expression, or a function
where an expression is not enough. Both the verdict on a record and the generated migration read this one table.

    byte -> short -> int -> long -> big integer -> big decimal      every value is kept
    integers -> float, double; float -> double                      as in Avro; the reason says when it is rounded
    char -> string, string -> bytes                                 every text is kept (UTF-8)
    bytes -> string                                                 bytes that are not UTF-8 stop the migration

A value that cannot be promoted stops the migration, which leaves the state as it was; it is never replaced.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable
from typing import Any, Final

from attrs import frozen

from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.big_numbers import BigDecSerializer, BigIntSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.characters import CharSerializer
from typeserializers.scalars.fixed_width import (
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer

_BINARY32: Final = struct.Struct(">f")


def as_binary32(value: float) -> float:
    """The value as its bytes will have it, so that a migrated value is the same before and after it was stored."""
    rounded: float = _BINARY32.unpack(_BINARY32.pack(value))[0]
    return rounded


def as_decimal(value: int | None) -> decimal.Decimal | None:
    """The exact decimal; a null big integer stays one."""
    return None if value is None else decimal.Decimal(value)


@frozen
class Promotion:
    """One widening: why it is safe, and the expression of the new value, with ``{}`` for the old one."""

    reason: str
    expression: str = "{}"
    function: Callable[[Any], Any] | None = None
    is_injective: bool = True
    """Whether different old values stay different."""

    def emit(self, function: GeneratedFunction, old: str) -> str:
        """The expression of the new value from that of the old one."""
        if self.function is None:
            return self.expression.format(old)
        return f"{function.bind('promote', self.function)}({old})"


Pair = tuple[type[TypeSerializer[Any]], type[TypeSerializer[Any]]]

_INTEGERS: Final[dict[str, type[TypeSerializer[Any]]]] = {
    "byte": ByteSerializer,
    "short": ShortSerializer,
    "int": IntSerializer,
    "long": LongSerializer,
    "big integer": BigIntSerializer,
}
_EXACT_IN_FLOAT: Final = ("byte", "short")
_EXACT_IN_DOUBLE: Final = ("byte", "short", "int")


def _promotions() -> dict[Pair, Promotion]:
    table: dict[Pair, Promotion] = {}
    names = list(_INTEGERS)
    for place, old in enumerate(names):
        old_class = _INTEGERS[old]
        for new in names[place + 1 :]:
            table[old_class, _INTEGERS[new]] = Promotion(f"{old} is widened to {new}")
        table[old_class, BigDecSerializer] = Promotion(f"{old} is widened to big decimal", function=as_decimal)
        if old == "big integer":
            continue
        is_exact = old in _EXACT_IN_FLOAT
        caveat = "" if is_exact else "; beyond 2**24 it is rounded to binary32"
        table[old_class, FloatSerializer] = Promotion(
            f"{old} is widened to float{caveat}", function=as_binary32, is_injective=is_exact
        )
        is_exact = old in _EXACT_IN_DOUBLE
        caveat = "" if is_exact else "; beyond 2**53 it is rounded to binary64"
        table[old_class, DoubleSerializer] = Promotion(
            f"{old} is widened to double{caveat}", "float({})", is_injective=is_exact
        )
    table[FloatSerializer, DoubleSerializer] = Promotion("float is widened to double")
    table[CharSerializer, StringSerializer] = Promotion("char is widened to string")
    table[StringSerializer, BytesSerializer] = Promotion("string becomes its bytes in UTF-8", "{}.encode()")
    table[BytesSerializer, StringSerializer] = Promotion(
        "bytes become the text that they are in UTF-8; bytes that are not UTF-8 stop the migration", "{}.decode()"
    )
    return table


PROMOTIONS: Final[dict[Pair, Promotion]] = _promotions()
