"""Pickle, chosen explicitly: values of any class, in bytes that only this program and its like can read.

    value := i32(length) pickle

There is no schema, so there is no evolution: the verdict is *as is* for the same class and *incompatible* for every
other, and the snapshot says so (``evolvable`` is 00). What changes inside the class is invisible and the business of
its ``__setstate__``.

Unpickling runs whatever the bytes say. A snapshot that was read must therefore never be enough to do it: a serializer
restored from one unpickles only if the program has passed a `PickleSerializer` of the same class, in the serializer
that is to take over or among the ``source_serializers`` in it.

    content := UTF(class) bool(evolvable)         the class as module:qualified.name; it is never imported
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import SnapshotFormatError, UnresolvableSerializerError
from snapshots.refusals import another_serializer
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot
from snapshots.value_text import misfit, shown
from typeserializers.kernel.known_serializers import known_of
from typeserializers.kernel.stepping_over import SteppedOverSerializer
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.opaque.moved_modules import unpickled

T = TypeVar("T")

PICKLE_PROTOCOL = 4
"""Fixed, so that another version of Python writes the same; every supported one has it."""


class PickleSerializer(TypeSerializer[T], Generic[T]):
    """Instances of ``value_class``, pickled. Choosing it is choosing to trust the state of these values."""

    def __init__(self, value_class: type[T]) -> None:
        self.class_name = f"{value_class.__module__}:{value_class.__qualname__}"
        self.value_class: type[T] | None = value_class
        self.is_chosen = True

    @classmethod
    def named(cls, class_name: str, *, is_chosen: bool = False) -> PickleSerializer[Any]:
        """The serializer of a class known by name alone; it unpickles only if the program has chosen the class."""
        serializer: PickleSerializer[Any] = cls.__new__(cls)
        serializer.class_name = class_name
        serializer.value_class = None
        serializer.is_chosen = is_chosen
        return serializer

    @property
    def minimum_length(self) -> int:
        return 4

    def configuration(self) -> Hashable:
        return self.class_name

    @property
    def python_type(self) -> type:
        if self.value_class is None:
            raise UnresolvableSerializerError(f"{self.class_name} is known by name alone")
        return self.value_class

    @property
    def type_name(self) -> str:
        return self.class_name.rpartition(":")[2]

    def create_instance(self) -> T:
        made: T = self.python_type()
        return made

    def copy(self, value: T) -> T:
        return copy.deepcopy(value)

    def serialize(self, value: T, out: DataOutputView) -> None:
        if not self._fits(value):
            raise self.serialization_error(value, TypeError(f"{shown(value)} is not a {self.class_name}"))
        try:
            data = pickle.dumps(value, PICKLE_PROTOCOL)
        except Exception as error:
            raise self.serialization_error(value, error) from error
        out.write_sized_bytes(data)

    def deserialize(self, source: DataInputView) -> T:
        if not self.is_chosen:
            raise UnresolvableSerializerError(
                f"the state holds pickled values of {self.class_name}; they are only unpickled where the new "
                f"serializer says so, with a PickleSerializer({self.type_name}) in it or in source_serializers"
            )
        data = source.read_sized_bytes()
        try:
            value: T = unpickled(data)
        except Exception as error:
            raise self.deserialization_error(data, error) from error
        return value

    def stepping_over(self, part: Callable[[TypeSerializer[Any]], TypeSerializer[Any]]) -> TypeSerializer[Any]:
        return SteppedOverSerializer(self, DataInputView.read_sized_bytes)

    def problems(self, value: Any, path: str) -> Any:
        if not self._fits(value):
            yield misfit(path, value, f"is not a {self.class_name}")

    def _fits(self, value: Any) -> bool:
        return any(f"{base.__module__}:{base.__qualname__}" == self.class_name for base in type(value).__mro__)

    def snapshot_configuration(self) -> PickleSerializerSnapshot[T]:
        return PickleSerializerSnapshot(self)

    def __repr__(self) -> str:
        return f"PickleSerializer({self.class_name})"


@register_snapshot("statebackend.PickleSerializerSnapshot")
class PickleSerializerSnapshot(TypeSerializerSnapshot[T]):
    """The name of the class, and that nothing about it can evolve."""

    is_evolvable = False

    def __init__(self, serializer: PickleSerializer[T] | None = None) -> None:
        self.class_name = serializer.class_name if serializer is not None else ""

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.class_name)
        out.write_boolean(self.is_evolvable)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.class_name = source.read_utf()
        if source.read_boolean():
            raise SnapshotFormatError(f"a pickle of {self.class_name} that can evolve is not known here")

    def restore_serializer(self) -> PickleSerializer[T]:
        """The serializer of the class by name; it unpickles if a known serializer does."""
        chosen = any(known.is_chosen and known.class_name == self.class_name for known in known_of(PickleSerializer))
        return PickleSerializer.named(self.class_name, is_chosen=chosen)

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        if type(new_serializer) is not PickleSerializer:
            return TypeSerializerSchemaCompatibility.incompatible(
                another_serializer(self.class_name, "PickleSerializer", new_serializer)
            )
        if new_serializer.class_name == self.class_name:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            Finding(
                "",
                FieldVerdict.REFUSE,
                "pickle-class",
                f"the state holds pickles of {self.class_name}, which cannot become {new_serializer.class_name}",
                "Keep the class where it is; to evolve, go over to a record by a ConvertingSerializer",
            )
        )
