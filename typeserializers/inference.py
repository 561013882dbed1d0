"""The inference rules of this library: from Python's types to the built-in serializers.

Python's own types are read back as themselves: ``datetime.date`` is read as a ``datetime.date``. The value classes with
Java's ranges (`LocalDate`, `Instant` and so on) use Flink's serializers. A record class that names its Java class
becomes a POJO. Hints of several types become optionals, unions or an Either.

`reject_unhashable` rejects sets and maps whose elements or keys Python cannot hash.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import types
import typing
import uuid
from collections.abc import Sequence
from typing import Any, Final, Literal, Union

from snapshots.errors import StateFormatError
from typeserializers.containers.eithers import EitherSerializer, Left, Right
from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.sets import FrozenSetSerializer, SetSerializer
from typeserializers.containers.tuples import Tuple0Serializer, TupleSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.kernel.references import bind_references, collected_references, open_reference
from typeserializers.kernel.serializer_inference import (
    Inference,
    UnknownTypeError,
    register_inference,
    register_record_family,
)
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_serializer import PojoSerializer
from typeserializers.pojos.pojo_shape import POJO_CLASS_ATTRIBUTE, all_of_composites, pojo_shape_of
from typeserializers.records.class_families import (
    AttrsFamily,
    DataclassFamily,
    MsgspecFamily,
    NamedTupleFamily,
    PydanticDataclassFamily,
    PydanticFamily,
)
from typeserializers.records.record_serializer import (
    AttrsSerializer,
    check_defaults,
    check_shape,
    check_values_are_kept,
    reject_undecorated,
)
from typeserializers.records.record_shape import shape_of
from typeserializers.scalars.big_numbers import BigDecSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer, UuidSerializer
from typeserializers.scalars.enums import EnumSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, DoubleSerializer, LongSerializer
from typeserializers.scalars.literals import LiteralSerializer
from typeserializers.scalars.strings import StringSerializer
from typeserializers.scalars.void import VoidNamespace, VoidNamespaceSerializer, VoidSerializer
from typeserializers.times.calendar_values import (
    LocalDate,
    LocalDateSerializer,
    LocalDateTime,
    LocalDateTimeSerializer,
    LocalTime,
    LocalTimeSerializer,
)
from typeserializers.times.moments import (
    Date,
    DateSerializer,
    Instant,
    InstantSerializer,
    SqlDate,
    SqlDateSerializer,
    SqlTime,
    SqlTimeSerializer,
    SqlTimestamp,
    SqlTimestampSerializer,
)
from typeserializers.times.python_times import (
    PythonDateSerializer,
    PythonDateTimeSerializer,
    PythonTimeSerializer,
    TimedeltaSerializer,
)
from typeserializers.times.timers import GlobalWindow, GlobalWindowSerializer, TimeWindow, TimeWindowSerializer

_INSTEAD: Final[dict[Any, str]] = {
    list: "a tuple of fixed length, or a str or bytes made of it",
    dict: "a frozenset of pairs, or a frozen record",
    set: "a frozenset",
}


def reject_unhashable(serializer: TypeSerializer[Any], path: str, what: str) -> None:
    """Raises `UnknownTypeError` if values of the type, or parts of them, have no hash."""
    for part in all_of_composites(serializer):
        try:
            value_class = part.python_type
        except (StateFormatError, TypeError, ValueError):
            continue  # A record whose inference is still running, or that cannot be created without values.
        if value_class.__hash__ is None:
            instead = _INSTEAD.get(value_class, f"a frozen class in place of {part.type_name}")
            raise UnknownTypeError(
                f"{path or 'the type'}: a {part.type_name} is not hashable and cannot be {what}; write {instead}"
            )


# The last family is asked first: a pydantic dataclass is also a dataclass.
for _family in (
    MsgspecFamily(),
    PydanticFamily(),
    DataclassFamily(),
    PydanticDataclassFamily(),
    AttrsFamily(),
    NamedTupleFamily(),
):
    register_record_family(_family)

_SCALARS: dict[Any, TypeSerializer[Any]] = {
    bool: BooleanSerializer(),
    int: LongSerializer(),
    float: DoubleSerializer(),
    str: StringSerializer(),
    bytes: BytesSerializer(),
}


@register_inference
def infer_scalar(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """bool, int (64 bits), float (binary64), str and bytes."""
    try:
        return _SCALARS.get(hint)
    except TypeError:
        return None


@register_inference
def infer_list(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``list[X]``."""
    if typing.get_origin(hint) is not list or not typing.get_args(hint):
        return None
    return ListSerializer(inference.below("[]").serializer_for(typing.get_args(hint)[0]))


