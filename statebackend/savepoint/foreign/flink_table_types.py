"""Reads the types of Flink SQL from the snapshots of its serializers.

Flink stores the types of a row in its snapshot, as objects of Java's serialization. They are read as data
(`java_objects`). The names of a row's columns are not stored, except for the rows inside rows.

    row snapshot   := i32(n) type* i32(1333245) i32(1) i32(n) envelope*        type: an object of Java
    array snapshot := type object     map snapshot := type type object object     the objects are serializers
    decimal        := i32(precision) i32(scale)     timestamp := i32(precision)     old binary row := i32(n)
    external       := a composite around another serializer; outer part: object(data type) bool
    sorted map     := object(comparator) i32(1333245) i32(1) i32(n) envelope*

`flink_tables` reads the values.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Final

from snapshots.compatibility import TypeSerializerSchemaCompatibility, another_serializer
from snapshots.composite import NESTED_MAGIC, NESTED_VERSION, OUTER_MAGIC
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import MAX_NESTING, read_versioned_snapshot, register_snapshot
from snapshots.errors import MalformedDataError, SnapshotFormatError, UnknownSnapshotError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.savepoint.foreign.flink_tables import (
    ReadOnlySerializer,
    SortedMapSerializer,
    TableArraySerializer,
    TableDateSerializer,
    TableDecimalSerializer,
    TableMapSerializer,
    TableRawSerializer,
    TableRowSerializer,
    TableSerializer,
    TableTextSerializer,
    TableTimeSerializer,
    TableTimestampSerializer,
)
from statebackend.savepoint.foreign.java_objects import JavaObject, java_list, java_type_of, read_java_object
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)

_TYPES: Final = "org.apache.flink.table.types.logical."
_DATA: Final = "org.apache.flink.table.runtime.typeutils."


class _Types:
    """Makes the serializers of logical types.

    Objects of Java may refer to the same part many times, so the number of parts is limited by the size of the object.
    """

    def __init__(self, size_bytes: int) -> None:
        self._left = 100 + size_bytes // 8

    def serializer(self, found: Any, nesting: int = 0) -> TypeSerializer[Any]:
        """Return the serializer of a logical type.

        Raises:
            UnknownSnapshotError: The type is unknown.
        """
        self._left -= 1
        if nesting > MAX_NESTING or self._left < 0:
            raise MalformedDataError(f"types of Flink SQL nested deeper than {MAX_NESTING}, or with too many parts")
        if not isinstance(found, JavaObject) or not found.class_name.startswith(_TYPES):
            raise MalformedDataError(f"{java_type_of(found)} is not a type of Flink SQL")
        name, fields = found.class_name.removeprefix(_TYPES), found.fields

        def nested(part: Any) -> TypeSerializer[Any]:
            return self.serializer(part, nesting + 1)

        try:
            match name:
                case "DecimalType":
                    return TableDecimalSerializer(fields["precision"], fields["scale"])
                case "TimestampType" | "LocalZonedTimestampType":
                    return TableTimestampSerializer(fields["precision"], is_instant=name != "TimestampType")
                case "ArrayType":
                    return TableArraySerializer(nested(fields["elementType"]))
                case "MultisetType":
                    return TableMapSerializer(nested(fields["elementType"]), IntSerializer())
                case "MapType":
                    return TableMapSerializer(nested(fields["keyType"]), nested(fields["valueType"]))
                case "RowType" | "StructuredType":
                    parts = java_list(fields["fields" if name == "RowType" else "attributes"])
                    types = [nested(part.fields["type"]) for part in parts]
                    return TableRowSerializer(types, [_text(part.fields["name"]) for part in parts])
                case "DistinctType":
                    return nested(fields["sourceType"])
        except (AttributeError, KeyError, TypeError) as error:
            raise MalformedDataError(f"the {name} of Flink SQL has no {error}") from error
        make = _SIMPLE_TYPES.get(name)
        if make is None:
            raise UnknownSnapshotError(
                f"columns of the type {name} of Flink SQL cannot be read. Cast them in the query, and take a savepoint "
                f"of that job"
            )
        return make()


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise MalformedDataError(f"a column of Flink SQL has the name {java_type_of(found)}")
    return found


def _read_type(source: DataInputView, *, of_data_type: bool = False) -> TypeSerializer[Any]:
    """Read an object of Java that is a logical type, or a data type, which has one."""
    start = source.position
    found = read_java_object(source)
    if of_data_type:
        found = found.fields.get("logicalType") if isinstance(found, JavaObject) else found
    return _Types(source.position - start).serializer(found)


_SIMPLE_TYPES: Final[dict[str, Callable[[], TypeSerializer[Any]]]] = {
    "BigIntType": LongSerializer,
    "BinaryType": BytesSerializer,
    "BooleanType": BooleanSerializer,
    "CharType": TableTextSerializer,
    "DateType": TableDateSerializer,
    "DayTimeIntervalType": LongSerializer,
    "DoubleType": DoubleSerializer,
    "FloatType": FloatSerializer,
    "IntType": IntSerializer,
    "RawType": TableRawSerializer,
    "SmallIntType": ShortSerializer,
    "TimeType": TableTimeSerializer,
    "TinyIntType": ByteSerializer,
    "TypeInformationRawType": TableRawSerializer,
    "VarBinaryType": BytesSerializer,
    "VarCharType": TableTextSerializer,
    "YearMonthIntervalType": IntSerializer,
}


class _TableSnapshot(TypeSerializerSnapshot[Any]):
    """Keeps its content as it was read, because objects of Java are not written here."""

    version: ClassVar[int] = 3

    def __init__(self) -> None:
        self._content = b""
        self._serializer: TypeSerializer[Any] | None = None

    @property
    def current_version(self) -> int:
        return self.version

    @abstractmethod
    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        """Read the content."""

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write(self._content)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        start = source.position
        self._serializer = self.read_serializer(source)
        self._content = source.data[start : source.position]
        if isinstance(self._serializer, ReadOnlySerializer):
            self._serializer.snapshot = self

    def restore_serializer(self) -> TypeSerializer[Any]:
        if self._serializer is None:
            raise SnapshotFormatError("the snapshot of a type of Flink SQL is empty")
        return self._serializer

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        old = self.restore_serializer()
        if new_serializer == old:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(old.type_name, type(old).__name__, new_serializer)
        )


def _nested_snapshots(source: DataInputView) -> list[TypeSerializerSnapshot[Any]]:
    magic, version = source.read_int(), source.read_int()
    if (magic, version) != (NESTED_MAGIC, NESTED_VERSION):
        raise MalformedDataError(f"no nested snapshots at byte {source.position - 8}")
    return [read_versioned_snapshot(source) for _ in range(source.read_count(6))]


@register_snapshot(_DATA + "RowDataSerializer$RowDataSerializerSnapshot")
class RowDataSerializerSnapshot(_TableSnapshot):
    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        types = [_read_type(source) for _ in range(source.read_count(4))]
        # The types say more than the serializers: a date has the serializer of an int.
        _nested_snapshots(source)
        return TableRowSerializer(types)


@register_snapshot(_DATA + "ArrayDataSerializer$ArrayDataSerializerSnapshot")
class ArrayDataSerializerSnapshot(_TableSnapshot):
    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        element, _ = _read_type(source), read_java_object(source)
        return TableArraySerializer(element)


@register_snapshot(_DATA + "MapDataSerializer$MapDataSerializerSnapshot")
class MapDataSerializerSnapshot(_TableSnapshot):
    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        key, value, _, _ = (read(source) for read in (_read_type, _read_type, read_java_object, read_java_object))
        return TableMapSerializer(key, value)


@register_snapshot(_DATA + "DecimalDataSerializer$DecimalSerializerSnapshot")
class DecimalSerializerSnapshot(_TableSnapshot):
    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        return TableDecimalSerializer(source.read_int(), source.read_int())


@register_snapshot(_DATA + "TimestampDataSerializer$TimestampDataSerializerSnapshot")
class TimestampDataSerializerSnapshot(_TableSnapshot):
    version = 1

    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        return TableTimestampSerializer(source.read_int())


class _SimpleTableSnapshot(_TableSnapshot):
    """A snapshot without content."""

    serializer_class: ClassVar[type[TableSerializer]]

    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        return self.serializer_class()


@register_snapshot(_DATA + "StringDataSerializer$StringDataSerializerSnapshot")
class StringDataSerializerSnapshot(_SimpleTableSnapshot):
    serializer_class = TableTextSerializer


@register_snapshot("org.apache.flink.table.dataview.NullSerializer$NullSerializerSnapshot")
class NullSerializerSnapshot(_SimpleTableSnapshot):
    """The serializer of a view in an accumulator. It is only a part of a raw value, whose bytes are not read."""

    serializer_class = TableRawSerializer


class _AroundSnapshot(_TableSnapshot):
    """A composite, whose nested serializers are not needed."""

    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        if source.read_int() != OUTER_MAGIC:
            raise MalformedDataError(f"no composite at byte {source.position - 4}")
        source.read_int()
        found = self.read_outer(source)
        _nested_snapshots(source)
        return found

    @abstractmethod
    def read_outer(self, source: DataInputView) -> TypeSerializer[Any]:
        """Read the outer part."""


@register_snapshot(_DATA + "ExternalSerializer$ExternalSerializerSnapshot")
class ExternalSerializerSnapshot(_AroundSnapshot):
    """Values of user-defined functions and of views in accumulators, in the form of Flink SQL."""

    def read_outer(self, source: DataInputView) -> TypeSerializer[Any]:
        found = _read_type(source, of_data_type=True)
        source.read_boolean()
        return found


@register_snapshot(_DATA + "RawValueDataSerializer$RawValueDataSerializerSnapshot")
class RawValueDataSerializerSnapshot(_AroundSnapshot):
    def read_outer(self, source: DataInputView) -> TypeSerializer[Any]:
        return TableRawSerializer()


@register_snapshot(_DATA + "SortedMapSerializerSnapshot")
class SortedMapSerializerSnapshot(_TableSnapshot):
    def read_serializer(self, source: DataInputView) -> TypeSerializer[Any]:
        read_java_object(source)
        nested = _nested_snapshots(source)
        if len(nested) != 2:
            raise MalformedDataError(f"a sorted map with {len(nested)} serializers")
        return SortedMapSerializer(*(one.restore_serializer() for one in nested))
