"""Converts Arrow columns, in the types of `column_forms`, back to values that serializers write.

JSON columns (unions, pickles, Avro, foreign types) cannot be converted back and are rejected by name. A timestamp comes
back in UTC, because Arrow does not keep the zone of each value. A decimal comes back as the same number with the 18
fractional digits of its column.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

from snapshots.errors import shown
from statebackend.savepoint.errors import ColumnValueError
from typeserializers.containers.lists import ArrayListSerializer, ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.object_arrays import GenericArraySerializer, StringArraySerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
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
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer, VoidSerializer
from typeserializers.times.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)
from typeserializers.times.timers import GLOBAL_WINDOW, GlobalWindowSerializer, TimeWindow, TimeWindowSerializer

__all__ = ["stored_values", "way_back"]

Convert = Callable[[Any], Any]


def stored_values(serializer: TypeSerializer[Any], column: pa.Array, what: str) -> list[Any]:
    """Return the values of a column as the serializer writes them. ``what`` names the column in errors.

    Raises:
        ColumnValueError: The type cannot be converted back, or a value does not fit.
    """
    convert = way_back(serializer, what)
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError, pa.ArrowException) as error:
        raise ColumnValueError(
            f"{what}: the column of type {column.type} has a value for which Python has none: {error}"
        ) from error
    if convert is None:
        return values
    return [_converted(convert, value, what) for value in values]


def way_back(serializer: TypeSerializer[Any], what: str) -> Convert | None:
    """Return the function from Arrow's Python value to the state value, None for identity.

    Raises:
        ColumnValueError: The column does not hold the complete value.
    """
    if type(serializer) in _AS_THEY_ARE:
        return None
    make = _WAYS_BACK.get(type(serializer))
    if make is None:
        raise ColumnValueError(
            f"{what}: values of the type {serializer.type_name} cannot be made of a column; write this state with "
            f"statebackend.savepoint.rewrite, from Python"
        )
    return make(serializer, what)


def _converted(convert: Convert, value: Any, what: str) -> Any:
    try:
        return None if value is None else convert(value)
    except (TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise ColumnValueError(f"{what}: {shown(value)} does not fit: {error}") from error


def _part(serializer: TypeSerializer[Any], what: str) -> Convert:
    """As `way_back`, for a nullable part."""
    convert = way_back(serializer, what)
    if convert is None:
        return _itself
    return lambda value: None if value is None else convert(value)


def _itself(value: Any) -> Any:
    return value


def _record(serializer: AttrsSerializer[Any], what: str) -> Convert:
    parts = [(part.argument, part.name, _part(part.serializer, f"{what}.{part.name}")) for part in serializer.fields]
    record_class = serializer.record_class
    names = frozenset(name for _, name, _ in parts)

    def make(value: Mapping[str, Any]) -> Any:
        if not names.issuperset(value):
            raise ValueError(f"{serializer.type_name} has no field {', '.join(sorted(set(value) - names))}")
        return record_class(**{argument: convert(value[name]) for argument, name, convert in parts})

    return make


def _tuple(serializer: TupleSerializer, what: str) -> Convert:
    parts = [_part(part, f"{what}.f{index}") for index, part in enumerate(serializer.field_serializers)]
    # By place and not by name: a frame may call the columns of a key as it likes.
    return lambda value: tuple(convert(part) for convert, part in zip(parts, value.values(), strict=True))


def _elements(make: Callable[[Any], Any], element: TypeSerializer[Any], what: str) -> Convert:
    convert = way_back(element, f"{what}[]")
    if convert is None:
        return make
    return lambda value: make([None if one is None else convert(one) for one in value])


def _map(serializer: MapSerializer[Any, Any], what: str) -> Convert:
    key, value_of = _part(serializer.key_serializer, f"{what}{{key}}"), _part(serializer.value_serializer, what)
    return lambda value: {key(one): value_of(other) for one, other in value}


def _whole_number(value: Any) -> int:
    number = int(value)
    # A text has the digits, as columns have that are asked for as text.
    if number != value and not isinstance(value, str):
        raise ValueError("it is no whole number")
    return number


def _constant(serializer: EnumSerializer[Any], what: str) -> Convert:
    constants: Any = serializer.python_type
    return lambda value: constants[value]


def _moment(value: datetime.datetime) -> datetime.datetime:
    # One without a zone is in UTC, as in the column that a state is read as; the zone of this process decides nothing.
    is_naive = value.tzinfo is None
    return value.replace(tzinfo=datetime.timezone.utc) if is_naive else value.astimezone(datetime.timezone.utc)


def _always(made: Any) -> Callable[[Any, str], Convert]:
    return lambda serializer, what: lambda value: made


_AS_THEY_ARE: Final = frozenset(
    {
        BigDecSerializer,
        BooleanSerializer,
        ByteSerializer,
        BytesSerializer,
        DoubleSerializer,
        FloatSerializer,
        IntSerializer,
        LongSerializer,
        PythonDateSerializer,
        PythonTimeSerializer,
        ShortSerializer,
        StringArraySerializer,
        StringSerializer,
        TimedeltaSerializer,
        VoidSerializer,
    }
)

_WAYS_BACK: Final[Mapping[type, Callable[[Any, str], Convert | None]]] = {
    AttrsSerializer: _record,
    BigIntSerializer: lambda serializer, what: _whole_number,
    EnumSerializer: _constant,
    GlobalWindowSerializer: _always(GLOBAL_WINDOW),
    MapSerializer: _map,
    NullableSerializer: lambda serializer, what: way_back(serializer.inner, what),
    PythonDateTimeSerializer: lambda serializer, what: _moment,
    TimeWindowSerializer: lambda serializer, what: lambda value: TimeWindow(value["start"], value["end"]),
    TupleSerializer: _tuple,
    UuidSerializer: lambda serializer, what: uuid.UUID,
    VoidNamespaceSerializer: _always(VOID_NAMESPACE),
    **dict.fromkeys(
        (ListSerializer, ArrayListSerializer),
        lambda serializer, what: _elements(list, serializer.element_serializer, what),
    ),
    GenericArraySerializer: lambda serializer, what: _elements(list, serializer.component_serializer, what),
    SetSerializer: lambda serializer, what: _elements(set, serializer.element_serializer, what),
    FrozenSetSerializer: lambda serializer, what: _elements(frozenset, serializer.element_serializer, what),
}
"""By the exact class, as the forms are."""
