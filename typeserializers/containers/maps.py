"""The serializer of maps, and Flink's optional map in snapshots.

    map := i32(size) (key, bool(value is null), value unless null)*

Any value may be None, as in Flink; keys may be None only if their serializer accepts it.

The optional map is an ordered map from names whose keys and values may each be absent:

    optional map := i64(0x000004F2C69A3D70) i32(entries) entry*
    entry        := UTF(name) part(key) part(value)
    part         := 00 | 01 i32(length) bytes

Flink writes a part that it can no longer load as absent. Here the bytes of both parts are kept, so that a map is
written back as it was read.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

from attrs import frozen

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import SnapshotFormatError, format_value, misfit
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer, check_count, check_distinct, emit_count_check
from typeserializers.kernel.known_serializers import BASE
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.fixed_width import (
    BooleanSerializer,
    ByteSerializer,
    IntSerializer,
    LongSerializer,
    ShortSerializer,
)
from typeserializers.scalars.strings import StringSerializer

K = TypeVar("K")
V = TypeVar("V")

_FLAG = BooleanSerializer()
_INTEGERS: Final[Mapping[type, str]] = {
    kind: kind.format_character for kind in (ByteSerializer, ShortSerializer, IntSerializer, LongSerializer)
}
# The byte before a key is its length plus one. The length of a longer key takes several bytes, the first from 128 on.
_LENGTHS: Final = bytes((*range(1, 256), 255))
_ENTRY_FORMATS: Final = {
    character: {length: f"x{length - 1}s?{character}" for length in range(1, 0x80)} for character in _INTEGERS.values()
}


class MapSerializer(CompiledTypeSerializer["dict[K, V | None]"], Generic[K, V]):
    """A dict; its order is kept."""

    def __init__(self, key_serializer: TypeSerializer[K], value_serializer: TypeSerializer[V]) -> None:
        self.key_serializer = key_serializer
        self.value_serializer = value_serializer

    def configuration(self) -> Hashable:
        return self.key_serializer, self.value_serializer

    @property
    def type_name(self) -> str:
        return f"dict[{self.key_serializer.type_name}, {self.value_serializer.type_name}]"

    def create_instance(self) -> dict[K, V | None]:
        return {}

    def copy(self, value: dict[K, V | None]) -> dict[K, V | None]:
        copy_key, copy_value = self.key_serializer.copy, self.value_serializer.copy
        return {copy_key(key): None if item is None else copy_value(item) for key, item in value.items()}

    def duplicate(self) -> MapSerializer[K, V]:
        key, value = self.key_serializer.duplicate(), self.value_serializer.duplicate()
        unchanged = key is self.key_serializer and value is self.value_serializer
        return self if unchanged else MapSerializer(key, value)

    def write_to(self, value: dict[K, V | None], out: DataOutputView) -> None:
        entries = value.items()
        out.write_int(len(entries))
        for key, item in entries:
            self.key_serializer.serialize(key, out)
            out.write_boolean(item is None)
            if item is not None:
                self.value_serializer.serialize(item, out)

    def read_from(self, source: DataInputView) -> dict[K, V | None]:
        count = source.read_int()
        check_count(count, source.remaining, self.key_serializer, _FLAG)
        result: dict[K, V | None] = {}
        for _ in range(count):
            key = self.key_serializer.deserialize(source)
            result[key] = None if source.read_boolean() else self.value_serializer.deserialize(source)
        check_distinct(count, len(result))
        return result

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        key, item, chunks = function.fresh("k"), function.fresh("x"), function.fresh("chunks")
        if self._integer_character:
            # All entries at once; where that fails, the loop finds out why.
            write = function.bind("write_integers", write_integers)
            emitter.line(f"{chunks} = {write}({value}, '{self._integer_character}')")
            loop = emitter.child()
        else:
            loop = emitter
        loop.line(f"{chunks} = []; {chunks}_append = {chunks}.append")
        body = emitter.child()
        self.key_serializer.emit_write(body, key)
        # Both branches continue the key's parts; its statements are emitted once, before the branch.
        absent, present = body.branch(), body.branch()
        absent.fixed("?", "True")
        absent.line(f"{chunks}_append({absent.expression()})")
        present.fixed("?", "False")
        self.value_serializer.emit_write(present, item)
        present.line(f"{chunks}_append({present.expression()})")
        body.line(f"if {item} is None:")
        body.lines += indented(absent.lines)
        body.line("else:")
        body.lines += indented(present.lines)
        loop.line(f"for {key}, {item} in {value}.items():")
        loop.lines += indented(body.lines)
        if loop is not emitter:
            emitter.line(f"if {chunks} is None:")
            emitter.lines += indented(loop.lines)
        emitter.fixed("i", f"len({value})")
        emitter.append(f"b''.join({chunks})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        function = emitter.function
        count = emitter.fixed("i")
        result, key = function.fresh("v"), function.fresh("k")
        emit_count_check(emitter, count, self.key_serializer, _FLAG)
        if self._integer_character:
            read = function.bind("read_integers", read_integers)
            emitter.line(f"{result}, e = {read}(data, pos, {count}, '{self._integer_character}')")
            loop = emitter.child()
        else:
            loop = emitter
        loop.line(f"{result} = {{}}")
        body = emitter.child()
        key_expression = self.key_serializer.emit_read(body)
        is_null = body.fixed("?")
        body.line(f"{key} = {key_expression}")
        body.line(f"if {is_null}: {result}[{key}] = None")
        present = body.child()
        item = self.value_serializer.emit_read(present)
        present.line(f"{result}[{key}] = {item}")
        body.block("else:", present)
        loop.block(f"for _ in range({count}):", body)
        if loop is not emitter:
            emitter.block(f"if {result} is None:", loop)
            emitter.line("else: pos = e")
        emitter.line(f"{function.bind('check_distinct', check_distinct)}({count}, len({result}))")
        return result

    @property
    def _integer_character(self) -> str:
        """The format character of the values if keys are text and values are integers, else empty."""
        is_text = type(self.key_serializer) is StringSerializer
        return _INTEGERS.get(type(self.value_serializer), "") if is_text else ""

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, dict):
            yield misfit(path, value, "is not a dict")
            return
        for key, item in value.items():
            yield from self.key_serializer.problems(key, f"{path}{{key {format_value(key)}}}")
            if item is not None:
                yield from self.value_serializer.problems(item, f"{path}{{{format_value(key)}}}")

    def snapshot_configuration(self) -> MapSerializerSnapshot[K, V]:
        return MapSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"MapSerializer({self.key_serializer!r}, {self.value_serializer!r})"


def write_integers(entries: dict[str, int], character: str) -> list[bytes] | None:
    """Returns the parts of the entries if all keys are short ASCII text and all values are integers, else None."""
    count = len(entries)
    try:
        keys = "\0".join(entries).encode("ascii").split(b"\0")
        if len(keys) != count:
            return None
        pack, cut = (_known_layouts if count <= _MOST_KNOWN_ENTRIES else _layouts)(count, character)
        lengths = bytes(map(len, keys)).translate(_LENGTHS)
        if not lengths.isascii():
            return None
        cuts = cut(lengths + pack(*entries.values()))
        parts = [b""] * (3 * count)
        parts[::3], parts[1::3], parts[2::3] = cuts[:count], keys, cuts[count:]
        return parts
    except Exception:
        return None


def read_integers(data: bytes, position: int, count: int, character: str) -> tuple[dict[str, int] | None, int]:
    """Returns the entries and the position after them if all keys are short ASCII text and no value is null."""
    start, formats, entry_formats = position, [">"], _ENTRY_FORMATS[character]
    width = struct.calcsize(f">?{character}")
    try:
        for _ in range(count):
            length = data[position]
            formats.append(entry_formats[length])
            position += length + width
        layout = (_known_layout if count <= _MOST_KNOWN_ENTRIES else struct.Struct)("".join(formats))
        parts = layout.unpack_from(data, start)
        keys = b"\0".join(parts[::3]).decode("ascii").split("\0")
    except Exception:
        return None, 0
    if any(parts[1::3]) or len(keys) != count:
        return None, 0
    return dict(zip(keys, parts[2::3], strict=True)), position


def _layouts(count: int, character: str) -> tuple[Callable[..., bytes], Callable[[bytes], tuple[bytes, ...]]]:
    """Returns two functions: one packs the flags and values of all entries, the other separates lengths and entries."""
    width = struct.calcsize(f">?{character}")
    return struct.Struct(f">{('x' + character) * count}").pack, struct.Struct("c" * count + f"{width}s" * count).unpack


# Maps of one state often have the same size, or keys of the same lengths. Layouts of larger maps take much memory.
_MOST_KNOWN_ENTRIES: Final = 1000
_known_layouts: Final = functools.lru_cache(maxsize=256)(_layouts)
_known_layout: Final = functools.lru_cache(maxsize=256)(struct.Struct)


@register_snapshot(BASE + "MapSerializerSnapshot")
class MapSerializerSnapshot(
    CompositeTypeSerializerSnapshot["dict[K, V | None]", MapSerializer[Any, Any]], Generic[K, V]
):
    outer_serializer_class = MapSerializer

    def nested_serializers(self, outer: MapSerializer[Any, Any]) -> Sequence[TypeSerializer[Any]]:
        return outer.key_serializer, outer.value_serializer

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> MapSerializer[Any, Any]:
        return MapSerializer(nested[0], nested[1])

    def nested_path(self, index: int) -> str:
        return ("{key}", "{value}")[index]

    def holds_distinct_values(self, index: int) -> bool:
        return index == 0


MAGIC: Final = 0x000004F2C69A3D70

# A name length and two flags.
_MINIMUM_ENTRY_BYTES: Final = 4


@frozen
class OptionalEntry:
    """One name with the bytes of its key and value, either of which may be None."""

    name: str
    key: bytes | None
    value: bytes | None


def write_optional_map(out: DataOutputView, entries: Sequence[OptionalEntry]) -> None:
    """Writes the entries in order."""
    out.write_long(MAGIC)
    out.write_int(len(entries))
    for entry in entries:
        out.write_utf(entry.name)
        for part in (entry.key, entry.value):
            out.write_boolean(part is not None)
            if part is not None:
                out.write_sized_bytes(part)


def read_optional_map(source: DataInputView) -> tuple[OptionalEntry, ...]:
    """Reads the entries; raises `SnapshotFormatError` for other bytes and for duplicate names."""
    position = source.position
    magic = source.read_long()
    if magic != MAGIC:
        raise SnapshotFormatError(f"no optional map begins at byte {position}: found {magic:#x} for {MAGIC:#x}")
    count = source.read_count(_MINIMUM_ENTRY_BYTES)
    entries = tuple(OptionalEntry(source.read_utf(), _read_part(source), _read_part(source)) for _ in range(count))
    if len({entry.name for entry in entries}) != len(entries):
        raise SnapshotFormatError(f"the optional map at byte {position} has a name twice: the bytes are damaged")
    return entries


def _read_part(source: DataInputView) -> bytes | None:
    return source.read_sized_bytes() if source.read_boolean() else None
