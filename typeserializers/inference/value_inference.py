"""The rules for values beyond numbers and text: dates and times, decimals, UUIDs, enums, sets, windows.

Python's own types mean what Python users expect and come back as themselves: ``datetime.date`` is read as a
``datetime.date``. The value classes with Java's ranges (`LocalDate`, `Instant` and so on) mean Flink's serializers.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import typing
import uuid
from typing import Any, Final

from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.tuples import Tuple0Serializer
from typeserializers.inference.hashable_parts import refuse_unhashable
from typeserializers.kernel.serializer_inference import Inference, UnknownTypeError, register_inference
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.big_numbers import BigDecSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.uuids import UuidSerializer
from typeserializers.scalars.void import VoidNamespace, VoidNamespaceSerializer, VoidSerializer
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
from typeserializers.times.windows import GlobalWindow, GlobalWindowSerializer, TimeWindow, TimeWindowSerializer

_VALUES: Final[dict[Any, TypeSerializer[Any]]] = {
    None: VoidSerializer(),
    type(None): VoidSerializer(),
    datetime.date: PythonDateSerializer(),
    datetime.time: PythonTimeSerializer(),
    datetime.datetime: PythonDateTimeSerializer(),
    datetime.timedelta: TimedeltaSerializer(),
    decimal.Decimal: BigDecSerializer(),
    uuid.UUID: UuidSerializer(),
    LocalDate: LocalDateSerializer(),
    LocalTime: LocalTimeSerializer(),
    LocalDateTime: LocalDateTimeSerializer(),
    Instant: InstantSerializer(),
    Date: DateSerializer(),
    SqlDate: SqlDateSerializer(),
    SqlTime: SqlTimeSerializer(),
    SqlTimestamp: SqlTimestampSerializer(),
    TimeWindow: TimeWindowSerializer(),
    GlobalWindow: GlobalWindowSerializer(),
    VoidNamespace: VoidNamespaceSerializer(),
}


@register_inference
def infer_value(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """The types of one exact serializer."""
    try:
        return _VALUES.get(hint)
    except TypeError:
        return None


@register_inference
def infer_enum(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """A subclass of ``enum.Enum``; flags are refused, because a combination of them is not a constant."""
    if not isinstance(hint, type) or not issubclass(hint, enum.Enum):
        return None
    if issubclass(hint, enum.Flag):
        raise UnknownTypeError(
            f"{inference.path or 'the type'}: {hint.__qualname__} is a Flag, whose combinations are no constants; "
            f"keep its value as an int, or write Annotated[{hint.__qualname__}, EnumSerializer({hint.__qualname__})] "
            f"if only single flags occur"
        )
    try:
        return EnumSerializer(hint)
    except ValueError as error:
        raise UnknownTypeError(f"{inference.path or 'the type'}: {error}") from error


@register_inference
def infer_set(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``set[X]`` and ``frozenset[X]``; since any element may be None, ``set[X | None]`` is the same."""
    origin = typing.get_origin(hint)
    if origin not in (set, frozenset) or not typing.get_args(hint):
        return None
    element = inference.below("{element}").serializer_for(typing.get_args(hint)[0])
    if isinstance(element, NullableSerializer):
        element = element.inner
    refuse_unhashable(element, inference.path, "an element of a set")
    return SetSerializer(element) if origin is set else FrozenSetSerializer(element)


@register_inference
def infer_empty_tuple(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``tuple[()]``."""
    return Tuple0Serializer() if hint == tuple[()] else None


@register_inference
def infer_array(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """An ``array.array`` does not say of what."""
    if hint is not array.array and typing.get_origin(hint) is not array.array:
        return None
    raise UnknownTypeError(
        f"{inference.path or 'the type'}: array.array does not say of which numbers; "
        f"write for example Annotated[array.array, LongPrimitiveArraySerializer()]"
    )
