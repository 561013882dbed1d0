"""What stands for a serializer that this process cannot rebuild, so that its values go through as bytes.

A plan that removes a state, renames it, or places its entries by their keys needs no serializer of its values. Only who
reads or writes one is told that it is not known here. What is stored about the values is the snapshot as it was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

__all__ = ["UnknownSerializer", "restored_or_unknown"]


class UnknownSerializer(TypeSerializer[Any]):
    """``reason`` is why the serializer that the snapshot describes cannot be rebuilt."""

    def __init__(self, snapshot: TypeSerializerSnapshot[Any], reason: str) -> None:
        self._snapshot = snapshot
        self.reason = reason

    def serialize(self, value: Any, out: DataOutputView) -> NoReturn:
        raise UnresolvableSerializerError(self.reason)

    def deserialize(self, source: DataInputView) -> NoReturn:
        raise UnresolvableSerializerError(self.reason)

    def snapshot_configuration(self) -> TypeSerializerSnapshot[Any]:
        return self._snapshot

    def create_instance(self) -> NoReturn:
        raise UnresolvableSerializerError(self.reason)


def restored_or_unknown(
    snapshot: TypeSerializerSnapshot[Any], known: Sequence[TypeSerializer[Any]] = ()
) -> TypeSerializer[Any]:
    """The serializer that a snapshot describes, with the classes of those known, or one that only stands for it."""
    try:
        return restored_with(snapshot, *known)
    except UnresolvableSerializerError as error:
        return UnknownSerializer(snapshot, str(error))
