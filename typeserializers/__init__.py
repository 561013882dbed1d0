"""Serializers in Flink's layout, evolvable records, and serializers inferred from type hints.

This package uses no state, files or checkpoints. `migration` converts bytes from one serializer to another.
"""

try:
    from snapshots.packages import check_packages
except ImportError as error:
    import snapshots

    raise ImportError(
        f"{snapshots.__file__} is found in place of the package 'snapshots' of Statebackend: rename it"
    ) from error

check_packages()

# Importing these modules fills the table of compatibility rules.
import typeserializers.evolution.avro_evolution
import typeserializers.evolution.pojo_evolution
import typeserializers.evolution.record_evolution
import typeserializers.evolution.simple_evolution
import typeserializers.evolution.union_evolution  # noqa: F401
from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    SerializationError,
    StateFormatError,
    TrailingBytesError,
)
from typeserializers.arrow import ArrowSerializer, ArrowStructSerializer
from typeserializers.avro import AvroSerializer
from typeserializers.containers.converting import Converter, ConvertingSerializer
from typeserializers.containers.eithers import EitherSerializer, Left, Right
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.object_arrays import GenericArraySerializer, StringArraySerializer
from typeserializers.containers.primitive_arrays import (
    BooleanPrimitiveArraySerializer,
    BytePrimitiveArraySerializer,
    CharPrimitiveArraySerializer,
    DoublePrimitiveArraySerializer,
    FloatPrimitiveArraySerializer,
    IntPrimitiveArraySerializer,
    LongPrimitiveArraySerializer,
    ShortPrimitiveArraySerializer,
)
from typeserializers.containers.rows import Row, RowKind, RowSerializer
from typeserializers.containers.sets import FrozenSetSerializer, LinkedSet, SetSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.containers.tuples import Tuple0Serializer, TupleSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.evolution.ttl_awareness import (
    TtlAwareSerializerSnapshot,
    resolve_ttl_aware_compatibility,
    ttl_aware,
)
from typeserializers.inference import infer_pojo, infer_record, infer_union, infer_value
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.record_families import DeclaredField, RecordFamily, converted_by, former_names, reads_fields
from typeserializers.kernel.references import ReferenceSerializer
from typeserializers.kernel.serializer_inference import (
    DEFAULT_RULES,
    Inference,
    InferenceRules,
    UnknownTypeError,
    register_inference,
    register_record_family,
    serializer_for,
)
from typeserializers.kernel.type_serializer import Codec, TypeSerializer
from typeserializers.opaque import (
    KryoSerializerSnapshot,
    PickleSerializer,
    TypeSerializerConfigSnapshot,
    UnsupportedSerializerSnapshot,
    VariantSerializerSnapshot,
    allow_legacy_serializers,
)
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.scalars.big_numbers import BigDecSerializer, BigIntSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer, UuidSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.literals import LiteralSerializer
from typeserializers.scalars.strings import CharSerializer, StringSerializer
from typeserializers.scalars.value_types import (
    BooleanValueSerializer,
    ByteValueSerializer,
    CharValueSerializer,
    DoubleValueSerializer,
    FloatValueSerializer,
    IntValueSerializer,
    LongValueSerializer,
    ShortValueSerializer,
    StringValueSerializer,
)
from typeserializers.scalars.void import (
    VOID_NAMESPACE,
    NullValueSerializer,
    VoidNamespace,
    VoidNamespaceSerializer,
    VoidSerializer,
)
from typeserializers.times.calendar_values import (
    LocalDate,
    LocalDateSerializer,
    LocalDateTime,
    LocalDateTimeSerializer,
    LocalTime,
    LocalTimeSerializer,
)
from typeserializers.times.moments import (
    Date,
    DateSerializer,
    Instant,
    InstantSerializer,
    SqlDate,
    SqlDateSerializer,
    SqlTime,
    SqlTimeSerializer,
    SqlTimestamp,
    SqlTimestampSerializer,
)
from typeserializers.times.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)
from typeserializers.times.timers import (
    GLOBAL_WINDOW,
    GlobalWindow,
    GlobalWindowSerializer,
    Timer,
    TimerSerializer,
    TimeWindow,
    TimeWindowSerializer,
)

