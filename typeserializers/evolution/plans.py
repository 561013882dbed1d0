"""The plans of the evolution rules, and the table of promotions.

A plan is relative to the serializer that the old snapshot restores and to the new one (`snapshots.compatibility`). Old
parts are named by their index in the old serializer, new parts by their position in the tuple.

A promotion widens a scalar, as in Avro. It is a pair of serializer classes and an expression or function that turns the
old value into the new one. Both the compatibility rules and the generated migration read this table.

    int8 -> int16 -> int32 -> int64 -> int of any size -> Decimal   every value is kept
    integers -> float32, float64; float32 -> float64                as in Avro; the reason says when values are rounded
    character -> str, str -> bytes                                  every text is kept (UTF-8)
    bytes -> str                                                    bytes that are not UTF-8 stop the migration

A value that cannot be promoted stops the migration, and the state stays unchanged.
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
    """Rounds to binary32, so that a migrated value is equal before and after it is stored."""
    rounded: float = _BINARY32.unpack(_BINARY32.pack(value))[0]
    return rounded


def as_decimal(value: int | None) -> decimal.Decimal | None:
    """Returns the exact decimal; None stays None."""
    return None if value is None else decimal.Decimal(value)


@frozen
class Promotion:
    """One widening: its reason for reports, and the expression of the new value, with ``{}`` for the old one."""

    reason: str
    expression: str = "{}"
    function: Callable[[Any], Any] | None = None
    is_injective: bool = True
    """Whether different old values stay different."""

    def emit(self, function: GeneratedFunction, old: str) -> str:
        """Returns the expression of the new value from that of the old one."""
        if self.function is None:
            return self.expression.format(old)
        return f"{function.bind('promote', self.function)}({old})"


Pair = tuple[type[TypeSerializer[Any]], type[TypeSerializer[Any]]]

_INTEGERS: Final[dict[str, type[TypeSerializer[Any]]]] = {
    "int8": ByteSerializer,
    "int16": ShortSerializer,
    "int32": IntSerializer,
    "int64": LongSerializer,
    "int of any size": BigIntSerializer,
}
_EXACT_IN_FLOAT: Final = ("int8", "int16")
_EXACT_IN_DOUBLE: Final = ("int8", "int16", "int32")


def _promotions() -> dict[Pair, Promotion]:
    table: dict[Pair, Promotion] = {}
    names = list(_INTEGERS)
    for place, old in enumerate(names):
        old_class = _INTEGERS[old]
        for new in names[place + 1 :]:
            table[old_class, _INTEGERS[new]] = Promotion(f"{old} is widened to {new}")
        table[old_class, BigDecSerializer] = Promotion(f"{old} is widened to Decimal", function=as_decimal)
        if old_class is BigIntSerializer:
            continue
        is_exact = old in _EXACT_IN_FLOAT
        caveat = "" if is_exact else "; beyond 2**24 it is rounded to binary32"
        table[old_class, FloatSerializer] = Promotion(
            f"{old} is widened to float32{caveat}", function=as_binary32, is_injective=is_exact
        )
        is_exact = old in _EXACT_IN_DOUBLE
        caveat = "" if is_exact else "; beyond 2**53 it is rounded to binary64"
        table[old_class, DoubleSerializer] = Promotion(
            f"{old} is widened to float64{caveat}", "float({})", is_injective=is_exact
        )
    table[FloatSerializer, DoubleSerializer] = Promotion("float32 is widened to float64")
    table[CharSerializer, StringSerializer] = Promotion("a character is widened to str")
    table[StringSerializer, BytesSerializer] = Promotion("str is encoded as UTF-8", "{}.encode()")
    table[BytesSerializer, StringSerializer] = Promotion(
        "bytes are decoded as UTF-8; bytes that are not UTF-8 stop the migration", "{}.decode()"
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
    """Drops the null flag of a nullable whose values are never null."""

    value: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


@frozen
class Origin:
    """The old part that a new part continues, and the plan for its value."""

    index: int
    plan: Plan


Origins = tuple["Origin | None", ...]
"""One per new part; None for an added part."""


@frozen
class RecordPlan(Plan):
    """A record, field by field: an added field gets its default, an old field without a successor is dropped."""

    origins: Origins

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return plans_of(self.origins)


@frozen
class FieldConverterPlan(Plan):
    """The field's converter computes the new value; with ``is_required``, None is rejected."""

    converter: FieldConverter
    is_required: bool = False


@frozen
class RecordConvertersPlan(Plan):
    """A record goes through the converters of its class, each with the version it starts from.

    ``untouched`` maps the old and the new name of a field to the plan for a value that no converter replaced. Without a
    plan, the value must fit unchanged.
    """

    steps: tuple[tuple[int, Callable[[dict[str, Any]], Mapping[str, Any]]], ...]
    untouched: Mapping[tuple[str, str], Plan]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return tuple(self.untouched.values())


@frozen
class ReferencePlan(Plan):
    """A record inside itself: use the plan of the enclosing old record of that name."""

    name: str


@frozen
class UnionPlan(Plan):
    """For each old union member, the index of the new member that continues it, and the plan for its values."""

    successors: tuple[Origin, ...]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return plans_of(self.successors)


@frozen
class BecameUnionPlan(Plan):
    """Every old value belongs to one member of the new union."""

    successor: Origin

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.successor.plan,)


@frozen
class EnumPlan(Plan):
    """For each old ordinal, the name of the new constant."""

    constants: tuple[str, ...]


@frozen
class PojoPlan(Plan):
    """A POJO field by field, and each subclass that the state may hold, by its Java name."""

    origins: Origins
    subclasses: Mapping[str, Plan]

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (*plans_of(self.origins), *self.subclasses.values())


@frozen
class AvroPlan(Plan):
    """The writer's schema is resolved to the reader's, as Avro does while it reads.

    ``reader_schema`` is the reader's schema with only those aliases that match a name of the writer's schema.
    """

    reader_schema: Any


@frozen
class ArrowPlan(Plan):
    """For each new column, the index of the old column whose values are cast; None for a column of nulls."""

    columns: tuple[int | None, ...]


@frozen
class InnerPlan(Plan):
    """Into a `ConvertingSerializer` without a converter: the plan of its inner serializer."""

    inner: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.inner,)


@frozen
class ConverterPlan(Plan):
    """Into a `ConvertingSerializer` through a converter; its source reads the old value by a plan."""

    converter: Converter
    source: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.source,)


@frozen
class TimestampPlan(Plan):
    """Adds the time of the last access, in milliseconds; None if the caller of the migration sets it."""

    value: Plan
    timestamp_ms: int | None = None

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


@frozen
class TimestampRemovalPlan(Plan):
    """Drops the time of the last access."""

    value: Plan

    def parts_of_plan(self) -> tuple[Plan, ...]:
        return (self.value,)


def plans_of(origins: Iterable[Origin | None]) -> tuple[Plan, ...]:
    """Returns the plans of the continued parts."""
    return tuple(origin.plan for origin in origins if origin is not None)
