"""The serializer of values with the time of their last access, in Flink's layout.

ttl value := i64(last access, milliseconds) value
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, Generic, TypeVar

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import SnapshotFormatError, misfit
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import emit_exact, exact_parts, size_of_parts
from typeserializers.scalars.fixed_width import LongSerializer

T = TypeVar("T")


class TtlValue(tuple[T, int]):
    """A value and when it was last used, in milliseconds.

    The serializer also accepts a plain tuple of both. State with a time-to-live stores those, because they are created
    in a sixth of the time.
    """

    __slots__ = ()

    def __new__(cls, value: T, last_access_timestamp: int) -> TtlValue[T]:
        return tuple.__new__(cls, (value, last_access_timestamp))

    def __getnewargs__(self) -> tuple[T, int]:
        return self[0], self[1]

    @property
    def value(self) -> T:
        """The value."""
        return self[0]

    @property
    def last_access_timestamp(self) -> int:
        """The time of the last access."""
        return self[1]

    def __repr__(self) -> str:
        return f"TtlValue(value={self[0]!r}, last_access_timestamp={self[1]!r})"


class TtlSerializer(CompiledTypeSerializer["TtlValue[T]"], Generic[T]):
    """A `TtlValue`."""

    def __init__(self, value_serializer: TypeSerializer[T]) -> None:
        self.value_serializer = value_serializer

    @property
    def length(self) -> int:
        length = self.value_serializer.length
        return 8 + length if length >= 0 else -1

    @property
    def minimum_length(self) -> int:
        return 8 + self.value_serializer.minimum_length

    @property
    def is_immutable_type(self) -> bool:
        return self.value_serializer.is_immutable_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return self.value_serializer.equal_values_have_equal_bytes

    def configuration(self) -> Hashable:
        return self.value_serializer

    def create_instance(self) -> TtlValue[T]:
        return TtlValue(self.value_serializer.create_instance(), 0)

    def copy(self, value: TtlValue[T]) -> TtlValue[T]:
        if self.is_immutable_type:
            return value
        return TtlValue(self.value_serializer.copy(value[0]), value[1])

    def duplicate(self) -> TtlSerializer[T]:
        inner = self.value_serializer.duplicate()
        return self if inner is self.value_serializer else TtlSerializer(inner)

    def write_to(self, value: TtlValue[T], out: DataOutputView) -> None:
        require_ttl_value(value)
        out.write_long(value[1])
        self.value_serializer.serialize(value[0], out)

    def read_from(self, source: DataInputView) -> TtlValue[T]:
        timestamp = source.read_long()
        return TtlValue(self.value_serializer.deserialize(source), timestamp)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        ttl_value, require = function.bind("ttl_value", TtlValue), function.bind("require_ttl", require_ttl_value)
        inner, timestamp = function.fresh("v"), function.fresh("t")
        emitter.line(f"if {value}.__class__ is not tuple and {value}.__class__ is not {ttl_value}: {require}({value})")
        emitter.line(f"{inner}, {timestamp} = {value}")
        emitter.fixed("q", timestamp)
        self.value_serializer.emit_write(emitter, inner)

    def emit_read(self, emitter: ReadEmitter) -> str:
        timestamp = emitter.fixed("q")
        value = self.value_serializer.emit_read(emitter)
        return emit_ttl_value(emitter.function, value, timestamp)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not _is_ttl_value(value):
            yield misfit(path, value, "is not a TtlValue")
            return
        yield from LongSerializer().problems(value[1], f"{path}.last_access_timestamp")
        # The pair is internal: the user passed only the value.
        yield from self.value_serializer.problems(value[0], path)

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        expected = function.bind("ttl_values", _TTL_VALUES)
        items: list[tuple[TypeSerializer[Any], str]] = [
            (LongSerializer(), f"{again}[1]"),
            (self.value_serializer, f"{again}[0]"),
        ]
        return exact_parts([f"type({first}) in {expected}", f"len({again}) == 2"], items, function)

    def emit_exact_parts(self, emitter: ReadEmitter, value: str) -> str | None:
        function = emitter.function
        timestamp, inner = function.fresh("x"), function.fresh("x")
        emitter.line(f"{inner}, {timestamp} = {value}")
        exact = emit_exact(self.value_serializer, emitter, inner)
        return f"({exact}, {emit_exact(LongSerializer(), emitter, timestamp)})"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_of_parts([(self.value_serializer, f"{value}[0]")], function)

    def snapshot_configuration(self) -> TtlSerializerSnapshot[T]:
        return TtlSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"TtlSerializer({self.value_serializer!r})"


class TtlPairSerializer(TtlSerializer[T]):
    """A `TtlSerializer` that reads plain tuples, because they are created in a sixth of the time."""

    def read_from(self, source: DataInputView) -> Any:
        timestamp = source.read_long()
        return self.value_serializer.deserialize(source), timestamp

    def emit_read(self, emitter: ReadEmitter) -> str:
        timestamp = emitter.fixed("q")
        value = self.value_serializer.emit_read(emitter)
        return f"({value}, {timestamp})"


def emit_ttl_value(function: GeneratedFunction, value: str, timestamp: str) -> str:
    """The expression that creates a `TtlValue`, without a call of Python code."""
    return f"{function.bind('new', tuple.__new__)}({function.bind('ttl_value', TtlValue)}, ({value}, {timestamp}))"


def require_ttl_value(value: Any) -> None:
    """Raises `TypeError` for a value that is neither a `TtlValue` nor a pair."""
    if not _is_ttl_value(value):
        raise TypeError(f"a TtlValue is needed, not {type(value).__name__}")


_TTL_VALUES: Final = frozenset({tuple, TtlValue})


def _is_ttl_value(value: Any) -> bool:
    return type(value) in _TTL_VALUES and len(value) == 2


@register_snapshot("org.apache.flink.runtime.state.ttl.TtlStateFactory$TtlSerializerSnapshot")
class TtlSerializerSnapshot(CompositeTypeSerializerSnapshot["TtlValue[T]", TtlSerializer[Any]], Generic[T]):
    """The nested serializers are that of the timestamp, always a long, and that of the value."""

    current_outer_version = 2
    outer_serializer_class = TtlSerializer

    @property
    def value_snapshot(self) -> TypeSerializerSnapshot[T]:
        """The snapshot of the value serializer."""
        return self.nested_snapshots[1]

    def nested_serializers(self, outer: TtlSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return LongSerializer(), outer.value_serializer

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> TtlSerializer[Any]:
        if len(nested) != 2 or type(nested[0]) is not LongSerializer:
            raise SnapshotFormatError("a TTL serializer has a long and a value: the bytes are damaged")
        return TtlSerializer(nested[1])

    def nested_path(self, index: int) -> str:
        return (".last_access_timestamp", ".value")[index]
