"""The serializer of one character: Java's ``char``, a UTF-16 code unit in two bytes.

A character beyond U+FFFF is two code units and does not fit; a lone surrogate is one and survives.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from snapshots.value_text import misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.flink_names import BASE, nested_snapshot


def code_unit(value: Any) -> int:
    """The code unit of a str of one; raises `TypeError` or `ValueError` with the reason."""
    if not isinstance(value, str) or len(value) != 1:
        raise TypeError("is not a str of one character")
    unit = ord(value)
    if unit > 0xFFFF:
        raise ValueError("is beyond U+FFFF and takes two UTF-16 code units; use StringSerializer")
    return unit


class CharSerializer(CompiledTypeSerializer[str]):
    """A str of one UTF-16 code unit."""

    @property
    def length(self) -> int:
        return 2

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    def create_instance(self) -> str:
        return "\0"

    def write_to(self, value: str, out: DataOutputView) -> None:
        out.write_unsigned_short(code_unit(value))

    def read_from(self, source: DataInputView) -> str:
        return chr(source.read_unsigned_short())

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.fixed("H", f"{emitter.function.bind('code_unit', code_unit)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        return f"chr({emitter.fixed('H')})"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        try:
            code_unit(value)
        except (TypeError, ValueError) as error:
            yield misfit(path, value, error)

    def snapshot_configuration(self) -> CharSerializerSnapshot:
        return CharSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "CharSerializer"))
class CharSerializerSnapshot(SimpleTypeSerializerSnapshot[str]):
    serializer_class = CharSerializer
