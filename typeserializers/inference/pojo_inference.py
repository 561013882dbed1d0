"""The rule for record classes that say which Java class they stand for."""

from __future__ import annotations

from typing import Any

from typeserializers.kernel.serializer_inference import Inference, UnknownTypeError, register_inference
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_shape import POJO_CLASS_ATTRIBUTE, pojo_shape_of
from typeserializers.pojos.pojos import PojoSerializer


@register_inference
def infer_pojo(hint: Any, inference: Inference) -> TypeSerializer[Any] | None:
    """A record class that says which Java class it stands for is a POJO wherever it is."""
    if inference.rules.family_of(hint) is None or POJO_CLASS_ATTRIBUTE not in hint.__dict__:
        return None
    if hint in inference.enclosing:
        raise UnknownTypeError(
            f"{inference.path}: {hint.__qualname__} contains itself, which Flink's POJOs do not; pass a serializer"
        )
    return PojoSerializer.from_shape(pojo_shape_of(hint, None, {}, inference))
