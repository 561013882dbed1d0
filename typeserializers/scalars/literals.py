"""The serializer of literals: certain values of one type, written as that type.

    literal := the value, as the serializer of its type writes it

The snapshot holds the values, so that a later program can be checked for all of them:

    outer content := i32(values) (i32(length) bytes)*        each as it is stored, in the order of these bytes

The evolution rules are in `typeserializers.evolution.simple_evolution`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility
from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import MalformedDataError, StateFormatError, cut, format_value, misfit
from snapshots.type_serializer_snapshot import resolve_compatibility
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.kernel.value_hooks import exact_condition, size_expression

T = TypeVar("T")

_MAX_SHOWN_VALUES = 200
"""The maximum number of characters of the allowed values in a message."""


class LiteralSerializer(CompiledTypeSerializer[T], Generic[T]):
    """Certain values of the type of another serializer, such as ``Literal["a", "b"]``.

    Args:
        inner: The serializer of the type. It must write equal values as equal bytes.
        values: The allowed values, at least one.

    Raises:
        SerializationError: If the inner serializer does not write one of the values.
        ValueError: If there are no values.
    """

    def __init__(self, inner: TypeSerializer[T], values: Sequence[T]) -> None:
        if not values:
            raise ValueError("a LiteralSerializer needs at least one value")
        self.inner: TypeSerializer[T] = inner
        self.values = tuple(values)
        self._encoded = frozenset(inner.to_bytes(value) for value in values)
        self._allowed = frozenset(values)

    @property
    def length(self) -> int:
        return self.inner.length

    @property
    def minimum_length(self) -> int:
        return self.inner.minimum_length

    @property
    def is_immutable_type(self) -> bool:
        return self.inner.is_immutable_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return self.inner.equal_values_have_equal_bytes

    def configuration(self) -> Hashable:
        return self.inner, self._encoded

    @property
    def encoded_values(self) -> Sequence[bytes]:
        """The allowed values as they are stored, in the order of their bytes."""
        return sorted(self._encoded)

    @property
    def python_type(self) -> type[T]:
        return self.inner.python_type

    @property
    def type_name(self) -> str:
        return self.inner.type_name

    def described(self) -> str:
        """The allowed values, for messages."""
        return cut(", ".join(format_value(value) for value in self.values), _MAX_SHOWN_VALUES)

    def create_instance(self) -> T:
        return self.values[0]

    def copy(self, value: T) -> T:
        return self.inner.copy(value)

    def accepts(self, value: Any) -> bool:
        """Whether a value, or its stand-in in state read without its class, is allowed."""
        try:
            return self.inner.to_bytes(value) in self._encoded
        except StateFormatError:
            return False

    def write_to(self, value: T, out: DataOutputView) -> None:
        out.write(self._encode(value))

    def read_from(self, source: DataInputView) -> T:
        return self._checked(self.inner.deserialize(source))

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emitter.append(f"{emitter.function.bind('encode_literal', self._encode)}({value})")

    def emit_read(self, emitter: ReadEmitter) -> str:
        value = self.inner.emit_read(emitter)
        return f"{emitter.function.bind('checked_literal', self._checked)}({value})"

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        inner = exact_condition(self.inner, first, again, function)
        return None if inner is None else f"{inner} and {again} in {function.bind('allowed', self._allowed)}"

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_expression(self.inner, value, function)

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return part(self.inner)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        problems = tuple(self.inner.problems(value, path))
        yield from problems
        if not problems and not self.accepts(value):
            yield misfit(path, value, f"is not one of {self.described()}")

    def _encode(self, value: T) -> bytes:
        encoded = self.inner.codec.write(value)
        if encoded not in self._encoded:
            raise ValueError(f"{format_value(value)} is not one of {self.described()}")
        return encoded

    def _checked(self, value: T) -> T:
        if value not in self._allowed:
            raise MalformedDataError(f"{format_value(value)} is not one of {self.described()}")
        return value

    def snapshot_configuration(self) -> LiteralSerializerSnapshot[T]:
        return LiteralSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"LiteralSerializer({self.inner!r}, [{self.described()}])"


@register_snapshot("statebackend.LiteralSerializerSnapshot")
class LiteralSerializerSnapshot(CompositeTypeSerializerSnapshot[T, LiteralSerializer[Any]], Generic[T]):
    """Outer configuration: the values, as they are stored."""

    outer_serializer_class = LiteralSerializer

    def __init__(self, serializer: LiteralSerializer[Any] | None = None) -> None:
        self._encoded: Sequence[bytes] = ()
        self._taken: LiteralSerializer[Any] | None = None
        super().__init__(serializer)

    def nested_serializers(self, outer: LiteralSerializer[Any]) -> Sequence[TypeSerializer[Any]]:
        return (outer.inner,)

    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> LiteralSerializer[Any]:
        (inner,) = nested
        taken = self._taken
        if taken is not None and taken.python_type is inner.python_type:
            # A reconfigured serializer writes the same values with other bytes.
            return LiteralSerializer(inner, taken.values)
        return LiteralSerializer(inner, [inner.from_bytes(data) for data in self._encoded])

    def nested_path(self, index: int) -> str:
        return ""

    def take_outer_snapshot(self, serializer: LiteralSerializer[Any]) -> None:
        self._encoded, self._taken = serializer.encoded_values, serializer

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        out.write_int(len(self._encoded))
        for data in self._encoded:
            out.write_sized_bytes(data)

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        self._encoded = [source.read_sized_bytes() for _ in range(source.read_count(minimum_item_bytes=4))]

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        if type(new_serializer) is LiteralSerializer:
            return super().resolve_schema_compatibility(new_serializer)
        # The values are stored by the serializer of their type.
        return resolve_compatibility(self.nested_snapshots[0], new_serializer)

    def resolve_outer_schema_compatibility(
        self, new_serializer: LiteralSerializer[Any]
    ) -> Sequence[CompatibilityIssue]:
        old = self.restore_serializer()
        assert isinstance(old, LiteralSerializer)
        removed = [value for value in old.values if not new_serializer.accepts(value)]
        if not removed or (len(removed) == len(old.values) and type(old.inner) is not type(new_serializer.inner)):
            return ()
        return (
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "literal-values-removed",
                f"the state may hold {cut(', '.join(map(format_value, removed)), _MAX_SHOWN_VALUES)}, which is not one "
                f"of {new_serializer.described()}",
                "Keep these values, or say what becomes of them in the field's metadata: converted_by(function)",
            ),
        )
