"""What a serializer is made of: itself and every serializer inside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snapshots.composite import CompositeTypeSerializerSnapshot
from typeserializers.kernel.references import holds_references
from typeserializers.kernel.type_serializer import TypeSerializer


def all_inside(serializer: TypeSerializer[Any]) -> Iterator[TypeSerializer[Any]]:
    """The serializer and all inside it, through composites, records and POJOs; a reference is not followed."""
    yield serializer
    for part in directly_inside(serializer):
        yield from all_inside(part)


def directly_inside(serializer: TypeSerializer[Any]) -> tuple[TypeSerializer[Any], ...]:
    """The serializers that this one is put together from."""
    if holds_references(serializer):
        return tuple(serializer.held_serializers())
    snapshot = serializer.snapshot_configuration()
    if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
        return ()
    return tuple(snapshot.nested_serializers(serializer))
