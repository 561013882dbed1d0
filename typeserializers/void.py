"""The serializer of the void namespace: one zero byte for the one value there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, final

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError
from snapshots.registry import register_snapshot
from snapshots.simple import SimpleTypeSerializerSnapshot
from typeserializers.code_generation import ReadEmitter, WriteEmitter
from typeserializers.compiled import CompiledTypeSerializer
from typeserializers.flink_names import nested_snapshot


@final
class VoidNamespace:
    """The namespace of state that has none; there is one instance, `VOID_NAMESPACE`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "VOID_NAMESPACE"

    def __reduce__(self) -> str:
        return "VOID_NAMESPACE"


VOID_NAMESPACE: Final = VoidNamespace()


class VoidNamespaceSerializer(CompiledTypeSerializer[VoidNamespace]):
    """Writes one zero byte."""

    @property
    def length(self) -> int:
        return 1

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> VoidNamespace:
        return VOID_NAMESPACE

    def write_to(self, value: VoidNamespace, out: DataOutputView) -> None:
        _require_void(value)
        out.write(b"\x00")

    def read_from(self, source: DataInputView) -> VoidNamespace:
        _require_zero(source.read_unsigned_byte())
        return VOID_NAMESPACE

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.line(f"{emitter.function.bind('require_void', _require_void)}({value})")
        emitter.append("b'\\x00'")

    def emit_read(self, emitter: ReadEmitter) -> str:
        byte = emitter.fixed("B")
        emitter.line(f"{emitter.function.bind('require_zero', _require_zero)}({byte})")
        return emitter.function.bind("void_namespace", VOID_NAMESPACE)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not VOID_NAMESPACE:
            yield f"{path or 'value'}: {value!r:.80} is not VOID_NAMESPACE"

    def snapshot_configuration(self) -> VoidNamespaceSerializerSnapshot:
        return VoidNamespaceSerializerSnapshot()


def _require_void(value: Any) -> None:
    if value is not VOID_NAMESPACE:
        raise TypeError(f"{value!r:.80} is not VOID_NAMESPACE")


def _require_zero(byte: int) -> None:
    if byte:
        raise MalformedDataError(f"the void namespace is one zero byte, found {byte:#x}")


@register_snapshot(nested_snapshot("org.apache.flink.runtime.state.", "VoidNamespaceSerializer"))
class VoidNamespaceSerializerSnapshot(SimpleTypeSerializerSnapshot[VoidNamespace]):
    def create_serializer(self) -> VoidNamespaceSerializer:
        return VoidNamespaceSerializer()
