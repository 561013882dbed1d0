"""Values to bytes and back, in Flink's layout; records that evolve; serializers inferred from type hints.

Nothing here knows state, a file or a checkpoint, and nothing turns bytes of one serializer into those of another.
"""

import statebackend_floors  # noqa: F401  first: it names a file that stands in the place of a package
import typeserializers.evolution.all_rules  # noqa: F401  (fills the table of rules)
from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    SerializationError,
    StateFormatError,
    TrailingBytesError,
)
from typeserializers.arrow.arrow_serializer import ArrowSerializer, ArrowStructSerializer
from typeserializers.avro.avro_serializer import AvroSerializer
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
from typeserializers.containers.row_values import Row, RowKind
from typeserializers.containers.rows import RowSerializer
from typeserializers.containers.sets import FrozenSetSerializer, LinkedSet, SetSerializer
from typeserializers.containers.ttl import TtlSerializer, TtlValue
from typeserializers.containers.tuples import Tuple0Serializer, TupleSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.evolution.ttl_awareness import (
    TtlAwareSerializerSnapshot,
    resolve_ttl_aware_compatibility,
    ttl_aware,
)
from typeserializers.inference.inference_rules import infer_record
from typeserializers.inference.pojo_inference import infer_pojo
from typeserializers.inference.union_inference import infer_union
from typeserializers.inference.value_inference import infer_value
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.field_metadata import converted_by, former_names, reads_fields
from typeserializers.kernel.record_families import DeclaredField, RecordFamily
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
from typeserializers.opaque.legacy import TypeSerializerConfigSnapshot, allow_legacy_serializers
from typeserializers.opaque.pickles import PickleSerializer
from typeserializers.opaque.unsupported import (
    KryoSerializerSnapshot,
    UnsupportedSerializerSnapshot,
    VariantSerializerSnapshot,
)
from typeserializers.pojos.pojos import PojoSerializer
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.big_numbers import BigDecSerializer, BigIntSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.characters import CharSerializer
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
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.uuids import UuidSerializer
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
from typeserializers.times.calendar_values import LocalDate, LocalDateTime, LocalTime
from typeserializers.times.local_times import LocalDateSerializer, LocalDateTimeSerializer, LocalTimeSerializer
from typeserializers.times.moment_values import Date, Instant, SqlDate, SqlTime, SqlTimestamp
from typeserializers.times.moments import (
    DateSerializer,
    InstantSerializer,
    SqlDateSerializer,
    SqlTimeSerializer,
    SqlTimestampSerializer,
)
from typeserializers.times.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)
from typeserializers.times.timers import Timer, TimerSerializer
from typeserializers.times.windows import (
    GLOBAL_WINDOW,
    GlobalWindow,
    GlobalWindowSerializer,
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
