"""Serializers of ``bytes`` (Flink's ``byte[]``) and of UUIDs.

bytes := i32(length) byte*
uuid  := 16 bytes in network order, without null
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, Final

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import EndOfDataError, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import ARRAY, BASE, nested_snapshot


def checked_bytes(value: Any) -> bytes:
    """Returns bytes unchanged, copies a bytearray or memoryview, and rejects other values."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"bytes are needed, not {type(value).__name__}")


def slice_exactly(data: bytes, position: int, end: int) -> bytes:
    """Returns the bytes from ``position`` to ``end``; raises `EndOfDataError` if some are missing."""
    if not position <= end <= len(data):
        raise EndOfDataError(
            f"{end - position} bytes wanted at byte {position}, {len(data) - position} are left: the data is damaged"
        )
    return data[position:end]


class BytesSerializer(CompiledTypeSerializer[bytes]):
    """A 32-bit length and the bytes. A bytearray or memoryview is accepted and is read back as bytes."""

    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> bytes:
        return b""

    def copy(self, value: bytes) -> bytes:
        return bytes(value)

    def write_to(self, value: bytes, out: DataOutputView) -> None:
        out.write_sized_bytes(checked_bytes(value))

    def read_from(self, source: DataInputView) -> bytes:
        return source.read_sized_bytes()

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        value = emitter.once(value)
        checked = emitter.function.fresh("b")
        check = emitter.function.bind("checked_bytes", checked_bytes)
        emitter.line(f"{checked} = {value} if {value}.__class__ is bytes else {check}({value})")
        emitter.fixed("i", f"len({checked})")
        emitter.append(checked)

    def emit_read(self, emitter: ReadEmitter) -> str:
        length = emitter.fixed("i")
        chunk = emitter.function.fresh("b")
        emitter.line(
            f"e = pos + {length}; {chunk} = {emitter.function.bind('slice', slice_exactly)}(data, pos, e); pos = e"
        )
        return chunk

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            yield misfit(path, value, "is not bytes")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return f"type({first}) is bytes"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return f"{value}.__sizeof__()"

    def snapshot_configuration(self) -> BytesSerializerSnapshot:
        return BytesSerializerSnapshot()


@register_snapshot(nested_snapshot(ARRAY, "BytePrimitiveArraySerializer"))
class BytesSerializerSnapshot(SimpleTypeSerializerSnapshot[bytes]):
    serializer_class = BytesSerializer


def uuid_bytes(value: Any) -> bytes:
    """Returns the 16 bytes of a UUID; raises `TypeError` for other values."""
    if not isinstance(value, uuid.UUID):
        raise TypeError("is not a uuid.UUID")
    return value.int.to_bytes(16, "big")


_new_uuid: Final = uuid.UUID.__new__
_set_int: Final[Any] = uuid.UUID.__dict__["int"].__set__
_set_is_safe: Final[Any] = uuid.UUID.__dict__["is_safe"].__set__
_UNKNOWN: Final = uuid.SafeUUID.unknown


def read_uuid(data: bytes, position: int) -> uuid.UUID:
    """The UUID at ``position``."""
    chunk = data[position : position + 16]
    if len(chunk) < 16:
        slice_exactly(data, position, position + 16)
    # The constructor, which checks its many arguments, takes several times as long.
    value = _new_uuid(uuid.UUID)
    _set_int(value, int.from_bytes(chunk, "big"))
    _set_is_safe(value, _UNKNOWN)
    return value


class UuidSerializer(CompiledTypeSerializer[uuid.UUID]):
    """A ``uuid.UUID``."""

    length = 16
    is_immutable_type = True
    equal_values_have_equal_bytes = True

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

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        uuid_class, unknown = function.bind("uuid", uuid.UUID), function.bind("unknown", _UNKNOWN)
        return f"type({first}) is {uuid_class} and {again}.is_safe is {unknown}"

    def snapshot_configuration(self) -> UuidSerializerSnapshot:
        return UuidSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "UuidSerializer"))
class UuidSerializerSnapshot(SimpleTypeSerializerSnapshot[uuid.UUID]):
    serializer_class = UuidSerializer
