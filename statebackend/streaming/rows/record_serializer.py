"""Serializers for rows in state, derived from the schema of a stream. They evolve by column name.

A row becomes a *stored record*, an object with one attribute per column, written like other record classes
(`typeserializers.records`). Its snapshot contains the column names, so columns may be added, removed, reordered or
widened. Every column is nullable, and an added column is null in old records.

    number, text, ...   as in Flink               decimal     of any precision and scale
    array               list of optional values   map         map of optional values
    struct              a stored record inside    timestamp   the datetime, with its time zone

A column name that is not a valid attribute is stored as another name (`typeserializers.records.column_names`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Final, TypeVar, cast

import attrs
import pyarrow as pa
from attrs import frozen

from statebackend.state.descriptors import as_serializer, with_parts_replaced
from statebackend.state.operator_state_descriptors import OperatorStateDescriptor
from statebackend.state.state_kind import StateDescriptor
from statebackend.streaming.errors import JobDefinitionError
from statebackend.streaming.rows.declared_schema import DeclaredSchema
from statebackend.streaming.rows.row_reader import RecordRow, row_class
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.kernel.serializer_inference import Inference, register_inference
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.column_names import attribute_of_column, attribute_of_row
from typeserializers.records.record_serializer import AttrsSerializer
from typeserializers.records.record_shape import RecordField, RecordShape
from typeserializers.scalars.big_numbers import BigDecSerializer
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
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VoidSerializer
from typeserializers.times.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)

__all__ = ["StoredRecords", "reject_rows", "scalar_serializer", "stored_form", "stored_records", "with_rows_of"]

_Change = Callable[[Any], Any]
_D = TypeVar("_D", bound=StateDescriptor)

RECORD_NAME: Final = "Record"
"""The name of the record in snapshots. A struct adds the path of its column."""


@frozen
class StoredRecords:
    """The stored form of the records of a stream."""

    serializer: TypeSerializer[Any]
    """The serializer of stored records."""
    to_stored: _Change
    """Converts a row, or any tuple of the columns' values, to a stored record."""
    to_row: _Change
    """Converts a stored record to a row."""
    to_values: _Change
    """Converts a stored record to the tuple of the columns' values."""


def stored_records(schema: pa.Schema, where: str, base: type[tuple[Any, ...]] = RecordRow) -> StoredRecords:
    """Return the stored form of records of a schema; ``base`` is the base class of the rows.

    Raises `JobDefinitionError`, starting with ``where``, for an unsupported type.
    """
    try:
        return _stored_records(schema.remove_metadata(), base)
    except _UnknownTypeError as error:
        raise JobDefinitionError(f"{where}: {error}; cast it to another type before") from None


def stored_form(schema: DeclaredSchema, where: str) -> StoredRecords:
    """Return the stored form of rows, or of objects of a record class. Raises as `stored_records`."""
    if schema.record_class is None:
        return stored_records(schema.arrow, where)
    return StoredRecords(as_serializer(schema.record_class), _unchanged, _unchanged, _unchanged)


def _unchanged(record: Any) -> Any:
    return record


Row = RecordRow
"""The type of a state that holds rows of the operator's input, as in ``ValueStateDescriptor("last", Row)``."""

_ROWS: Final = AttrsSerializer.from_shape(RecordShape(name=RECORD_NAME, record_class=RecordRow, fields=()))
"""A placeholder for the serializer of rows until an operator with a schema registers the state."""


