"""The rules for hints of several types: optionals, unions and Either; and for names that stand for types."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from typing import Any, Final, Literal, Union

from typeserializers.containers.eithers import EitherSerializer, Left, Right
from typeserializers.containers.nullable import NullableSerializer
from typeserializers.containers.unions import UnionSerializer
from typeserializers.kernel.references import open_reference
from typeserializers.kernel.serializer_inference import Inference, UnknownTypeError, register_inference
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.literals import LiteralSerializer


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
    # A hint inside an Annotated or a NewType may be a union or an optional itself.
    flat = [inner for part in parts for inner in _flattened(part)]
    is_optional = len(present) < len(members) or any(isinstance(part, NullableSerializer) for part in parts)
    serializer = flat[0] if len(flat) == 1 else _union_of(flat, inference)
    return NullableSerializer(serializer) if is_optional else serializer


def _flattened(serializer: TypeSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
    inner = serializer.inner if isinstance(serializer, NullableSerializer) else serializer
    return inner.member_serializers if isinstance(inner, UnionSerializer) else (inner,)


def _union_of(members: Sequence[TypeSerializer[Any]], inference: Inference) -> TypeSerializer[Any]:
    """The union of the members in the order of their names.

    Python hands out equal hints for each other, so that the order of the members in a hint depends on which module was
    imported first. Processes of one job may differ in that, and must write the same bytes.
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
    """A ``typing.NewType`` is what it was made of."""
    if not isinstance(hint, typing.NewType):
        return None
    return inference.serializer_for(hint.__supertype__)


@register_inference
def infer_forward_reference(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """The name of an enclosing record, where nothing resolved it; any other name is an error."""
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
