"""Serializers of types with one value: the void namespace and null.

Each is one zero byte, except Flink's null value type, which takes no bytes at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import format_value, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.fixed_fields import SingleValueSerializer, require_zero
from typeserializers.kernel.known_serializers import BASE, nested_snapshot


@final
class VoidNamespace:
    """The namespace of state without namespaces; the only instance is `VOID_NAMESPACE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "VOID_NAMESPACE"

    def __reduce__(self) -> str:
        return "VOID_NAMESPACE"


VOID_NAMESPACE: Final = VoidNamespace()


class VoidNamespaceSerializer(SingleValueSerializer[VoidNamespace]):
    """Writes one zero byte."""

    value = VOID_NAMESPACE

    def snapshot_configuration(self) -> VoidNamespaceSerializerSnapshot:
        return VoidNamespaceSerializerSnapshot()


def _require_none(value: Any) -> None:
    if value is not None:
        raise TypeError(f"{format_value(value)} is not None")


class VoidSerializer(CompiledTypeSerializer[None]):
    """None, as one zero byte."""

    length = 1
    is_immutable_type = True
    accepts_none = True
    is_optional_type = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> None:
        return None

    def write_to(self, value: None, out: DataOutputView) -> None:
        _require_none(value)
        out.write(bytes(self.length))

    def read_from(self, source: DataInputView) -> None:
        require_zero(source.read_unsigned_byte())

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.line(f"{emitter.function.bind('require_none', _require_none)}({value})")
        emitter.append(repr(bytes(self.length)))

    def emit_read(self, emitter: ReadEmitter) -> str:
        byte = emitter.fixed("B")
        emitter.line(f"{emitter.function.bind('require_zero', require_zero)}({byte})")
        return "None"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not None:
            yield misfit(path, value, "is not None")

    def snapshot_configuration(self) -> VoidSerializerSnapshot:
        return VoidSerializerSnapshot()


class NullValueSerializer(VoidSerializer):
    """None, as no bytes at all: Flink's ``NullValue``."""

    length = 0
    minimum_length = 0

    def read_from(self, source: DataInputView) -> None:
        return None

    def emit_read(self, emitter: ReadEmitter) -> str:
        return "None"

    def snapshot_configuration(self) -> NullValueSerializerSnapshot:  # type: ignore[override]
        return NullValueSerializerSnapshot()


@register_snapshot(nested_snapshot("org.apache.flink.runtime.state.", "VoidNamespaceSerializer"))
class VoidNamespaceSerializerSnapshot(SimpleTypeSerializerSnapshot[VoidNamespace]):
    serializer_class = VoidNamespaceSerializer


@register_snapshot(nested_snapshot(BASE, "VoidSerializer"))
class VoidSerializerSnapshot(SimpleTypeSerializerSnapshot[None]):
    serializer_class = VoidSerializer


@register_snapshot(nested_snapshot(BASE, "NullValueSerializer"))
class NullValueSerializerSnapshot(SimpleTypeSerializerSnapshot[None]):
    serializer_class = NullValueSerializer
