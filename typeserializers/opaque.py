"""Serializers without a readable schema: pickles, serializers stored whole, and Flink's Java-only serializers.

**Pickle**, chosen explicitly: values of any class.

    value   := i32(length) pickle
    content := UTF(class) bool(evolvable)         the class as module:qualified.name; it is never imported

There is no schema and no evolution: the same class is *compatible as is*, every other *incompatible* (``evolvable`` is
00). Changes inside the class are handled by its ``__setstate__``. Unpickling runs whatever the bytes contain, so a
snapshot alone never enables it. A restored serializer unpickles only if the program passes a `PickleSerializer` of the
same class, in the new serializer or among its ``source_serializers``.

**Serializers stored whole**, the deprecated form: the pickled serializer itself. Reading it runs whatever the bytes
contain, so the program must allow it:

    with allow_legacy_serializers():
        ...  restore the job, register its states, take a savepoint

or, for worker processes, with the environment variable ``STATEBACKEND_ALLOW_LEGACY_SERIALIZERS=1``. Without permission
the snapshot can still be read and written back, and its result is *incompatible* with the fix. The next savepoint has
the snapshot of the new serializer and no pickle.

    content := i32(length) pickled serializer                                   PickledSerializerSnapshot
    content := i32(length) pickled serializer i32(length) configuration         TypeSerializerConfigSnapshot

**Kryo and Variant**: only Java can read the values. The snapshots are read and written back, so that other states can
be restored, and their result explains what to do in Flink.

    Kryo    := version 2: UTF(class), and three optional maps: registrations, serializers, serializer classes
    Variant := version 3, no content
"""

from __future__ import annotations

import contextvars
import copy
import os
import pickle
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Generic, NoReturn, TypeVar

from snapshots.compatibility import (
    CompatibilityIssue,
    FieldCompatibility,
    TypeSerializerSchemaCompatibility,
    another_serializer,
)
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import SnapshotFormatError, UnresolvableSerializerError, format_value, misfit
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from typeserializers.containers.maps import OptionalEntry, read_optional_map, write_optional_map
from typeserializers.kernel.known_serializers import BASE, RUNTIME, known_of, nested_snapshot
from typeserializers.kernel.stepping_over import SteppedOverSerializer
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

PICKLE_PROTOCOL = 4
"""Fixed, so that every supported version of Python writes the same bytes."""


class PickleSerializer(TypeSerializer[T], Generic[T]):
    """Pickled instances of ``value_class``. Use it only for state that you trust."""

    minimum_length = 4

    def __init__(self, value_class: type[T]) -> None:
        self.class_name = f"{value_class.__module__}:{value_class.__qualname__}"
        self.value_class: type[T] | None = value_class
        self.is_chosen = True

    @classmethod
    def named(cls, class_name: str, *, is_chosen: bool = False) -> PickleSerializer[Any]:
        """Creates the serializer of a class by name; it unpickles only if the program chose the class."""
        serializer: PickleSerializer[Any] = cls.__new__(cls)
        serializer.class_name = class_name
        serializer.value_class = None
        serializer.is_chosen = is_chosen
        return serializer

    def configuration(self) -> Hashable:
        return self.class_name

    @property
    def python_type(self) -> type:
        if self.value_class is None:
            raise UnresolvableSerializerError(f"{self.class_name} is known only by its name")
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
            raise self.serialization_error(value, TypeError(f"{format_value(value)} is not a {self.class_name}"))
        try:
            data = pickle.dumps(value, PICKLE_PROTOCOL)
        except Exception as error:
            raise self.serialization_error(value, error) from error
        out.write_sized_bytes(data)

    def deserialize(self, source: DataInputView) -> T:
        if not self.is_chosen:
            raise UnresolvableSerializerError(
                f"the state holds pickled values of {self.class_name}, which are unpickled only on request: use "
                f"PickleSerializer({self.type_name}) in the new serializer, or pass it in source_serializers"
            )
        data = source.read_sized_bytes()
        try:
            value: T = pickle.loads(data)
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
    """The name of the class; it cannot evolve."""

    is_evolvable = False
    current_version = 1

    def __init__(self, serializer: PickleSerializer[T] | None = None) -> None:
        self.class_name = serializer.class_name if serializer is not None else ""

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.class_name)
        out.write_boolean(self.is_evolvable)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.class_name = source.read_utf()
        if source.read_boolean():
            raise SnapshotFormatError(
                f"the snapshot of the pickles of {self.class_name} has an unknown flag: the bytes are damaged"
            )

    def restore_serializer(self) -> PickleSerializer[T]:
        """Returns the serializer of the class by name; it unpickles if a known serializer does."""
        chosen = any(known.is_chosen and known.class_name == self.class_name for known in known_of(PickleSerializer))
        return PickleSerializer.named(self.class_name, is_chosen=chosen)

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        if type(new_serializer) is not PickleSerializer:
            return TypeSerializerSchemaCompatibility.incompatible(
                another_serializer(self.class_name, "PickleSerializer", new_serializer, "PickleSerializer(the_class)")
            )
        if new_serializer.class_name == self.class_name:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue(
                "",
                FieldCompatibility.REJECT,
                "pickle-class",
                f"the state holds pickles of {self.class_name}, which cannot become {new_serializer.class_name}",
                "Keep the class where it is; to evolve it, convert it to a record with a ConvertingSerializer",
            )
        )


