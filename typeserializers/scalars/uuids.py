"""The serializer of UUIDs: their 16 bytes in network order, as Flink's; no null."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from snapshots.value_text import misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.flink_names import BASE, nested_snapshot
from typeserializers.scalars.byte_arrays import slice_exactly


def uuid_bytes(value: Any) -> bytes:
    """The 16 bytes of a UUID; raises `TypeError` for anything else."""
    if not isinstance(value, uuid.UUID):
        raise TypeError("is not a uuid.UUID")
    return value.int.to_bytes(16, "big")


def read_uuid(data: bytes, position: int) -> uuid.UUID:
    """The UUID at ``position``."""
    return uuid.UUID(int=int.from_bytes(slice_exactly(data, position, position + 16), "big"))


class UuidSerializer(CompiledTypeSerializer[uuid.UUID]):
    """A ``uuid.UUID``."""

    @property
    def length(self) -> int:
        return 16

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> uuid.UUID:
        return uuid.UUID(int=0)

    def write_to(self, value: uuid.UUID, out: DataOutputView) -> None:
        out.write(uuid_bytes(value))

    def read_from(self, source: DataInputView) -> uuid.UUID:
        return uuid.UUID(bytes=source.read(16))

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.append(f"{emitter.function.bind('uuid_bytes', uuid_bytes)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        result = emitter.function.fresh("v")
        emitter.line(f"{result} = {emitter.function.bind('read_uuid', read_uuid)}(data, pos); pos += 16")
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, uuid.UUID):
            yield misfit(path, value, "is not a uuid.UUID")

    def snapshot_configuration(self) -> UuidSerializerSnapshot:
        return UuidSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "UuidSerializer"))
class UuidSerializerSnapshot(SimpleTypeSerializerSnapshot[uuid.UUID]):
    serializer_class = UuidSerializer
