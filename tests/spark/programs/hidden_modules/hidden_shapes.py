"""A serializer that is registered only in processes that import this module."""

from __future__ import annotations

from typing import Any

from snapshots import SimpleTypeSerializerSnapshot, register_snapshot
from typeserializers import LongSerializer


class CornerSerializer(LongSerializer):
    def snapshot_configuration(self) -> Any:
        return CornerSerializerSnapshot()


@register_snapshot("hidden.shapes.Corner")
class CornerSerializerSnapshot(SimpleTypeSerializerSnapshot[int]):
    def create_serializer(self) -> CornerSerializer:
        return CornerSerializer()
