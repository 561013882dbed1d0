"""The serializer of text, in Flink's encoding (see `typeserializers.scalars.string_encoding`).

It also writes None, as Flink's does; a record nevertheless refuses None in a field that is not optional.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from snapshots.value_text import misfit
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.flink_names import BASE, nested_snapshot
from typeserializers.kernel.value_hooks import is_plain_text
from typeserializers.scalars.string_encoding import SMALL_LENGTHS, decode_units, encode_varint, read_text, write_text


class StringSerializer(CompiledTypeSerializer["str | None"]):
    """Text; None is written as one zero byte."""

    @property
    def is_immutable_type(self) -> bool:
        return True

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return True

    @property
    def accepts_none(self) -> bool:
        return True

    def create_instance(self) -> str:
        return ""

    def copy(self, value: str | None) -> str | None:
        return value

    def write_to(self, value: str | None, out: DataOutputView) -> None:
        out.write(write_text(value))

    def read_from(self, source: DataInputView) -> str | None:
        text, source.position = read_text(source.data, source.position)
        return text

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        encoded = function.fresh("b")
        small = function.bind("small_lengths", SMALL_LENGTHS)
        varint = function.bind("encode_varint", encode_varint)
        # Anything but a plain ASCII str takes the call, which also writes None and refuses what is not a str.
        emitter.line(f"if {value}.__class__ is str and {value}.isascii():")
        emitter.line(f"    {encoded} = {value}.encode()")
        emitter.line(f"    n = len({encoded}) + 1")
        emitter.line(f"    {encoded} = ({small}[n] if n < 128 else {varint}(n)) + {encoded}")
        emitter.line(f"else: {encoded} = {function.bind('write_text', write_text)}({value})")
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        text = function.fresh("s")
        length = emitter.fixed("B")
        read = function.bind("read_text", read_text)
        units = function.bind("decode_units", decode_units)
        emitter.line(f"e = pos + {length} - 1; b = data[pos:e]")
        emitter.line(f"if {length} < 128 and len(b) == {length} - 1 and b.isascii(): {text} = b.decode(); pos = e")
        # Nor does a text whose length is one byte need a second look at it.
        emitter.line(f"elif 1 < {length} < 128: {text}, pos = {units}(data, pos, {length} - 1)")
        emitter.line(f"else: {text}, pos = {read}(data, pos - 1)")
        return text

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not None and not isinstance(value, str):
            yield misfit(path, value, "is not a str")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        is_plain = function.bind("is_plain_text", is_plain_text)
        return f"type({first}) is str and ({again}.isascii() or {is_plain}({again}))"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return f"{value}.__sizeof__()"

    def snapshot_configuration(self) -> StringSerializerSnapshot:
        return StringSerializerSnapshot()


@register_snapshot(nested_snapshot(BASE, "StringSerializer"))
class StringSerializerSnapshot(SimpleTypeSerializerSnapshot["str | None"]):
    serializer_class = StringSerializer