@register_inference
def _serializer_of_rows(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    return _ROWS if hint is RecordRow else None


def with_rows_of(descriptor: _D, schemas: Sequence[DeclaredSchema | None], operator_uid: str) -> _D:
    """Return the descriptor with `Row` replaced by the serializer for rows of the inputs.

    Raises `JobDefinitionError` if the inputs have no schema, or several different ones.
    """

    def rows(serializer: TypeSerializer[Any]) -> TypeSerializer[Any] | None:
        if not _is_of_rows(serializer):
            return None
        where = f"operator {operator_uid!r}: state {descriptor.name!r} holds rows (Row)"
        [schema, *others] = schemas
        if schema is None or any(other != schema for other in others):
            what = "its inputs have different columns" if others else "its input has no schema"
            raise JobDefinitionError(
                f"{where}, and {what}; declare one schema, or store a record class and call as_records() before"
            )
        if schema.record_class is not None:
            name = schema.record_class.__name__
            raise JobDefinitionError(f"{where}, and its input has objects: use {name} as the type of the state")
        try:
            return _row_serializer(RECORD_NAME, list(schema.arrow), schema.row_base or RecordRow)
        except _UnknownTypeError as error:
            raise JobDefinitionError(f"{where}: {error}; cast it to another type before") from None

    serializers = {role: with_parts_replaced(one, rows) for role, one in descriptor.serializers.items()}
    is_same = all(serializers[role] is one for role, one in descriptor.serializers.items())
    return descriptor if is_same else cast(_D, descriptor.with_serializers(serializers))


def reject_rows(descriptor: OperatorStateDescriptor, operator_uid: str) -> None:
    """Raise `JobDefinitionError` if an operator state holds rows (`Row`): it belongs to no input."""

    def reject(serializer: TypeSerializer[Any]) -> None:
        if _is_of_rows(serializer):
            raise JobDefinitionError(
                f"operator {operator_uid!r}: operator state {descriptor.name!r} holds rows (Row), as only keyed state "
                f"can; store a record class, and call as_records() before"
            )

    for serializer in descriptor.serializers.values():
        with_parts_replaced(serializer, reject)


def _is_of_rows(serializer: TypeSerializer[Any]) -> bool:
    return type(serializer) is AttrsSerializer and serializer.record_class is RecordRow


def _row_serializer(name: str, fields: Sequence[pa.Field], base: type[tuple[Any, ...]]) -> TypeSerializer[Any]:
    """Return the serializer of rows. It reads and writes rows as records, without a conversion."""
    kind = row_class(tuple(field.name for field in fields), base)
    shape = RecordShape(
        name=name,
        record_class=kind,
        fields=tuple(
            RecordField(
                attribute_of_row(field.name, base),
                NullableSerializer(_row_value_serializer(f"{name}.{field.name}", field.type, base)),
                default=None,
                argument=f"a{index}",
                declared_rename=_no_declaration,
            )
            for index, field in enumerate(fields)
        ),
        is_frozen=True,
        maker=partial(_new_row, kind),
    )
    return AttrsSerializer.from_shape(shape)


def _no_declaration(former: str) -> str:
    """Return no code: columns have no former names."""
    return ""


def _new_row(kind: type[Any], *values: Any) -> Any:
    return tuple.__new__(kind, values)


def _row_value_serializer(path: str, data_type: pa.DataType, base: type[tuple[Any, ...]]) -> TypeSerializer[Any]:
    if pa.types.is_struct(data_type):
        return _row_serializer(path, list(data_type), base)
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return ListSerializer(NullableSerializer(_row_value_serializer(f"{path}[]", data_type.value_type, base)))
    if pa.types.is_map(data_type):
        key = _row_value_serializer(f"{path}{{key}}", data_type.key_type, base)
        value = _row_value_serializer(f"{path}{{value}}", data_type.item_type, base)
        return MapSerializer(key, value)
    return _form(path, data_type, base).serializer


@lru_cache(maxsize=256)
def _stored_records(schema: pa.Schema, base: type[tuple[Any, ...]]) -> StoredRecords:
    return _records(RECORD_NAME, list(schema), base)


class _UnknownTypeError(Exception):
    """An unsupported type, with its column."""


@frozen
class _Form:
    """The stored form of a column's values. A conversion is None if values are not changed."""

    serializer: TypeSerializer[Any]
    to_stored: _Change | None = None
    to_row: _Change | None = None

    @property
    def optional(self) -> TypeSerializer[Any]:
        """The serializer of nullable values."""
        return NullableSerializer(self.serializer)


def _records(name: str, fields: Sequence[pa.Field], base: type[tuple[Any, ...]]) -> StoredRecords:
    names = tuple(attribute_of_column(field.name) for field in fields)
    forms = [_form(f"{name}.{field.name}", field.type, base) for field in fields]
    record_class = attrs.make_class(
        "StoredRecord", {one: attrs.field(alias=f"a{index}") for index, one in enumerate(names)}, frozen=True
    )
    shape = RecordShape(
        name=name,
        record_class=record_class,
        fields=tuple(
            RecordField(one, form.optional, default=None, argument=f"a{index}", declared_rename=_no_declaration)
            for index, (one, form) in enumerate(zip(names, forms, strict=True))
        ),
        is_frozen=True,
    )
    made = partial(tuple.__new__, row_class(tuple(field.name for field in fields), base))
    return StoredRecords(
        AttrsSerializer.from_shape(shape),
        _all_changed(lambda values: record_class(*values), [form.to_stored for form in forms], iter),
        _all_changed(made, [form.to_row for form in forms], _reader(names)),
        _all_changed(tuple, [form.to_row for form in forms], _reader(names)),
    )


def _all_changed(
    make: Callable[[Any], Any], changes: Sequence[_Change | None], read: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a function that converts several values, each with its own conversion."""
    if not any(changes):
        return lambda value: make(read(value))
    return lambda value: make(
        [
            item if change is None or item is None else change(item)
            for item, change in zip(read(value), changes, strict=True)
        ]
    )


def _reader(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: tuple([getattr(record, name) for name in names])


def _form(path: str, data_type: pa.DataType, base: type[tuple[Any, ...]]) -> _Form:
    plain = _SCALARS.get(data_type)
    if plain is not None:
        return _Form(plain)
    for applies, make in _FORMS:
        if applies(data_type):
            return make(path, data_type, base)
    raise _UnknownTypeError(f"{path.removeprefix(f'{RECORD_NAME}.')} is a {data_type}, which no state can hold")


def scalar_serializer(data_type: pa.DataType) -> TypeSerializer[Any] | None:
    """Return the serializer of a column of single values; None for structs, lists and maps, and unsupported types."""
    if pa.types.is_nested(data_type):
        return None
    try:
        return _form(RECORD_NAME, data_type, RecordRow).serializer
    except _UnknownTypeError:
        return None


def _struct_form(path: str, data_type: pa.StructType, base: type[tuple[Any, ...]]) -> _Form:
    inside = _records(path, list(data_type), base)
    names = tuple(field.name for field in data_type)
    return _Form(inside.serializer, partial(_struct_to_stored, names, inside.to_stored), inside.to_row)


def _struct_to_stored(names: tuple[str, ...], to_stored: _Change, value: Any) -> Any:
    """Convert by position, or by name: Arrow's struct values are mappings."""
    return to_stored(tuple(map(value.get, names)) if isinstance(value, Mapping) else value)


def _list_form(path: str, data_type: pa.ListType, base: type[tuple[Any, ...]]) -> _Form:
    element = _form(f"{path}[]", data_type.value_type, base)
    serializer: TypeSerializer[Any] = ListSerializer(element.optional)
    return _Form(serializer, _each(element.to_stored), _each(element.to_row))


def _each(change: _Change | None) -> _Change | None:
    if change is None:
        return None
    return lambda items: [None if item is None else change(item) for item in items]


def _map_form(path: str, data_type: pa.MapType, base: type[tuple[Any, ...]]) -> _Form:
    key = _form(f"{path}{{key}}", data_type.key_type, base)
    item = _form(f"{path}{{value}}", data_type.item_type, base)
    serializer: TypeSerializer[Any] = MapSerializer(key.serializer, item.serializer)
    return _Form(serializer, _each_entry(key.to_stored, item.to_stored), _each_entry(key.to_row, item.to_row))


def _each_entry(of_key: _Change | None, of_value: _Change | None) -> _Change | None:
    if of_key is None and of_value is None:
        return None

    def change(entries: Any) -> dict[Any, Any]:
        return {
            key if of_key is None else of_key(key): value if of_value is None or value is None else of_value(value)
            for key, value in entries.items()
        }

    return change


_SCALARS: Final[dict[pa.DataType, TypeSerializer[Any]]] = {
    pa.bool_(): BooleanSerializer(),
    pa.int8(): ByteSerializer(),
    pa.int16(): ShortSerializer(),
    pa.int32(): IntSerializer(),
    pa.int64(): LongSerializer(),
    pa.float32(): FloatSerializer(),
    pa.float64(): DoubleSerializer(),
    pa.string(): StringSerializer(),
    pa.large_string(): StringSerializer(),
    pa.binary(): BytesSerializer(),
    pa.large_binary(): BytesSerializer(),
    pa.date32(): PythonDateSerializer(),
    pa.time64("ns"): PythonTimeSerializer(),
    pa.duration("us"): TimedeltaSerializer(),
    pa.null(): VoidSerializer(),
}

_FORMS: Final[list[tuple[Callable[[pa.DataType], bool], Callable[[str, Any, type[tuple[Any, ...]]], _Form]]]] = [
    (pa.types.is_decimal, lambda path, data_type, base: _Form(BigDecSerializer())),
    (pa.types.is_timestamp, lambda path, data_type, base: _Form(PythonDateTimeSerializer())),
    (pa.types.is_struct, _struct_form),
    (pa.types.is_map, _map_form),
    (pa.types.is_list, _list_form),
    (pa.types.is_large_list, _list_form),
]
