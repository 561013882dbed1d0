"""A value that may be None.

    nullable := 01 zero*padding | 00 value

With padding, a null is as long as a value, so that a fixed-width serializer stays fixed-width.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter, indented
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.known_serializers import RUNTIME, nested_snapshot
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import PART_BYTES, emit_exact, exact_condition, size_expression

T = TypeVar("T")


class NullableSerializer(CompiledTypeSerializer["T | None"], Generic[T]):
    """Wraps a serializer so that it also accepts None. Wrapping twice equals wrapping once.

    ``pad_null_value`` makes a null as long as a value; it has an effect only around a fixed-width serializer.
    """

    accepts_none = True
    is_optional_type = True

    def __init__(self, inner: TypeSerializer[T], *, pad_null_value: bool = False) -> None:
        wrapped: TypeSerializer[Any] = inner
        if isinstance(wrapped, NullableSerializer):
            pad_null_value = wrapped.padding_length > 0
            wrapped = wrapped.inner
        self.inner: TypeSerializer[T] = wrapped
        self.padding_length: int = wrapped.length if pad_null_value and wrapped.length > 0 else 0

    @property
    def length(self) -> int:
        return self.padding_length + 1 if self.padding_length else -1

    @property
    def is_immutable_type(self) -> bool:
        return self.inner.is_immutable_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return self.inner.equal_values_have_equal_bytes

    def configuration(self) -> Hashable:
        return self.inner, self.padding_length

    @property
    def type_name(self) -> str:
        return f"{self.inner.type_name} | None"

    def create_instance(self) -> T | None:
        return None

    def copy(self, value: T | None) -> T | None:
        return None if value is None else self.inner.copy(value)

    def duplicate(self) -> NullableSerializer[T]:
        inner = self.inner.duplicate()
        return self if inner is self.inner else NullableSerializer(inner, pad_null_value=self.padding_length > 0)

    def write_to(self, value: T | None, out: DataOutputView) -> None:
        out.write_boolean(value is None)
        if value is None:
            out.write(bytes(self.padding_length))
        else:
            self.inner.serialize(value, out)

    def read_from(self, source: DataInputView) -> T | None:
        if source.read_boolean():
            source.read(self.padding_length)
            return None
        return self.inner.deserialize(source)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        value = emitter.once(value)
        encoded = emitter.function.fresh("b")
        present = emitter.child()
        present.fixed("?", "False")
        self.inner.emit_write(present, value)
        present.line(f"{encoded} = {present.expression()}")
        null = b"\x01" + bytes(self.padding_length)
        emitter.line(f"if {value} is None: {encoded} = {null!r}")
        emitter.line("else:")
        emitter.lines += indented(present.lines)
        emitter.append(encoded)

    def emit_read(self, emitter: ReadEmitter) -> str:
        is_null = emitter.fixed("?")
        result = emitter.function.fresh("v")
        emitter.line(f"if {is_null}: {result} = None; pos += {self.padding_length}")
        present = emitter.child()
        expression = self.inner.emit_read(present)
        present.line(f"{result} = {expression}")
        emitter.block("else:", present)
        return result

    def problems(self, value: Any, path: str) -> Iterator[str]:
        if value is not None:
            yield from self.inner.problems(value, path)

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        inner = exact_condition(self.inner, again, again, function)
        return None if inner is None else f"({first} is None or {inner})"

    def emit_exact_parts(self, emitter: ReadEmitter, value: str) -> str | None:
        result = emitter.function.fresh("x")
        present = emitter.child()
        exact = emit_exact(self.inner, present, value)
        present.line(f"{result} = {exact}")
        emitter.line(f"if {value} is None: {result} = None")
        emitter.block("else:", present)
        return result

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        variable = function.fresh("n")
        inner = size_expression(self.inner, variable, function)
        return None if inner is None else f"({PART_BYTES} if ({variable} := {value}) is None else {inner})"

    def snapshot_configuration(self) -> NullableSerializerSnapshot[T]:
        return NullableSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"NullableSerializer({self.inner!r}{', pad_null_value=True' if self.padding_length else ''})"


@register_snapshot(nested_snapshot(RUNTIME, "NullableSerializer"))
class NullableSerializerSnapshot(CompositeTypeSerializerSnapshot["T | None", NullableSerializer[Any]], Generic[T]):
    """Outer configuration: the padding length, which must not change."""

    current_outer_version = 2
    outer_serializer_class = NullableSerializer

    padding_length = 0

    def nested_serializers(self, outer: NullableSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return (outer.inner,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> NullableSerializer[Any]:
        restored = NullableSerializer(nested[0], pad_null_value=self.padding_length > 0)
        if restored.padding_length != self.padding_length or restored.inner is not nested[0]:
            raise ValueError(f"{nested[0]!r} cannot have a null of {self.padding_length} bytes of padding")
        return restored

    def nested_path(self, index: int) -> str:
        return ""

    def take_outer_snapshot(self, serializer: NullableSerializer[Any]) -> None:
        self.padding_length = serializer.padding_length

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        out.write_int(self.padding_length)

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        self.padding_length = source.read_int()

    def resolve_outer_schema_compatibility(
        self, new_serializer: NullableSerializer[Any]
    ) -> Sequence[CompatibilityIssue]:
        if new_serializer.padding_length == self.padding_length:
            return ()
        return (
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "nullable-padding",
                f"a null took {self.padding_length} bytes of padding and would take {new_serializer.padding_length}",
                "Keep pad_null_value as it was",
            ),
        )
