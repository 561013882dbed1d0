"""Which conversion carries out which plan of this library, put together in one place.

A table is a value: who has plans of another kind makes one with `attrs.evolve` and passes it to `SchemaMigration`.
"""

from __future__ import annotations

from typing import Any, Final

from migration.arrow_conversion import ArrowConversion
from migration.avro_conversion import AvroConversion
from migration.composite_conversion import CompositeConversion, nested_serializers
from migration.container_conversion import (
    BecameOptionalConversion,
    ListConversion,
    LiteralConversion,
    MapConversion,
    NeverNullConversion,
    NullableConversion,
    PromotingConversion,
    SetConversion,
    TupleConversion,
)
from migration.conversion import AsIsConversion, Conversion, ConversionTable, RewritingConversion
from migration.converter_conversion import ConverterConversion, InnerConversion
from migration.enum_conversion import EnumConversion
from migration.pojo_conversion import PojoConversion
from migration.record_conversion import ConvertedFieldConversion, RecordConversion, RecordConvertersConversion
from migration.reference_conversion import ReferenceConversion
from migration.ttl_conversion import StampingConversion, TtlConversion, UnstampingConversion
from migration.union_conversion import BecameUnionConversion, UnionConversion
from snapshots.plans import AS_IS, AsIsPlan, PartsPlan, Plan, RewritePlan
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.evolution.evolution_plans import (
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
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojos import PojoSerializer
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.literals import LiteralSerializer


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
