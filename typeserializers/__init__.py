"""Values to bytes and back, in Flink's layout; records that evolve; serializers inferred from type hints."""

from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    SerializationError,
    StateFormatError,
    TrailingBytesError,
)
from typeserializers.arrow import (
    ArrowSerializer,
    ArrowStructSerializer,
)
from typeserializers.avro import (
    AvroSerializer,
)
from typeserializers.big_numbers import (
    BigDecSerializer,
    BigIntSerializer,
)
from typeserializers.byte_arrays import (
    BytesSerializer,
)
from typeserializers.calendar_values import (
    LocalDate,
    LocalDateTime,
    LocalTime,
)
from typeserializers.characters import (
    CharSerializer,
)
from typeserializers.compiled import (
    CompiledTypeSerializer,
)
from typeserializers.converting import (
    Converter,
    ConvertingSerializer,
)
from typeserializers.eithers import (
    EitherSerializer,
    Left,
    Right,
)
from typeserializers.enums import (
    EnumSerializer,
)
from typeserializers.epoch_times import (
    DateSerializer,
    InstantSerializer,
    SqlDateSerializer,
    SqlTimeSerializer,
    SqlTimestampSerializer,
)
from typeserializers.epoch_values import (
    Date,
    Instant,
    SqlDate,
    SqlTime,
    SqlTimestamp,
)
from typeserializers.field_metadata import (
    converted_by,
    former_names,
)
from typeserializers.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.inference import (
    Inference,
    UnknownTypeError,
    register_inference,
    serializer_for,
)
from typeserializers.inference_rules import (
    infer_record,
)
from typeserializers.legacy import (
    TypeSerializerConfigSnapshot,
    allow_legacy_serializers,
)
from typeserializers.lists import (
    ArrayListSerializer,
    ListSerializer,
)
from typeserializers.local_times import (
    LocalDateSerializer,
    LocalDateTimeSerializer,
    LocalTimeSerializer,
)
from typeserializers.maps import (
    MapSerializer,
)
from typeserializers.nullable import (
    NullableSerializer,
)
from typeserializers.object_arrays import (
    GenericArraySerializer,
    StringArraySerializer,
)
from typeserializers.pickles import (
    PickleSerializer,
)
from typeserializers.pojo_inference import (
    infer_pojo,
)
from typeserializers.pojos import (
    PojoSerializer,
)
from typeserializers.primitive_arrays import (
    BooleanPrimitiveArraySerializer,
    BytePrimitiveArraySerializer,
    CharPrimitiveArraySerializer,
    DoublePrimitiveArraySerializer,
    FloatPrimitiveArraySerializer,
    IntPrimitiveArraySerializer,
    LongPrimitiveArraySerializer,
    ShortPrimitiveArraySerializer,
)
from typeserializers.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)
from typeserializers.records import (
    AttrsSerializer,
)
from typeserializers.references import (
    ReferenceSerializer,
)
from typeserializers.row_values import (
    Row,
    RowKind,
)
from typeserializers.rows import (
    RowSerializer,
)
from typeserializers.sets import (
    FrozenSetSerializer,
    LinkedSet,
    SetSerializer,
)
from typeserializers.strings import (
    StringSerializer,
)
from typeserializers.timers import (
    Timer,
    TimerSerializer,
)
from typeserializers.ttl import (
    TtlSerializer,
    TtlValue,
)
from typeserializers.ttl_awareness import (
    TtlAwareSerializerSnapshot,
    resolve_ttl_aware_compatibility,
    ttl_aware,
    ttl_migration,
)
from typeserializers.tuples import (
    Tuple0Serializer,
    TupleSerializer,
)
from typeserializers.type_serializer import (
    Codec,
    TypeSerializer,
)
from typeserializers.union_inference import (
    infer_union,
)
from typeserializers.unions import (
    UnionSerializer,
)
from typeserializers.unsupported import KryoSerializerSnapshot, UnsupportedSerializerSnapshot, VariantSerializerSnapshot
from typeserializers.uuids import (
    UuidSerializer,
)
from typeserializers.value_inference import (
    infer_value,
)
from typeserializers.value_types import (
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
from typeserializers.void import (
    VOID_NAMESPACE,
    NullValueSerializer,
    VoidNamespace,
    VoidNamespaceSerializer,
    VoidSerializer,
)
from typeserializers.windows import (
    GLOBAL_WINDOW,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)

__all__ = [
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
    "Instant",
    "InstantSerializer",
    "IntPrimitiveArraySerializer",
    "IntSerializer",
    "IntValueSerializer",
    "KryoSerializerSnapshot",
    "Left",
    "LinkedSet",
    "ListSerializer",
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
    "register_inference",
    "resolve_ttl_aware_compatibility",
    "serializer_for",
    "ttl_aware",
    "ttl_migration",
]
