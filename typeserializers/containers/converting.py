"""A serializer that restores the state of other serializers through converter functions.

    descriptor = ValueStateDescriptor("count", ConvertingSerializer(StringSerializer(), {LongSerializer(): str}))

It writes and reads exactly what its inner serializer does. If a source serializer can restore the old state, the source
reads the value and the function converts it; the result must fit the inner serializer. State that the inner serializer
can restore needs no function and is checked first. So the wrapper may stay as long as old state may exist, and can be
removed at any time after that. Versions of a *record* are chained by the converters of
`typeserializers.records.record_serializer`; a field of a record has its own converter
(`typeserializers.kernel.record_families`).

    content of the snapshot := envelope(inner)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from attrs import frozen

from snapshots.compatibility import TypeSerializerSchemaCompatibility
from snapshots.composite import merge_snapshots
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import read_versioned_snapshot, register_snapshot, write_versioned_snapshot
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from typeserializers.kernel.code_generation import GeneratedFunction, ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer
from typeserializers.kernel.record_families import identity_of, name_of
from typeserializers.kernel.references import rebound
from typeserializers.kernel.type_serializer import Codec, TypeSerializer
from typeserializers.kernel.value_hooks import exact_condition, size_expression

T = TypeVar("T")


@frozen
class Converter:
    """The serializer that reads the old state, and the function from its values to new values."""

    source: TypeSerializer[Any]
    function: Callable[[Any], Any]


class ConvertingSerializer(CompiledTypeSerializer[T], Generic[T]):
    """Wraps ``inner`` so that it also restores what the keys of ``converters`` wrote, through their functions.

    Raises `ValueError` if there are no converters.
    """

    may_reject_what_it_wrote = True

    def __init__(
        self, inner: TypeSerializer[T], converters: Mapping[TypeSerializer[Any], Callable[[Any], Any]]
    ) -> None:
        if not converters:
            raise ValueError("a ConvertingSerializer needs at least one converter; else use the inner serializer")
        self.inner: TypeSerializer[T] = inner
        self.converters = tuple(Converter(source, function) for source, function in converters.items())

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
    def accepts_none(self) -> bool:
        return self.inner.accepts_none

    @property
    def is_optional_type(self) -> bool:
        return self.inner.is_optional_type

    @property
    def equal_values_have_equal_bytes(self) -> bool:
        return self.inner.equal_values_have_equal_bytes

    def configuration(self) -> Hashable:
        return self.inner, *((one.source, identity_of(one.function)) for one in self.converters)

    @property
    def python_type(self) -> type:
        return self.inner.python_type

    @property
    def type_name(self) -> str:
        return self.inner.type_name

    @property
    def former_type_names(self) -> Sequence[str]:
        return self.inner.former_type_names

    def create_instance(self) -> T:
        return self.inner.create_instance()

    def copy(self, value: T) -> T:
        return self.inner.copy(value)

    def duplicate(self) -> ConvertingSerializer[T]:
        inner = self.inner.duplicate()
        return self if inner is self.inner else self.around(inner)

    def around(self, inner: TypeSerializer[T]) -> ConvertingSerializer[T]:
        """Returns the same converters around another form of the inner serializer."""
        return ConvertingSerializer(inner, {converter.source: converter.function for converter in self.converters})

    @property
    def source_serializers(self) -> Sequence[TypeSerializer[Any]]:
        return [converter.source for converter in self.converters]

    def held_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """The inner serializer."""
        return (self.inner,)

    def rebound(self, targets: Mapping[str, TypeSerializer[Any]]) -> ConvertingSerializer[T]:
        """Returns the serializer with the references of its inner serializer bound to other records."""
        inner = rebound(self.inner, targets)
        return self if inner is self.inner else self.around(inner)

    def write_to(self, value: T, out: DataOutputView) -> None:
        self.inner.serialize(value, out)

    def read_from(self, source: DataInputView) -> T:
        return self.inner.deserialize(source)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        self.inner.emit_write(emitter, value)

    def emit_read(self, emitter: ReadEmitter) -> str:
        return self.inner.emit_read(emitter)

    def create_codec(self) -> Codec[T]:
        return self.inner.codec

    def emit_is_exact(self, first: str, again: str, function: GeneratedFunction) -> str | None:
        return exact_condition(self.inner, first, again, function)

    def emit_size(self, value: str, function: GeneratedFunction) -> str | None:
        return size_expression(self.inner, value, function)

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return part(self.inner)

    def problems(self, value: Any, path: str) -> Iterator[str]:
        return self.inner.problems(value, path)

    def snapshot_configuration(self) -> ConvertingSerializerSnapshot[T]:
        return ConvertingSerializerSnapshot(self)

    def __repr__(self) -> str:
        sources = ", ".join(f"{item.source!r}: {name_of(item.function)}" for item in self.converters)
        return f"ConvertingSerializer({self.inner!r}, {{{sources}}})"


@register_snapshot("statebackend.ConvertingSerializerSnapshot")
class ConvertingSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The snapshot of the inner serializer; the bytes depend on nothing else."""

    current_version = 1

    def __init__(self, serializer: ConvertingSerializer[T] | None = None) -> None:
        self._inner: TypeSerializerSnapshot[T] | None = None
        if serializer is not None:
            self._inner = serializer.inner.snapshot_configuration()

    @property
    def inner(self) -> TypeSerializerSnapshot[T]:
        """The snapshot of the inner serializer."""
        assert self._inner is not None, "the snapshot was neither made from a serializer nor read"
        return self._inner

    def write_snapshot(self, out: DataOutputView) -> None:
        write_versioned_snapshot(out, self.inner)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self._inner = read_versioned_snapshot(source)

    def restore_serializer(self) -> TypeSerializer[T]:
        """Returns the inner serializer: reading needs no converter."""
        return self.inner.restore_serializer()

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[T] | None:
        """Merges the snapshots of the inner serializers."""
        assert isinstance(other, ConvertingSerializerSnapshot)
        inner = merge_snapshots(self.inner, other.inner)
        if inner is None:
            return None
        merged: ConvertingSerializerSnapshot[T] = ConvertingSerializerSnapshot()
        merged._inner = inner
        return merged

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        return resolve_compatibility(self.inner, new_serializer)
