"""The serializer of values with the time of their last access, in Flink's layout.

ttl value := i64(last access, milliseconds) value
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from attrs import define

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


@define(unsafe_hash=True)
class TtlValue(Generic[T]):
    """A value and when it was last used, in milliseconds.

    Do not modify it: it is shared. This is not enforced, because every write of state with a time-to-live creates one,
    and creating an object of a frozen class takes more than twice as long.
    """

    value: T
    last_access_timestamp: int


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
        return TtlValue(self.value_serializer.copy(value.value), value.last_access_timestamp)

    def duplicate(self) -> TtlSerializer[T]:
        inner = self.value_serializer.duplicate()
        return self if inner is self.value_serializer else TtlSerializer(inner)

    def write_to(self, value: TtlValue[T], out: DataOutputView) -> None:
        require_ttl_value(value)
        out.write_long(value.last_access_timestamp)
        self.value_serializer.serialize(value.value, out)

    def read_from(self, source: DataInputView) -> TtlValue[T]:
        timestamp = source.read_long()
        return TtlValue(self.value_serializer.deserialize(source), timestamp)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        function = emitter.function
        value = emitter.once(value)
        ttl_value, require = function.bind("ttl_value", TtlValue), function.bind("require_ttl", require_ttl_value)
        emitter.line(f"if {value}.__class__ is not {ttl_value}: {require}({value})")
        emitter.fixed("q", f"{value}.last_access_timestamp")
        self.value_serializer.emit_write(emitter, f"{value}.value")

    def emit_read(self, emitter: ReadEmitter) -> str:
        timestamp = emitter.fixed("q")
        value = self.value_serializer.emit_read(emitter)
        return f"{emitter.function.bind('ttl_value', TtlValue)}({value}, {timestamp})"

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if not isinstance(value, TtlValue):
            yield misfit(path, value, "is not a TtlValue")
            return
        yield from LongSerializer().problems(value.last_access_timestamp, f"{path}.last_access_timestamp")
        # The pair is internal: the user passed only the value.
        yield from self.value_serializer.problems(value.value, path)

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        expected = function.bind("ttl_value", TtlValue)
        items: list[tuple[TypeSerializer[Any], str]] = [
            (LongSerializer(), f"{again}.last_access_timestamp"),
            (self.value_serializer, f"{again}.value"),
        ]
        return exact_parts([f"type({first}) is {expected}"], items, function)

    def emit_exact_parts(self, emitter: ReadEmitter, value: str) -> str | None:
        function = emitter.function
        timestamp, inner = function.fresh("x"), function.fresh("x")
        emitter.line(f"{inner} = {value}.value; {timestamp} = {value}.last_access_timestamp")
        exact = emit_exact(self.value_serializer, emitter, inner)
        return f"{function.bind('ttl_value', TtlValue)}({exact}, {emit_exact(LongSerializer(), emitter, timestamp)})"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_of_parts([(self.value_serializer, f"{value}.value")], function)

    def snapshot_configuration(self) -> TtlSerializerSnapshot[T]:
        return TtlSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"TtlSerializer({self.value_serializer!r})"


def require_ttl_value(value: Any) -> None:
    """Raises `TypeError` for a value that is not a `TtlValue`."""
    if not isinstance(value, TtlValue):
        raise TypeError(f"a TtlValue is needed, not {type(value).__name__}")


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
