"""A snapshot that is carried on unread, because this process does not know its class.

A program that has dropped a state, and with it the serializer that it had written for it, must still be able to carry
the state to its next savepoint, where another program may know what to do with it. So the envelope stays as it is. Only
who asks what is in it learns that it cannot be known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import SnapshotFormatError, UnknownSnapshotError, UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer


class UnopenedSnapshot(TypeSerializerSnapshot[Any]):
    """``envelope`` are the bytes as they were found, ``reason`` says which class is missing."""

    def __init__(self, envelope: bytes, reason: UnknownSnapshotError) -> None:
        self.envelope = envelope
        self.reason = reason

    @property
    def current_version(self) -> int:
        raise SnapshotFormatError(f"a snapshot that is carried on unread has no version here: {self.reason}")

    def write_snapshot(self, out: DataOutputView) -> NoReturn:
        raise SnapshotFormatError(f"a snapshot that is carried on unread is written as an envelope: {self.reason}")

    def read_snapshot(self, read_version: int, source: DataInputView) -> NoReturn:
        raise SnapshotFormatError(f"a snapshot that is carried on unread is not read: {self.reason}")

    def restore_serializer(self) -> NoReturn:
        raise UnresolvableSerializerError(str(self.reason)) from self.reason

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        refusal = Finding(
            "",
            FieldVerdict.REFUSE,
            "unknown-snapshot",
            f"the serializer that wrote it is not known here: {self.reason}",
            "Make its snapshot class importable again, or register the state under another name",
        )
        return TypeSerializerSchemaCompatibility.incompatible(refusal)
