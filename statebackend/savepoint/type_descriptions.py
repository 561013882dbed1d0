"""Describes the types of stored state in words, from the snapshots alone, without the classes of the program.

A type has its Python name (``dict[str, Leg]``), with the width of numbers where Python has one name for several
(``int64``). Each record is listed once, with its fields. Two descriptions are equal exactly if a reader sees no
difference. Whether one type can be restored as another is decided by compatibility results, not here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from attrs import frozen

from snapshots.errors import StateFormatError, cut, shown
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.savepoint.plain_values import plain_value
from typeserializers.arrow import ArrowSerializer, ArrowStructSerializer
from typeserializers.avro import AvroSerializer
from typeserializers.containers.converting import ConvertingSerializer
from typeserializers.containers.eithers import EitherSerializer
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.object_arrays import GenericArraySerializer, StringArraySerializer
from typeserializers.containers.primitive_arrays import (
    BooleanPrimitiveArraySerializer,
    DoublePrimitiveArraySerializer,
    FloatPrimitiveArraySerializer,
    IntPrimitiveArraySerializer,
    LongPrimitiveArraySerializer,
    ShortPrimitiveArraySerializer,
)
from typeserializers.containers.rows import RowSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.kernel.references import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.records.record_shape import RecordField
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.fixed_width import (
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.literals import LiteralSerializer
from typeserializers.scalars.value_types import (
    ByteValueSerializer,
    DoubleValueSerializer,
    FloatValueSerializer,
    IntValueSerializer,
    LongValueSerializer,
    ShortValueSerializer,
)
from typeserializers.times.timers import TimerSerializer

__all__ = ["FieldDescription", "RecordDescription", "TypeDescription", "describe_type"]


@frozen
class FieldDescription:
    """A field of a record: name, type, former names, and its default as text."""

    name: str
    type_name: str
    former_names: tuple[str, ...] = ()
    default: str | None = None


@frozen
class RecordDescription:
    """A record with its fields, or an enumeration with its constants, by its stored name."""

    name: str
    fields: tuple[FieldDescription, ...] = ()
    constants: tuple[str, ...] = ()
    schema_version: int | None = None


@frozen
class TypeDescription:
    """A type name and the records in the type, in the order of their first use.

    Attributes:
        unknown: Why the type is unknown in this process and how to fix it. Its entries cannot be read.
    """

    name: str
    records: tuple[RecordDescription, ...] = ()
    unknown: str | None = None


def describe_type(snapshot: TypeSerializerSnapshot[Any]) -> TypeDescription:
    """Return the description of the type that a snapshot belongs to. An unknown serializer has ``unknown`` set."""
    try:
        serializer = snapshot.restore_serializer()
    except StateFormatError as error:
        return TypeDescription("(unknown)", unknown=str(error))
    records: dict[str, RecordDescription] = {}
    for part in all_inside(serializer):
        describe = _RECORDS.get(type(part))
        if describe is not None:
            record = describe(part)
            records.setdefault(record.name, record)
    return TypeDescription(_type_name(serializer), tuple(records.values()))


def _type_name(serializer: TypeSerializer[Any]) -> str:
    name = _NAMES.get(type(serializer))
    return serializer.type_name if name is None else name(serializer)


def _fields(fields: Iterable[RecordField]) -> tuple[FieldDescription, ...]:
    return tuple(
        FieldDescription(part.name, _type_name(part.serializer), part.former_names, _default(part)) for part in fields
    )


def _default(part: RecordField) -> str | None:
    if not part.has_default:
        return None
    try:
        return _shown_default(part.make_default())
    except Exception as error:
        return f"(its factory fails: {type(error).__name__})"


def _shown_default(value: Any) -> str:
    """Format a default alike in every process: no set order, no object address."""
    if isinstance(value, _SHOWN_ALIKE):
        return shown(value)
    return _ADDRESS.sub("", cut(json.dumps(plain_value(value), ensure_ascii=False)))


def _attrs_record(serializer: AttrsSerializer[Any]) -> RecordDescription:
    version = serializer.shape.schema_version
    return RecordDescription(serializer.type_name, _fields(serializer.fields), (), version if version > 1 else None)


def _pojo(serializer: PojoSerializer[Any]) -> RecordDescription:
    fields = [FieldDescription(part.name, _type_name(part.serializer), part.former_names) for part in serializer.fields]
    return RecordDescription(serializer.shape.name, tuple(fields))


def _row(serializer: RowSerializer) -> RecordDescription:
    return RecordDescription(_type_name(serializer), _row_fields(serializer))


def _row_fields(serializer: RowSerializer) -> tuple[FieldDescription, ...]:
    names = serializer.field_names or [str(index) for index in range(len(serializer.field_serializers))]
    parts = zip(names, serializer.field_serializers, strict=True)
    return tuple(FieldDescription(name, _type_name(part)) for name, part in parts)


def _enumeration(serializer: EnumSerializer[Any]) -> RecordDescription:
    return RecordDescription(serializer.type_name, constants=tuple(one.name for one in serializer.python_type))


_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")

_SHOWN_ALIKE: Final = (type(None), bool, int, float, str, bytes)
"""Types whose repr is the same in every process."""


def _always(name: str) -> Callable[[Any], str]:
    return lambda serializer: name


def _inside(before: str, part: str, after: str) -> Callable[[Any], str]:
    """Format a type that contains one other type."""
    return lambda serializer: f"{before}{_type_name(getattr(serializer, part))}{after}"


def _joined(parts: Iterable[TypeSerializer[Any]], between: str) -> str:
    return between.join(map(_type_name, parts))


_NAMES: Final[Mapping[type, Callable[[Any], str]]] = {
    **dict.fromkeys((ByteSerializer, ByteValueSerializer), _always("int8")),
    **dict.fromkeys((ShortSerializer, ShortValueSerializer), _always("int16")),
    **dict.fromkeys((IntSerializer, IntValueSerializer), _always("int32")),
    **dict.fromkeys((LongSerializer, LongValueSerializer), _always("int64")),
    **dict.fromkeys((FloatSerializer, FloatValueSerializer), _always("float32")),
    **dict.fromkeys((DoubleSerializer, DoubleValueSerializer), _always("float64")),
    **dict.fromkeys((ListSerializer, ArrayListSerializer), _inside("list[", "element_serializer", "]")),
    SetSerializer: _inside("set[", "element_serializer", "]"),
    FrozenSetSerializer: _inside("frozenset[", "element_serializer", "]"),
    MapSerializer: lambda one: f"dict[{_joined((one.key_serializer, one.value_serializer), ', ')}]",
    NullableSerializer: _inside("", "inner", " | None"),
    LiteralSerializer: lambda one: f"{_type_name(one.inner)}[{', '.join(sorted(map(shown, one.values)))}]",
    ConvertingSerializer: _inside("", "inner", ""),
    TupleSerializer: lambda one: f"tuple[{_joined(one.field_serializers, ', ')}]",
    UnionSerializer: lambda one: _joined(one.member_serializers, " | "),
    EitherSerializer: lambda one: (
        f"Left[{_type_name(one.left_serializer)}] | Right[{_type_name(one.right_serializer)}]"
    ),
    RowSerializer: lambda one: f"Row[{', '.join(f'{part.name}: {part.type_name}' for part in _row_fields(one))}]",
    GenericArraySerializer: _inside("array[", "component_serializer", " | None]"),
    StringArraySerializer: _always("array[str | None]"),
    BooleanPrimitiveArraySerializer: _always("array[bool]"),
    ShortPrimitiveArraySerializer: _always("array[int16]"),
    IntPrimitiveArraySerializer: _always("array[int32]"),
    LongPrimitiveArraySerializer: _always("array[int64]"),
    FloatPrimitiveArraySerializer: _always("array[float32]"),
    DoublePrimitiveArraySerializer: _always("array[float64]"),
    TtlSerializer: _inside("", "value_serializer", " with the time of its last access"),
    TimerSerializer: lambda one: f"timer of {_joined((one.key_serializer, one.namespace_serializer), ' in ')}",
    AvroSerializer: lambda one: f"Avro {json.dumps(one.schema, sort_keys=True)}",
    ArrowSerializer: lambda one: f"record batch of {pa.struct(list(one.schema))}",
    ArrowStructSerializer: lambda one: str(one.struct_type),
}
"""Names of types whose own name omits the width of numbers or the content."""

_RECORDS: Final[Mapping[type, Callable[[Any], RecordDescription]]] = {
    AttrsSerializer: _attrs_record,
    PojoSerializer: _pojo,
    RowSerializer: _row,
    EnumSerializer: _enumeration,
}
"""How to describe types that have named parts, by serializer class."""
