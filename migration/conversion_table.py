"""The table of this library: which conversion executes which plan.

It also holds the conversions of Arrow data (columns are cast if they were widened and null if they are new), of Avro
data (Avro's schema resolution, then one pass through the new schema) and of enums (each old ordinal becomes the
constant that the plan names).
"""

from __future__ import annotations

import enum
from typing import Any, Final

import pyarrow as pa

from migration.composite_conversions import (
    BecameOptionalConversion,
    BecameUnionConversion,
    CompositeConversion,
    ListConversion,
    LiteralConversion,
    MapConversion,
    NeverNullConversion,
    NullableConversion,
    PromotingConversion,
    SetConversion,
    StampingConversion,
    TtlConversion,
    TupleConversion,
    UnionConversion,
    UnstampingConversion,
    nested_serializers,
)
from migration.conversion import AsIsConversion, Conversion, ConversionTable, RewritingConversion, round_trip
from migration.record_conversions import (
    ConvertedFieldConversion,
    ConverterConversion,
    InnerConversion,
    PojoConversion,
    RecordConversion,
    RecordConvertersConversion,
    ReferenceConversion,
)
from snapshots.compatibility import AS_IS, AsIsPlan, PartsPlan, Plan, RewritePlan
from snapshots.errors import MalformedDataError
from typeserializers.arrow import ArrowIpcSerializer
from typeserializers.avro import AvroSerializer
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.evolution.plans import (
    ArrowPlan,
    AvroPlan,
    BecameOptionalPlan,
    BecameUnionPlan,
    ConverterPlan,
    EnumPlan,
    FieldConverterPlan,
    InnerPlan,
    NeverNullPlan,
    Origin,
    PojoPlan,
    PromotionPlan,
    RecordConvertersPlan,
    RecordPlan,
    ReferencePlan,
    TimestampPlan,
    TimestampRemovalPlan,
    UnionPlan,
)
from typeserializers.kernel.code_generation import ReadEmitter
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.literals import LiteralSerializer


class ArrowConversion(Conversion):
    """Record batches, and structs as batches of one row."""

    plan: ArrowPlan
    old: ArrowIpcSerializer[Any]
    new: ArrowIpcSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")

        def convert(data: bytes, position: int) -> tuple[Any, int]:
            batch, position = self.old.read_batch(data, position)
            return self.new.from_batch(self._converted(batch)), position

        reader.line(f"{result}, pos = {reader.function.bind('convert', convert)}(data, pos)")
        return result

    def _converted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Returns the batch under the new schema; raises `pyarrow.ArrowInvalid` if values would change."""
        columns = [
            pa.nulls(batch.num_rows, part.type) if place is None else batch.column(place).cast(part.type, safe=True)
            for part, place in zip(self.new.schema, self.plan.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.new.schema)


class AvroConversion(Conversion):
    """Resolves the writer's schema to the reader's."""

    plan: AvroPlan
    old: AvroSerializer
    new: AvroSerializer

    def emit_value(self, reader: ReadEmitter) -> str:
        result = reader.function.fresh("v")
        fitted = round_trip(self.new)
        by_aliases = AvroSerializer(self.plan.reader_schema)

        def resolve(data: bytes, position: int) -> tuple[Any, int]:
            value, position = by_aliases.resolved_from(self.old, data, position)
            return fitted(value), position

        reader.line(f"{result}, pos = {reader.function.bind('resolve', resolve)}(data, pos)")
        return result


class EnumConversion(Conversion):
    """Maps an old ordinal to the new constant of that name or alias."""

    plan: EnumPlan
    new: EnumSerializer[Any]

    def emit_value(self, reader: ReadEmitter) -> str:
        known = self.new.enum_class.__members__
        constants: dict[int, enum.Enum] = {ordinal: known[name] for ordinal, name in enumerate(self.plan.constants)}
        result, name = reader.function.fresh("v"), self.new.name

        def constant_of(ordinal: int) -> enum.Enum:
            constant = constants.get(ordinal)
            if constant is None:
                raise MalformedDataError(f"{ordinal} is not the ordinal of a constant of {name}: the bytes are damaged")
            return constant

        ordinal = reader.fixed("i")
        reader.line(f"{result} = {reader.function.bind('constant_of', constant_of)}({ordinal})")
        return result


def _composite_as_is(serializer: TypeSerializer[Any]) -> Plan:
    return PartsPlan((AS_IS,) * len(nested_serializers(serializer)))


def _record_as_is(serializer: AttrsSerializer[Any]) -> Plan:
    return RecordPlan(tuple(Origin(index, AS_IS) for index in range(len(serializer.fields))))


def _pojo_as_is(serializer: PojoSerializer[Any]) -> Plan:
    return PojoPlan(tuple(Origin(index, AS_IS) for index in range(len(serializer.fields))), {})


_COMPOSITES: Final[dict[type[TypeSerializer[Any]], type[Conversion]]] = {
    NullableSerializer: NullableConversion,
    ListSerializer: ListConversion,
    # The two list serializers have one layout and adopt each other's state.
    ArrayListSerializer: ListConversion,
    MapSerializer: MapConversion,
    **dict.fromkeys((SetSerializer, FrozenSetSerializer), SetConversion),
    TupleSerializer: TupleConversion,
    TtlSerializer: TtlConversion,
    LiteralSerializer: LiteralConversion,
}

CONVERSIONS: Final = ConversionTable(
    by_plan={
        AsIsPlan: AsIsConversion,
        RewritePlan: RewritingConversion,
        PartsPlan: CompositeConversion,
        PromotionPlan: PromotingConversion,
        BecameOptionalPlan: BecameOptionalConversion,
        NeverNullPlan: NeverNullConversion,
        RecordPlan: RecordConversion,
        FieldConverterPlan: ConvertedFieldConversion,
        RecordConvertersPlan: RecordConvertersConversion,
        ReferencePlan: ReferenceConversion,
        UnionPlan: UnionConversion,
        BecameUnionPlan: BecameUnionConversion,
        EnumPlan: EnumConversion,
        PojoPlan: PojoConversion,
        AvroPlan: AvroConversion,
        ArrowPlan: ArrowConversion,
        InnerPlan: InnerConversion,
        ConverterPlan: ConverterConversion,
        TimestampPlan: StampingConversion,
        TimestampRemovalPlan: UnstampingConversion,
    },
    by_composite=_COMPOSITES,
    parts_as_is={
        **dict.fromkeys(_COMPOSITES, _composite_as_is),
        AttrsSerializer: _record_as_is,
        PojoSerializer: _pojo_as_is,
    },
)
"""The conversions of this library."""
