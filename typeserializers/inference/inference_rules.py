"""The rules that map Python's types to the built-in serializers."""

from __future__ import annotations

import typing
from typing import Any

from typeserializers.containers.lists import ListSerializer
from typeserializers.containers.maps import MapSerializer
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.tuples import TupleSerializer
from typeserializers.inference.hashable_parts import refuse_unhashable
from typeserializers.kernel.references import bind_references, collected_references, open_reference
from typeserializers.kernel.serializer_inference import Inference, register_inference, register_record_family
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.records.class_families import AttrsFamily, DataclassFamily, NamedTupleFamily
from typeserializers.records.msgspec_structs import MsgspecFamily
from typeserializers.records.pydantic_models import PydanticDataclassFamily, PydanticFamily
from typeserializers.records.record_checks import (
    check_defaults,
    check_shape,
    check_values_are_kept,
    refuse_undecorated,
)
from typeserializers.records.record_shape import shape_of
from typeserializers.records.records import AttrsSerializer
from typeserializers.scalars.byte_arrays import BytesSerializer
from typeserializers.scalars.fixed_width import BooleanSerializer, DoubleSerializer, LongSerializer
from typeserializers.scalars.strings import StringSerializer

# Those that are asked first stand last: a dataclass of pydantic is a dataclass too.
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
    refuse_unhashable(key_serializer, inference.path, "the key of a map")
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
    """Classes of a family of records; one that contains itself refers to itself there."""
    refuse_undecorated(hint, inference.rules, inference.path or "the type")
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