@register_inference
def infer_map(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``dict[K, V]``; since any value of a map may be None, ``dict[K, V | None]`` is the same."""
    if typing.get_origin(hint) is not dict or not typing.get_args(hint):
        return None
    key, value = typing.get_args(hint)
    value_serializer = inference.below("{value}").serializer_for(value)
    if isinstance(value_serializer, NullableSerializer):
        value_serializer = value_serializer.inner
    key_serializer = inference.below("{key}").serializer_for(key)
    reject_unhashable(key_serializer, inference.path, "the key of a map")
    return MapSerializer(key_serializer, value_serializer)


@register_inference
def infer_tuple(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``tuple[A, B, C]``, of fixed arity."""
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is not tuple or not arguments or Ellipsis in arguments:
        return None
    return TupleSerializer(
        [inference.below(f"[{index}]").serializer_for(argument) for index, argument in enumerate(arguments)]
    )


@register_inference
def infer_record(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """Record classes; a class that contains itself gets a reference there."""
    reject_undecorated(hint, inference.rules, inference.path or "the type")
    if inference.rules.family_of(hint) is None:
        return None
    if hint in inference.enclosing:
        return open_reference(hint, hint.__qualname__.rpartition("<locals>.")[2])
    with collected_references() as references:
        shape = shape_of(hint, {}, inference)
    where = f"{inference.path}: {hint.__name__}" if inference.path else hint.__name__
    check_shape(shape, where)
    serializer: AttrsSerializer[Any] = AttrsSerializer.from_shape(shape)
    bind_references(references, hint, shape.name, serializer)
    check_defaults(shape, where)
    check_values_are_kept(shape, where)
    return serializer


@register_inference
def infer_pojo(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """A record class that names its Java class is always a POJO."""
    if inference.rules.family_of(hint) is None or POJO_CLASS_ATTRIBUTE not in hint.__dict__:
        return None
    if hint in inference.enclosing:
        raise UnknownTypeError(
            f"{inference.path}: {hint.__qualname__} contains itself, which Flink's POJOs do not; pass a serializer"
        )
    return PojoSerializer.from_shape(pojo_shape_of(hint, None, {}, inference))


@register_inference
def infer_union(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``X | None`` is a nullable X, ``X | Y`` a union, ``Left[X] | Right[Y]`` an Either."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return None
    members = typing.get_args(hint)
    present = [member for member in members if member is not type(None)]
    sides = {typing.get_origin(member): typing.get_args(member) for member in present}
    serializer: TypeSerializer[Any]
    if len(present) == 2 and set(sides) == {Left, Right}:
        serializer = EitherSerializer(
            inference.below(".left").serializer_for(sides[Left][0]),
            inference.below(".right").serializer_for(sides[Right][0]),
        )
        return serializer if len(present) == len(members) else NullableSerializer(serializer)
    if len(present) == 1:
        return NullableSerializer(inference.serializer_for(present[0]))
    parts = [inference.below(f"{{member {_name_of(member)}}}").serializer_for(member) for member in present]
    # A hint inside an Annotated or a NewType may be a union or an optional.
    flat = [inner for part in parts for inner in _flattened(part)]
    is_optional = len(present) < len(members) or any(isinstance(part, NullableSerializer) for part in parts)
    serializer = flat[0] if len(flat) == 1 else _union_of(flat, inference)
    return NullableSerializer(serializer) if is_optional else serializer


def _flattened(serializer: TypeSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
    inner = serializer.inner if isinstance(serializer, NullableSerializer) else serializer
    return inner.member_serializers if isinstance(inner, UnionSerializer) else (inner,)


def _union_of(members: Sequence[TypeSerializer[Any]], inference: Inference) -> TypeSerializer[Any]:
    """Returns the union of the members in the order of their names.

    Python caches equal hints, so the order of members depends on which module was imported first. Processes of one job
    may differ in that and must still write the same bytes.
    """
    try:
        return UnionSerializer(sorted(members, key=lambda member: member.type_name))
    except ValueError as error:
        raise UnknownTypeError(f"{inference.path or 'the type'}: {error}") from error


def _name_of(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and typing.get_origin(hint) is None else str(hint)


@register_inference
def infer_literal(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``Literal["a", "b"]`` is written as the type of its values, and accepts no others."""
    if typing.get_origin(hint) is not Literal:
        return None
    values_of: dict[type, list[Any]] = {}
    for value in typing.get_args(hint):
        values_of.setdefault(type(value), []).append(value)
    is_optional = values_of.pop(type(None), None) is not None
    if not values_of:
        return inference.serializer_for(None)
    parts = [LiteralSerializer(inference.serializer_for(kind), values) for kind, values in values_of.items()]
    serializer = parts[0] if len(parts) == 1 else _union_of(parts, inference)
    return NullableSerializer(serializer) if is_optional else serializer


@register_inference
def infer_final(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``Final[X]`` is an X."""
    if typing.get_origin(hint) is not Final:
        return None
    return inference.serializer_for(typing.get_args(hint)[0])


@register_inference
def infer_new_type(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """A ``typing.NewType`` is its base type."""
    if not isinstance(hint, typing.NewType):
        return None
    return inference.serializer_for(hint.__supertype__)


@register_inference
def infer_forward_reference(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """An unresolved name of an enclosing record; any other name is an error."""
    if not isinstance(hint, (str, typing.ForwardRef)):
        return None
    name = hint if isinstance(hint, str) else hint.__forward_arg__
    for record in reversed(inference.enclosing):
        if name in (record.__name__, record.__qualname__):
            return open_reference(record, record.__qualname__.rpartition("<locals>.")[2])
    raise UnknownTypeError(
        f"{inference.path or 'the type'}: the name {name!r} cannot be resolved here; define the type at the top of "
        f"the module, or pass the type itself"
    )


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
    """Types with exactly one serializer."""
    try:
        return _VALUES.get(hint)
    except TypeError:
        return None


@register_inference
def infer_enum(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """A subclass of ``enum.Enum``; flags are rejected, because a combination of them is not a constant."""
    if not isinstance(hint, type) or not issubclass(hint, enum.Enum):
        return None
    if issubclass(hint, enum.Flag):
        raise UnknownTypeError(
            f"{inference.path or 'the type'}: {hint.__qualname__} is a Flag, whose combinations are not constants; "
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
    reject_unhashable(element, inference.path, "an element of a set")
    return SetSerializer(element) if origin is set else FrozenSetSerializer(element)


@register_inference
def infer_empty_tuple(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``tuple[()]``."""
    return Tuple0Serializer() if hint == tuple[()] else None


@register_inference
def infer_array(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """Rejects ``array.array``: the hint has no element type."""
    if hint is not array.array and typing.get_origin(hint) is not array.array:
        return None
    raise UnknownTypeError(
        f"{inference.path or 'the type'}: array.array has no element type; "
        f"write for example Annotated[array.array, LongPrimitiveArraySerializer()]"
    )
