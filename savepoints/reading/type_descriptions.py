"""What the types of stored state are, in words: from the snapshots alone, without the classes of the program.

A type is told by its name as a person writes it (``dict[str, Leg]``), with the width of numbers where Python has one
word for several (``int64``), and each record in it once, with its fields. Two descriptions are equal exactly if a
person reading them would see no difference; whether state of one can be restored as the other is for verdicts to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from attrs import frozen

from snapshots.errors import StateFormatError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from snapshots.value_text import shown
from typeserializers.containers.rows import RowSerializer
from typeserializers.containers.ttl import TtlSerializer
from typeserializers.kernel.held_parts import all_inside
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojos import PojoSerializer
from typeserializers.records.record_shape import RecordField
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.fixed_width import (
    ByteSerializer,
    DoubleSerializer,
    FloatSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)

__all__ = ["FieldDescription", "RecordDescription", "TypeDescription", "describe_type"]


@frozen
class FieldDescription:
    """One field of a record: its name, its type, the names it had before, and its default as text if it has one."""

    name: str
    type_name: str
    former_names: tuple[str, ...] = ()
    default: str | None = None


@frozen
class RecordDescription:
    """A record, or the constants of an enumeration, by the name that the state knows it by."""

    name: str
    fields: tuple[FieldDescription, ...] = ()
    constants: tuple[str, ...] = ()
    schema_version: int | None = None


@frozen
class TypeDescription:
    """The name of a type, and the records in it in the order in which they are met.

    ``unknown`` says why nothing is known of it here, with what to do; its entries cannot be read.
    """

    name: str
    records: tuple[RecordDescription, ...] = ()
    unknown: str | None = None


def describe_type(snapshot: TypeSerializerSnapshot[Any]) -> TypeDescription:
    """The type whose serializer left this snapshot; one of a class that is not known here is told as unknown."""
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
    if isinstance(serializer, TtlSerializer):
        return f"{_type_name(serializer.value_serializer)} with the time of its last access"
    return _NUMBERS.get(type(serializer)) or serializer.type_name


def _fields(fields: Iterable[RecordField]) -> tuple[FieldDescription, ...]:
    return tuple(
        FieldDescription(part.name, _type_name(part.serializer), part.former_names, _default(part)) for part in fields
    )


def _default(part: RecordField) -> str | None:
    if not part.has_default:
        return None
    try:
        return shown(part.make_default())
    except Exception as error:
        return f"(its factory fails: {type(error).__name__})"


def _attrs_record(serializer: AttrsSerializer[Any]) -> RecordDescription:
    version = serializer.shape.schema_version
    return RecordDescription(serializer.type_name, _fields(serializer.fields), (), version if version > 1 else None)


def _pojo(serializer: PojoSerializer[Any]) -> RecordDescription:
    fields = [FieldDescription(part.name, _type_name(part.serializer), part.former_names) for part in serializer.fields]
    return RecordDescription(serializer.shape.name, tuple(fields))


def _row(serializer: RowSerializer) -> RecordDescription:
    names = serializer.field_names or [str(index) for index in range(len(serializer.field_serializers))]
    parts = zip(names, serializer.field_serializers, strict=True)
    return RecordDescription("Row", tuple(FieldDescription(name, _type_name(part)) for name, part in parts))


def _enumeration(serializer: EnumSerializer[Any]) -> RecordDescription:
    return RecordDescription(serializer.type_name, constants=tuple(one.name for one in serializer.python_type))


_NUMBERS: Final[Mapping[type, str]] = {
    ByteSerializer: "int8",
    ShortSerializer: "int16",
    IntSerializer: "int32",
    LongSerializer: "int64",
    FloatSerializer: "float32",
    DoubleSerializer: "float64",
}
"""What Python calls int or float, by how wide it is stored."""

_RECORDS: Final[Mapping[type, Callable[[Any], RecordDescription]]] = {
    AttrsSerializer: _attrs_record,
    PojoSerializer: _pojo,
    RowSerializer: _row,
    EnumSerializer: _enumeration,
}
"""What has parts with names, by the class of its serializer; every other is told by the name of its type."""
