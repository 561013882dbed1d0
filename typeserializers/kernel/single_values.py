"""Serializers of types that have one value: one zero byte, and nothing else is written or read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import MalformedDataError
from snapshots.value_text import misfit, shown
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer

T = TypeVar("T")


class SingleValueSerializer(CompiledTypeSerializer[T]):
    """The shared body: a subclass names the value, whose ``repr`` is used in messages."""

    value: ClassVar[Any]

    @property
    def length(self) -> int:
        return 1

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> T:
        value: T = self.value
        return value

    def write_to(self, value: T, out: DataOutputView) -> None:
        self._require(value)
        out.write(b"\x00")

    def read_from(self, source: DataInputView) -> T:
        require_zero(source.read_unsigned_byte())
        return self.create_instance()

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.line(f"{emitter.function.bind('require', self._require)}({value})")
        emitter.append("b'\\x00'")

    def emit_read(self, emitter: ReadEmitter) -> str:
        byte = emitter.fixed("B")
        emitter.line(f"{emitter.function.bind('require_zero', require_zero)}({byte})")
        return emitter.function.bind("value", self.value)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not self.value:
            yield misfit(path, value, f"is not {self.value!r}")

    def _require(self, value: Any) -> None:
        if value is not self.value:
            raise TypeError(f"{shown(value)} is not {self.value!r}")


def require_zero(byte: int) -> None:
    """Raises `MalformedDataError` for anything but the one byte that is ever written."""
    if byte:
        raise MalformedDataError(f"a value of a type with one value is one zero byte, found {byte:#x}")
