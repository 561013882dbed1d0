"""The types a key may have: Spark's names for them, and the serializers that store them.

The names are Spark's simple strings, also where no Spark is involved, because a savepoint must mean the same in every
environment. A key of several columns is a tuple. Floating-point
numbers are no keys: two zeros and many NaNs make 'the same key' a matter of opinion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from streamjobs.errors import JobDefinitionError
from typeserializers.byte_arrays import BytesSerializer
from typeserializers.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.strings import StringSerializer
from typeserializers.tuples import TupleSerializer
from typeserializers.type_serializer import TypeSerializer

_SERIALIZERS: Final[Mapping[str, TypeSerializer[Any]]] = {
    "string": StringSerializer(),
    "bigint": LongSerializer(),
    "int": IntSerializer(),
    "smallint": ShortSerializer(),
    "tinyint": ByteSerializer(),
    "boolean": BooleanSerializer(),
    "binary": BytesSerializer(),
}


def key_serializer_for(column_types: Sequence[str], operator_uid: str) -> TypeSerializer[Any]:
    """The serializer of a key of these columns; raises `JobDefinitionError` for a type that cannot be a key."""
    for column_type in column_types:
        if column_type not in _SERIALIZERS:
            raise JobDefinitionError(
                f"operator {operator_uid!r}: a column of type {column_type} cannot be a key; "
                f"cast it to one of {', '.join(_SERIALIZERS)}"
            )
    serializers = [_SERIALIZERS[column_type] for column_type in column_types]
    return serializers[0] if len(serializers) == 1 else TupleSerializer(serializers)
