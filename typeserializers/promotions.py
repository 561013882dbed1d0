"""Widenings of scalars, after Avro's promotions: which serializer may take over a record field of which.

A promotion is a pair of serializer classes, and an expression that turns the old value into the new. Both the verdict
on a record and the generated migration read this one table. Integers that become floating point may be rounded, which
Avro allows too; the reason says from which size on.
"""

from __future__ import annotations

from typing import Any, Final

from attrs import frozen

from typeserializers.fixed_width import (
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.type_serializer import TypeSerializer


@frozen
class Promotion:
    """One widening: why it is safe, and the expression of the new value, with ``{}`` for the old one."""

    reason: str
    expression: str = "{}"


def _widened(old: str, new: str, caveat: str = "") -> Promotion:
    expression = "float({})" if new in ("float", "double") and old != "float" else "{}"
    return Promotion(f"{old} is widened to {new}{caveat}", expression)


_ABOVE_24_BITS = "; beyond 2**24 it is rounded to binary32"
_ABOVE_53_BITS = "; beyond 2**53 it is rounded to binary64"

PROMOTIONS: Final[dict[tuple[type[TypeSerializer[Any]], type[TypeSerializer[Any]]], Promotion]] = {
    (ByteSerializer, ShortSerializer): _widened("byte", "short"),
    (ByteSerializer, IntSerializer): _widened("byte", "int"),
    (ByteSerializer, LongSerializer): _widened("byte", "long"),
    (ByteSerializer, FloatSerializer): _widened("byte", "float"),
    (ByteSerializer, DoubleSerializer): _widened("byte", "double"),
    (ShortSerializer, IntSerializer): _widened("short", "int"),
    (ShortSerializer, LongSerializer): _widened("short", "long"),
    (ShortSerializer, FloatSerializer): _widened("short", "float"),
    (ShortSerializer, DoubleSerializer): _widened("short", "double"),
    (IntSerializer, LongSerializer): _widened("int", "long"),
    (IntSerializer, FloatSerializer): _widened("int", "float", _ABOVE_24_BITS),
    (IntSerializer, DoubleSerializer): _widened("int", "double"),
    (LongSerializer, FloatSerializer): _widened("long", "float", _ABOVE_24_BITS),
    (LongSerializer, DoubleSerializer): _widened("long", "double", _ABOVE_53_BITS),
    (FloatSerializer, DoubleSerializer): _widened("float", "double"),
}