ALLOW_VARIABLE: Final = "STATEBACKEND_ALLOW_LEGACY_SERIALIZERS"

_allowed: contextvars.ContextVar[bool] = contextvars.ContextVar("allow_legacy_serializers", default=False)


@contextmanager
def allow_legacy_serializers() -> Iterator[None]:
    """Allows unpickling of serializers stored whole inside the block. Use it only for state that you trust."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def is_legacy_allowed() -> bool:
    """Whether the context or the environment variable allows it."""
    return _allowed.get() or os.environ.get(ALLOW_VARIABLE) == "1"


@register_snapshot("statebackend.PickledSerializerSnapshot")
class PickledSerializerSnapshot(TypeSerializerSnapshot[T]):
    """A serializer stored whole, as its pickle."""

    def __init__(self, serializer: TypeSerializer[T] | None = None) -> None:
        self.pickled = b"" if serializer is None else pickle.dumps(serializer, 4)
        self._restored: TypeSerializer[T] | None = None

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_sized_bytes(self.pickled)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.pickled = source.read_sized_bytes()

    def restore_serializer(self) -> TypeSerializer[T]:
        """Unpickles the serializer; raises `UnresolvableSerializerError` if it is not allowed or not a serializer."""
        if not is_legacy_allowed():
            raise UnresolvableSerializerError(
                f"the state holds the pickled serializer itself ({len(self.pickled)} bytes), which is unpickled only "
                f"on request: {_HOW}"
            )
        if self._restored is None:
            self._restored = _unpickled(self.pickled)
        return self._restored

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        if not is_legacy_allowed():
            return TypeSerializerSchemaCompatibility.incompatible(
                CompatibilityIssue(
                    "",
                    FieldCompatibility.REJECT,
                    "legacy-serializer",
                    "the state holds the pickled serializer itself",
                    _HOW,
                )
            )
        snapshot = self.restore_serializer().snapshot_configuration()
        if not isinstance(snapshot, PickledSerializerSnapshot):
            return resolve_compatibility(snapshot, new_serializer)
        if self.restore_serializer() == new_serializer:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        reason = "a serializer that is stored as a pickle can be replaced only by an equal one"
        fix = f"Give {type(new_serializer).__name__} its own snapshot class"
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue("", FieldCompatibility.REJECT, "legacy-serializer", reason, fix)
        )


_HOW = (
    "restore once inside 'with allow_legacy_serializers():' (or with "
    f"{ALLOW_VARIABLE}=1) from state that you trust, and take a savepoint, which is written in the new form"
)


@register_snapshot("statebackend.TypeSerializerConfigSnapshot")
class TypeSerializerConfigSnapshot(PickledSerializerSnapshot[T]):
    """The deprecated base class of snapshots: the serializer stored whole, and its configuration.

    A subclass reads and writes its configuration. Do not derive new ones: derive from `SimpleTypeSerializerSnapshot`
    or `CompositeTypeSerializerSnapshot`.
    """

    configuration_version: ClassVar[int] = 1

    def __init__(self, serializer: TypeSerializer[T] | None = None) -> None:
        super().__init__(serializer)
        self._configuration = b""

    @property
    def current_version(self) -> int:
        return self.configuration_version

    def write_configuration(self, out: DataOutputView) -> None:
        """Writes the configuration; by default the bytes that were read."""
        out.write(self._configuration)

    def read_configuration(self, read_version: int, source: DataInputView) -> None:
        """Reads the configuration; by default keeps its bytes."""
        self._configuration = source.read(source.remaining)

    def write_snapshot(self, out: DataOutputView) -> None:
        super().write_snapshot(out)
        configuration = DataOutputView()
        self.write_configuration(configuration)
        out.write_sized_bytes(configuration.to_bytes())

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        super().read_snapshot(read_version, source)
        self.read_configuration(read_version, DataInputView(source.read_sized_bytes()))


def _unpickled(data: bytes) -> TypeSerializer[Any]:
    try:
        serializer = pickle.loads(data)
    except Exception as error:
        raise UnresolvableSerializerError(
            f"the pickled serializer cannot be unpickled ({type(error).__name__}: {error}): "
            f"make its class importable where it was"
        ) from error
    if not isinstance(serializer, TypeSerializer):
        raise UnresolvableSerializerError(f"the pickle holds a {type(serializer).__name__}, which is not a serializer")
    return serializer


_KRYO_MAPS: Final = 3


class UnsupportedSerializerSnapshot(TypeSerializerSnapshot[Any]):
    """A serializer that Python cannot restore; it is incompatible with every other one."""

    @property
    @abstractmethod
    def reason(self) -> str:
        """Why the values cannot be read."""

    @property
    @abstractmethod
    def fix(self) -> str:
        """What to do in Flink to make the values readable."""

    def restore_serializer(self) -> NoReturn:
        raise UnresolvableSerializerError(f"{self.reason}. {self.fix}")

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[Any]
    ) -> TypeSerializerSchemaCompatibility[Any]:
        return TypeSerializerSchemaCompatibility.incompatible(
            CompatibilityIssue("", FieldCompatibility.REJECT, "serializer-of-java", self.reason, self.fix)
        )


@register_snapshot(RUNTIME + "kryo.KryoSerializerSnapshot")
class KryoSerializerSnapshot(UnsupportedSerializerSnapshot):
    """The Java class of the values, and the registrations of Kryo."""

    current_version = 2

    def __init__(self) -> None:
        self.java_class = ""
        self._maps: tuple[tuple[OptionalEntry, ...], ...] = ((),) * _KRYO_MAPS

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_utf(self.java_class)
        for entries in self._maps:
            write_optional_map(out, entries)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        self.java_class = source.read_utf()
        self._maps = tuple(read_optional_map(source) for _ in range(_KRYO_MAPS))

    @property
    def reason(self) -> str:
        return f"Flink wrote {self.java_class} with Kryo, and only the Java classes can read its bytes"

    @property
    def fix(self) -> str:
        return (
            f"In Flink, give {self.java_class} a serializer with a format (make it a POJO, or use Avro), move the "
            f"state over in a job that reads the one and writes the other, and take a savepoint of that; or register "
            f"the state under another name"
        )


@register_snapshot(nested_snapshot(BASE, "VariantSerializer"))
class VariantSerializerSnapshot(UnsupportedSerializerSnapshot):
    """A semi-structured value of Flink 2.1 and later."""

    reason = "Flink wrote a Variant, which has no counterpart here"
    fix = (
        "In Flink, turn the Variant into a string or a row of its fields, and take a savepoint of that; or register "
        "the state under another name"
    )
    current_version = 3

    def write_snapshot(self, out: DataOutputView) -> None:
        """Writes nothing."""

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
