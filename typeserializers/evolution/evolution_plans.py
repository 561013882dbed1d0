"""The plans of the rules in this room: what becomes of the parts of a value, as data.

Each is relative to the serializer that the old snapshot restores and to the new one (`snapshots.plans`): old parts are
named by their index in the old one, new parts by their place in the tuple.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from attrs import frozen

from snapshots.plans import Plan
from typeserializers.containers.converting import Converter
from typeserializers.evolution.promotions import Promotion
from typeserializers.kernel.field_metadata import FieldConverter


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
    """The field's own converter makes the new value of the old one; None is refused where it is required."""

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