__all__ = [
    "DEFAULT_RULES",
    "GLOBAL_WINDOW",
    "VOID_NAMESPACE",
    "ArrayListSerializer",
    "ArrowSerializer",
    "ArrowStructSerializer",
    "AttrsSerializer",
    "AvroSerializer",
    "BigDecSerializer",
    "BigIntSerializer",
    "BooleanPrimitiveArraySerializer",
    "BooleanSerializer",
    "BooleanValueSerializer",
    "BytePrimitiveArraySerializer",
    "ByteSerializer",
    "ByteValueSerializer",
    "BytesSerializer",
    "CharPrimitiveArraySerializer",
    "CharSerializer",
    "CharValueSerializer",
    "Codec",
    "CompiledTypeSerializer",
    "Converter",
    "ConvertingSerializer",
    "Date",
    "DateSerializer",
    "DeclaredField",
    "DoublePrimitiveArraySerializer",
    "DoubleSerializer",
    "DoubleValueSerializer",
    "EitherSerializer",
    "EndOfDataError",
    "EnumSerializer",
    "FloatPrimitiveArraySerializer",
    "FloatSerializer",
    "FloatValueSerializer",
    "FrozenSetSerializer",
    "GenericArraySerializer",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "Inference",
    "InferenceRules",
    "Instant",
    "InstantSerializer",
    "IntPrimitiveArraySerializer",
    "IntSerializer",
    "IntValueSerializer",
    "KryoSerializerSnapshot",
    "Left",
    "LinkedSet",
    "ListSerializer",
    "LiteralSerializer",
    "LocalDate",
    "LocalDateSerializer",
    "LocalDateTime",
    "LocalDateTimeSerializer",
    "LocalTime",
    "LocalTimeSerializer",
    "LongPrimitiveArraySerializer",
    "LongSerializer",
    "LongValueSerializer",
    "MalformedDataError",
    "MapSerializer",
    "NullValueSerializer",
    "NullableSerializer",
    "PickleSerializer",
    "PojoSerializer",
    "PythonDateSerializer",
    "PythonDateTimeSerializer",
    "PythonTimeSerializer",
    "RecordFamily",
    "ReferenceSerializer",
    "Right",
    "Row",
    "RowKind",
    "RowSerializer",
    "SerializationError",
    "SetSerializer",
    "ShortPrimitiveArraySerializer",
    "ShortSerializer",
    "ShortValueSerializer",
    "SqlDate",
    "SqlDateSerializer",
    "SqlTime",
    "SqlTimeSerializer",
    "SqlTimestamp",
    "SqlTimestampSerializer",
    "StateFormatError",
    "StringArraySerializer",
    "StringSerializer",
    "StringValueSerializer",
    "TimeWindow",
    "TimeWindowSerializer",
    "TimedeltaSerializer",
    "Timer",
    "TimerSerializer",
    "TrailingBytesError",
    "TtlAwareSerializerSnapshot",
    "TtlSerializer",
    "TtlValue",
    "Tuple0Serializer",
    "TupleSerializer",
    "TypeSerializer",
    "TypeSerializerConfigSnapshot",
    "UnionSerializer",
    "UnknownTypeError",
    "UnsupportedSerializerSnapshot",
    "UuidSerializer",
    "VariantSerializerSnapshot",
    "VoidNamespace",
    "VoidNamespaceSerializer",
    "VoidSerializer",
    "allow_legacy_serializers",
    "converted_by",
    "former_names",
    "infer_pojo",
    "infer_record",
    "infer_union",
    "infer_value",
    "reads_fields",
    "register_inference",
    "register_record_family",
    "resolve_ttl_aware_compatibility",
    "serializer_for",
    "ttl_aware",
]
