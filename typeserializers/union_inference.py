"""The rules for hints of several types: optionals, unions and Either; and for names that stand for types."""

from __future__ import annotations

import types
import typing
from typing import Any, Union

from typeserializers.eithers import EitherSerializer, Left, Right
from typeserializers.inference import Inference, UnknownTypeError, register_inference
from typeserializers.nullable import NullableSerializer
from typeserializers.references import open_reference
from typeserializers.type_serializer import TypeSerializer
from typeserializers.unions import UnionSerializer


@register_inference
def infer_union(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """``X | None`` is a nullable X, ``X | Y`` a union, ``Left[X] | Right[Y]`` an Either."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return None
    members = typing.get_args(hint)
    present = [member for member in members if member is not type(None)]
    serializer = _infer_present(present, inference)
    return serializer if len(present) == len(members) else NullableSerializer(serializer)


def _infer_present(members: list[Any], inference: Inference) -> TypeSerializer[Any]:
    if len(members) == 1:
        return inference.serializer_for(members[0])
    sides = {typing.get_origin(member): typing.get_args(member) for member in members}
    if len(members) == 2 and set(sides) == {Left, Right}:
        return EitherSerializer(
            inference.below(".left").serializer_for(sides[Left][0]),
            inference.below(".right").serializer_for(sides[Right][0]),
        )
    serializers = [
        inference.below(f"{{member {index}}}").serializer_for(member) for index, member in enumerate(members)
    ]
    try:
        return UnionSerializer(serializers)
    except ValueError as error:
        raise UnknownTypeError(f"{inference.path or 'the type'}: {error}") from error


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
