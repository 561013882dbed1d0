"""The POJO classes that this process has: what a name in the bytes may stand for. Nothing is ever imported."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.pojos.pojo_format import WrittenPojo
from typeserializers.pojos.pojo_shape import PojoShape, stand_in_shape

_known: dict[str, list[PojoShape]] = {}


def remember_pojo(shape: PojoShape) -> None:
    """Makes the class of a shape known to snapshots of the same name that are restored later in this process."""
    known = _known.setdefault(shape.name, [])
    known[:] = [other for other in known if other.record_class is not shape.record_class]
    known.append(shape)


def restored_shape(pojo: WrittenPojo, serializers: Sequence[TypeSerializer[Any]]) -> PojoShape:
    """The shape of the class that wrote a POJO if this process has it, else that of a stand-in."""
    names = [part.name for part in pojo.fields]
    for shape in reversed(_known.get(pojo.name, ())):
        if [part.name for part in shape.fields] == names and [part.serializer for part in shape.fields] == serializers:
            return shape
    return stand_in_shape(
        pojo.name,
        [
            (part.name, part.declaring_class or pojo.name, serializer)
            for part, serializer in zip(pojo.fields, serializers, strict=True)
        ],
    )


def all_subclasses(record_class: type) -> Iterator[type]:
    """The subclasses of a class, theirs included."""
    subclasses: list[type] = record_class.__subclasses__()
    for subclass in subclasses:
        yield subclass
        yield from all_subclasses(subclass)
