"""The serializer of tuples: one field after the other, without null flags.

tuple := field*          the empty tuple := 2a
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, SnapshotFormatError, misfit
from snapshots.type_serializer_snapshot import SimpleTypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import RUNTIME
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import emit_exact, exact_parts, size_of_parts

FLINK_TUPLE_CLASS = "org.apache.flink.api.java.tuple.Tuple"


EMPTY_TUPLE_MARK = 0x2A


class Tuple0Serializer(CompiledTypeSerializer["tuple[()]"]):
    """The empty tuple: the byte 42, as Flink writes it. Flink reads any byte; this serializer also reads zero."""

    length = 1
    is_immutable_type = True
    equal_values_have_equal_bytes = True

    def create_instance(self) -> tuple[()]:
        return ()

    def write_to(self, value: tuple[()], out: DataOutputView) -> None:
        _require_empty_tuple(value)
        out.write(b"\x2a")

    def read_from(self, source: DataInputView) -> tuple[()]:
        _require_empty_mark(source.read_unsigned_byte())
        return ()

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.line(f"{emitter.function.bind('require_empty', _require_empty_tuple)}({value})")
        emitter.append("b'\\x2a'")

    def emit_read(self, emitter: ReadEmitter) -> str:
        byte = emitter.fixed("B")
        emitter.line(f"{emitter.function.bind('require_mark', _require_empty_mark)}({byte})")
        return "()"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, tuple) or value:
            yield misfit(path, value, "is not the empty tuple")

    def snapshot_configuration(self) -> Tuple0SerializerSnapshot:
        return Tuple0SerializerSnapshot()


def _require_empty_tuple(value: Any) -> None:
    if not isinstance(value, tuple) or value:
        raise TypeError("not the empty tuple")


def _require_empty_mark(byte: int) -> None:
    if byte not in (EMPTY_TUPLE_MARK, 0):
        raise MalformedDataError(f"the empty tuple is the byte {EMPTY_TUPLE_MARK:#x}, found {byte:#x}")


class TupleSerializer(CompiledTypeSerializer["tuple[Any, ...]"]):
    """A tuple of fixed arity with one serializer per field. A composite key is such a tuple."""

    def __init__(self, field_serializers: Sequence[TypeSerializer[Any]]) -> None:
        self.field_serializers = tuple(field_serializers)
        if not self.field_serializers:
            raise ValueError("a TupleSerializer needs at least one field; for the empty tuple use Tuple0Serializer")

    @property
    def length(self) -> int:
        lengths = [field.length for field in self.field_serializers]
        return -1 if -1 in lengths else sum(lengths)

    @property
    def is_immutable_type(self) -> bool:
        return all(field.is_immutable_type for field in self.field_serializers)

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return all(field.equal_values_have_equal_bytes for field in self.field_serializers)

    @property
    def minimum_length(self) -> int:
        return sum(field.minimum_length for field in self.field_serializers)

    def configuration(self) -> Hashable:
        return self.field_serializers

    @property
    def type_name(self) -> str:
        return f"tuple[{', '.join(part.type_name for part in self.field_serializers)}]"

    def create_instance(self) -> tuple[Any, ...]:
        return tuple(field.create_instance() for field in self.field_serializers)

    def copy(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        if self.is_immutable_type:
            return value
        return tuple(field.copy(item) for field, item in zip(self.field_serializers, value, strict=True))

    def duplicate(self) -> TupleSerializer:
        fields = [field.duplicate() for field in self.field_serializers]
        unchanged = all(new is old for new, old in zip(fields, self.field_serializers, strict=True))
        return self if unchanged else TupleSerializer(fields)

    def write_to(self, value: tuple[Any, ...], out: DataOutputView) -> None:
        for field, item in zip(self.field_serializers, self._checked(value), strict=True):
            field.serialize(item, out)

    def read_from(self, source: DataInputView) -> tuple[Any, ...]:
        return tuple([field.deserialize(source) for field in self.field_serializers])

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        value = emitter.once(value)
        names = [emitter.function.fresh("x") for _ in self.field_serializers]
        check = emitter.function.bind("checked", self._checked)
        emitter.line(f"if {value}.__class__ is not tuple: {check}({value})")
        emitter.line(f"{', '.join(names)}, = {value}")
        for field, name in zip(self.field_serializers, names, strict=True):
            field.emit_write(emitter, name)

    def emit_read(self, emitter: ReadEmitter) -> str:
        return f"({', '.join([field.emit_read(emitter) for field in self.field_serializers])},)"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, tuple) or len(value) != len(self.field_serializers):
            yield misfit(path, value, f"is not a tuple of {len(self.field_serializers)}")
            return
        for index, (field, item) in enumerate(zip(self.field_serializers, value, strict=True)):
            yield from field.problems(item, f"{path}[{index}]")

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        conditions = [f"type({first}) is tuple and len({again}) == {len(self.field_serializers)}"]
        items = [(part, f"{again}[{index}]") for index, part in enumerate(self.field_serializers)]
        return exact_parts(conditions, items, function)

    def emit_exact_parts(self, emitter: ReadEmitter, value: str) -> str | None:
        names = [emitter.function.fresh("x") for _ in self.field_serializers]
        check = emitter.function.bind("checked", self._checked)
        emitter.line(f"if {value}.__class__ is not tuple: {check}({value})")
        emitter.line(f"{', '.join(names)}, = {value}")
        parts = zip(self.field_serializers, names, strict=True)
        return f"({', '.join([emit_exact(field, emitter, name) for field, name in parts])},)"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_of_parts(
            [(part, f"{value}[{index}]") for index, part in enumerate(self.field_serializers)], function
        )

    def snapshot_configuration(self) -> TupleSerializerSnapshot:
        return TupleSerializerSnapshot(self)

    def _checked(self, value: Any) -> tuple[Any, ...]:
        if not isinstance(value, tuple):
            raise TypeError(f"a tuple is needed, not {type(value).__name__}")
        return value

    def __repr__(self) -> str:
        return f"TupleSerializer([{', '.join(map(repr, self.field_serializers))}])"


@register_snapshot(RUNTIME + "TupleSerializerSnapshot")
class TupleSerializerSnapshot(CompositeTypeSerializerSnapshot["tuple[Any, ...]", TupleSerializer]):
    """Outer configuration: the name of Flink's tuple class, which contains the arity."""

    current_outer_version = 2
    outer_serializer_class = TupleSerializer

    _tuple_class = ""

    def nested_serializers(self, outer: TupleSerializer) -> Sequence[TypeSerializer[Any]]:
        return outer.field_serializers

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> TupleSerializer:
        return TupleSerializer(nested)

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(f"{FLINK_TUPLE_CLASS}{len(self.nested_snapshots)}")

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        self._tuple_class = source.read_utf()

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        super().read_snapshot(read_version, source)
        expected = f"{FLINK_TUPLE_CLASS}{len(self.nested_snapshots)}"
        if self._tuple_class != expected:
            raise SnapshotFormatError(
                f"a tuple of class {self._tuple_class!r} with {len(self.nested_snapshots)} fields is not known here, "
                f"only {expected}"
            )


@register_snapshot(RUNTIME + "Tuple0SerializerSnapshot")
class Tuple0SerializerSnapshot(SimpleTypeSerializerSnapshot["tuple[()]"]):
    serializer_class = Tuple0Serializer
