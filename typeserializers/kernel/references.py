"""References: how a record may contain itself. Also the walk over all serializers inside a serializer.

The serializer of a record that contains itself has a `ReferenceSerializer` at that place. It knows the record by name
and is bound to the record's serializer once that exists. Generated code looks the codec up at run time, so the two may
be compiled in any order.

Binding has three steps:

1. The code that creates a record serializer (from hints, or from a snapshot) opens a scope with `collected_references`.
2. It creates the serializers of the fields.
3. It binds the references that name this record; the others pass to the enclosing scope.

A reference never leaves the record that it names: its snapshot is only a name and is valid only inside the snapshot of
that record.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Protocol, TypeAlias, TypeGuard, runtime_checkable

from snapshots.composite import CompositeTypeSerializerSnapshot
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import RuledTypeSerializerSnapshot
from typeserializers.kernel.code_generation import ReadEmitter, WriteEmitter
from typeserializers.kernel.compiled import CompiledTypeSerializer, emit_called_read, emit_called_write
from typeserializers.kernel.type_serializer import Codec, TypeSerializer


class ReferenceSerializer(CompiledTypeSerializer[Any]):
    """Refers to the serializer of the enclosing record of that name, once it is bound."""

    def __init__(self, name: str, target: TypeSerializer[Any] | None = None) -> None:
        self.name = name
        self._target = target

    @property
    def target(self) -> TypeSerializer[Any]:
        """The serializer of the record; raises `UnresolvableSerializerError` before it is bound."""
        if self._target is None:
            raise UnresolvableSerializerError(
                f"the reference to {self.name} is outside the record {self.name}: the snapshot is damaged"
            )
        return self._target

    def bind(self, name: str, target: TypeSerializer[Any]) -> None:
        """Binds the reference to the serializer of the record."""
        self.name = name
        self._target = target

    def configuration(self) -> Hashable:
        # Only the name: comparing the target would never end.
        return self.name

    @property
    def python_type(self) -> type:
        return self.target.python_type

    @property
    def type_name(self) -> str:
        return self.name

    @property
    def former_type_names(self) -> Sequence[str]:
        return () if self._target is None else self._target.former_type_names

    def create_instance(self) -> Any:
        return self.target.create_instance()

    def copy(self, value: Any) -> Any:
        return self.target.copy(value)

    def write_to(self, value: Any, out: DataOutputView) -> None:
        self.target.serialize(value, out)

    def read_from(self, source: DataInputView) -> Any:
        return self.target.deserialize(source)

    def emit_write(self, emitter: WriteEmitter, value: str) -> None:
        emit_called_write(self, emitter, value)

    def emit_read(self, emitter: ReadEmitter) -> str:
        return emit_called_read(self, emitter)

    def create_codec(self) -> Codec[Any]:
        return self.target.codec

    def problems(self, value: Any, path: str) -> Iterator[str]:
        return self.target.problems(value, path)

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return self if self._target is None else part(self._target)

    def snapshot_configuration(self) -> ReferenceSerializerSnapshot:
        return ReferenceSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"ReferenceSerializer({self.name})"


@runtime_checkable
class ReferenceHolder(Protocol):
    """A serializer without a composite snapshot that may contain references: a record."""

    def rebound(self, targets: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
        """The serializer with its references bound to other targets, by name; itself if it has none of them."""

    def held_serializers(self) -> Sequence[TypeSerializer[Any]]:
        """The serializers directly inside."""


def holds_references(serializer: TypeSerializer[Any]) -> TypeGuard[ReferenceHolder]:
    """Whether the serializer is a `ReferenceHolder`; called for every part of every restored serializer."""
    return _is_holder(type(serializer))


@cache
def _is_holder(serializer_class: type) -> bool:
    # isinstance with this Protocol checks every method on each call, so the result is cached.
    return issubclass(serializer_class, ReferenceHolder)


OpenReferences: TypeAlias = "list[tuple[Any, ReferenceSerializer]]"
"""References with the key of their record: its class, or its name in a snapshot."""

_scope: contextvars.ContextVar[OpenReferences | None] = contextvars.ContextVar("open_references", default=None)


@contextmanager
def collected_references() -> Iterator[OpenReferences]:
    """Collects the references that are opened inside the block."""
    opened: OpenReferences = []
    token = _scope.set(opened)
    try:
        yield opened
    finally:
        _scope.reset(token)


def open_reference(record: Any, name: str) -> ReferenceSerializer:
    """Opens a reference to an enclosing record; it is bound when that record's serializer exists."""
    reference = ReferenceSerializer(name)
    scope = _scope.get()
    if scope is not None:
        scope.append((record, reference))
    return reference


def bind_references(references: OpenReferences, record: Any, name: str, target: TypeSerializer[Any]) -> None:
    """Binds the references to ``record`` under ``name``, and passes the others to the enclosing scope."""
    scope = _scope.get()
    for meant, reference in references:
        if meant == record:
            reference.bind(name, target)
        elif scope is not None:
            scope.append((meant, reference))


def rebound(serializer: TypeSerializer[Any], targets: Mapping[str, TypeSerializer[Any]]) -> TypeSerializer[Any]:
    """The serializer with its references bound to other targets, by name; itself if it has none of them."""
    if isinstance(serializer, ReferenceSerializer):
        target = targets.get(serializer.name)
        return serializer if target is None else ReferenceSerializer(serializer.name, target)
    if holds_references(serializer):
        return serializer.rebound(targets)
    snapshot = serializer.snapshot_configuration()
    if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
        return serializer
    nested = list(snapshot.nested_serializers(serializer))
    replaced = [rebound(part, targets) for part in nested]
    if all(new is old for new, old in zip(replaced, nested, strict=True)):
        return serializer
    rebuilt: TypeSerializer[Any] = snapshot.create_outer_serializer(replaced)
    return rebuilt


def refers_to(serializer: TypeSerializer[Any], names: Container[str]) -> bool:
    """Whether there is a reference to one of these names anywhere inside the serializer."""
    if isinstance(serializer, ReferenceSerializer):
        return serializer.name in names
    if holds_references(serializer):
        return any(refers_to(part, names) for part in serializer.held_serializers())
    snapshot = serializer.snapshot_configuration()
    if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
        return False
    return any(refers_to(part, names) for part in snapshot.nested_serializers(serializer))


@register_snapshot("statebackend.ReferenceSerializerSnapshot")
class ReferenceSerializerSnapshot(RuledTypeSerializerSnapshot[Any]):
    """``content := UTF(record name)``. The enclosing record resolves its target."""

    def __init__(self, serializer: ReferenceSerializer | None = None) -> None:
        self.name = serializer.name if serializer is not None else ""

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.name)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.name = source.read_utf()

    def restore_serializer(self) -> ReferenceSerializer:
        return open_reference(self.name, self.name)


def all_inside(serializer: TypeSerializer[Any]) -> Iterator[TypeSerializer[Any]]:
    """Yields the serializer and all nested ones; references are not followed."""
    yield serializer
    for part in directly_inside(serializer):
        yield from all_inside(part)


def directly_inside(serializer: TypeSerializer[Any]) -> tuple[TypeSerializer[Any], ...]:
    """Returns the serializers that this one directly contains."""
    if holds_references(serializer):
        return tuple(serializer.held_serializers())
    snapshot = serializer.snapshot_configuration()
    if not isinstance(snapshot, CompositeTypeSerializerSnapshot):
        return ()
    return tuple(snapshot.nested_serializers(serializer))
