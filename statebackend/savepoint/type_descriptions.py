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

from attrs import frozen

from snapshots.errors import StateFormatError, cut, format_value
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from statebackend.savepoint.foreign.flink_tables import TableRowSerializer
from statebackend.savepoint.plain_values import plain_value
from statebackend.savepoint.value_forms import type_name
from typeserializers.containers.rows import RowSerializer
from typeserializers.kernel.references import all_inside
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.records.record_shape import RecordField
from typeserializers.scalars.enums import EnumSerializer


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
    return TypeDescription(type_name(serializer), tuple(records.values()))


def _fields(fields: Iterable[RecordField]) -> tuple[FieldDescription, ...]:
    return tuple(
        FieldDescription(part.name, type_name(part.serializer), part.former_names, _default(part)) for part in fields
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
        return format_value(value)
    return _ADDRESS.sub("", cut(json.dumps(plain_value(value), ensure_ascii=False)))


def _attrs_record(serializer: AttrsSerializer[Any]) -> RecordDescription:
    version = serializer.shape.schema_version
    return RecordDescription(serializer.type_name, _fields(serializer.fields), (), version if version > 1 else None)


def _pojo(serializer: PojoSerializer[Any]) -> RecordDescription:
    fields = [FieldDescription(part.name, type_name(part.serializer), part.former_names) for part in serializer.fields]
    return RecordDescription(serializer.shape.name, tuple(fields))


def _row(serializer: RowSerializer | TableRowSerializer) -> RecordDescription:
    names = serializer.field_names or [str(index) for index in range(len(serializer.field_serializers))]
    parts = zip(names, serializer.field_serializers, strict=True)
    return RecordDescription(
        type_name(serializer), tuple(FieldDescription(name, type_name(part)) for name, part in parts)
    )


def _enumeration(serializer: EnumSerializer[Any]) -> RecordDescription:
    return RecordDescription(serializer.type_name, constants=tuple(one.name for one in serializer.python_type))


_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")

_SHOWN_ALIKE: Final = (type(None), bool, int, float, str, bytes)
"""Types whose repr is the same in every process."""


_RECORDS: Final[Mapping[type, Callable[[Any], RecordDescription]]] = {
    AttrsSerializer: _attrs_record,
    PojoSerializer: _pojo,
    RowSerializer: _row,
    TableRowSerializer: _row,
    EnumSerializer: _enumeration,
}
"""How to describe types that have named parts, by serializer class."""
