"""The plans of the rules in this room: what becomes of the parts of a value, as data.

Each is relative to the serializer that the old snapshot restores and to the new one (`snapshots.compatibility`): old
parts are named by their index in the old one, new parts by their place in the tuple.

Widenings of scalars, after Avro's promotions: which serializer may take over a record field of which.

A promotion is a pair of serializer classes, and what turns the old value into the new: an expression, or a function
where an expression is not enough. Both the compatibility result on a record and the generated migration read this one
table.

    byte -> short -> int -> long -> big integer -> big decimal      every value is kept
    integers -> float, double; float -> double                      as in Avro; the reason says when it is rounded
    char -> string, string -> bytes                                 every text is kept (UTF-8)
    bytes -> string                                                 bytes that are not UTF-8 stop the migration

A value that cannot be promoted stops the migration, which leaves the state as it was; it is never replaced.
"""

from __future__ import annotations

import decimal
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from snapshots.compatibility import Plan
from typeserializers.containers.converting import Converter
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.record_families import FieldConverter
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.big_numbers import BigDecSerializer, BigIntSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import CharSerializer, StringSerializer

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


@frozen
class PromotionPlan(Plan):
    """A scalar is widened."""

    promotion: Promotion


@frozen
class BecameOptionalPlan(Plan):
    """Every old value is present."""

    value: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


@frozen
class NeverNullPlan(Plan):
    """Of a nullable whose values are never null: its flag goes, and the value goes on."""

    value: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


@frozen
class Origin:
    """The old part that a new one goes on from, and what becomes of its value."""

    index: int
    plan: Plan


Origins = tuple["Origin | None", ...]
"""One for each new part; None for one that is added."""


@frozen
class RecordPlan(Plan):
    """A record, field by field: an added one gets its default, an old one without a successor is dropped."""

    origins: Origins

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return plans_of(self.origins)


@frozen
class FieldConverterPlan(Plan):
    """The field's own converter makes the new value of the old one; None is rejected where it is required."""

    converter: FieldConverter
    is_required: bool = False


@frozen
class RecordConvertersPlan(Plan):
    """A record goes through the converters of its class, each with the version it starts from.

    ``untouched`` says, by the old and the new name of a field, what becomes of a value that no converter has replaced;
    a pair that is not there must fit as it is.
    """

    steps: tuple[tuple[int, Callable[[dict[str, Any]], Mapping[str, Any]]], ...]
    untouched: Mapping[tuple[str, str], Plan]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return tuple(self.untouched.values())


@frozen
class ReferencePlan(Plan):
    """A record inside itself: the plan of the old record of that name around it."""

    name: str


@frozen
class UnionPlan(Plan):
    """For each old member of a union the new one that goes on from it, by index, and what becomes of its values."""

    successors: tuple[Origin, ...]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return plans_of(self.successors)


@frozen
class BecameUnionPlan(Plan):
    """Every old value is of one member of the new union."""

    successor: Origin

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.successor.plan,)


@frozen
class EnumPlan(Plan):
    """For each old ordinal the name of the new constant."""

    constants: tuple[str, ...]


@frozen
class PojoPlan(Plan):
    """A POJO, field by field, and each subclass that the state may hold, by its Java name."""

    origins: Origins
    subclasses: Mapping[str, Plan]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (*plans_of(self.origins), *self.subclasses.values())


@frozen
class AvroPlan(Plan):
    """The writer's schema is resolved to the reader's, as Avro does while it reads.

    ``reader_schema`` is the reader's schema with those of its aliases that name something of the writer's schema.
    """

    reader_schema: Any


@frozen
class ArrowPlan(Plan):
    """For each new column the index of the old one, whose values are cast; None for one of nulls."""

    columns: tuple[int | None, ...]


@frozen
class InnerPlan(Plan):
    """Into a `ConvertingSerializer` without its converters: what its inner serializer asks for."""

    inner: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.inner,)


@frozen
class ConverterPlan(Plan):
    """Into a `ConvertingSerializer` through a converter, whose source reads the old value by a plan."""

    converter: Converter
    source: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.source,)


@frozen
class TimestampPlan(Plan):
    """A value gets the time of its last access, in milliseconds; None where only who migrates knows it."""

    value: Plan
    timestamp_ms: int | None = None

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


@frozen
class TimestampRemovalPlan(Plan):
    """A value loses the time of its last access."""

    value: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


def plans_of(origins: Iterable[Origin | None]) -> tuple[Plan, ...]:
    """The plans of the parts that go on."""
    return tuple(origin.plan for origin in origins if origin is not None)
