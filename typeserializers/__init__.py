"""Values to bytes and back, in Flink's layout; records that evolve; serializers inferred from type hints."""

from snapshots.errors import (
    EndOfDataError,
    MalformedDataError,
    SerializationError,
    StateFormatError,
    TrailingBytesError,
)
from typeserializers.byte_arrays import BytesSerializer
from typeserializers.compiled import CompiledTypeSerializer
from typeserializers.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.inference import Inference, UnknownTypeError, register_inference, serializer_for
from typeserializers.inference_rules import infer_record
from typeserializers.lists import ListSerializer
from typeserializers.maps import MapSerializer
from typeserializers.nullable import NullableSerializer
from typeserializers.record_shape import former_names
from typeserializers.records import AttrsSerializer
from typeserializers.strings import StringSerializer
from typeserializers.tuples import TupleSerializer
from typeserializers.type_serializer import Codec, TypeSerializer
from typeserializers.void import VOID_NAMESPACE, VoidNamespace, VoidNamespaceSerializer

__all__ = [
    "VOID_NAMESPACE",
    "AttrsSerializer",
    "BooleanSerializer",
    "ByteSerializer",
    "BytesSerializer",
    "Codec",
    "CompiledTypeSerializer",
    "DoubleSerializer",
    "EndOfDataError",
    "FloatSerializer",
    "Inference",
    "IntSerializer",
    "ListSerializer",
    "LongSerializer",
    "MalformedDataError",
    "MapSerializer",
    "NullableSerializer",
    "SerializationError",
    "ShortSerializer",
    "StateFormatError",
    "StringSerializer",
    "TrailingBytesError",
    "TupleSerializer",
    "TypeSerializer",
    "UnknownTypeError",
    "VoidNamespace",
    "VoidNamespaceSerializer",
    "former_names",
    "infer_record",
    "register_inference",
    "serializer_for",
]
