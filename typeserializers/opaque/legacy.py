"""State whose serializer was persisted whole: read once, on explicit request, and written anew ever after.

The deprecated way to describe a serializer was to pickle the serializer itself. Reading that runs whatever the bytes
say, so it happens only where the running program allows it:

    with allow_legacy_serializers():
        ...  restore the job, register its states, take a savepoint

or, for worker processes, with the environment variable ``STATEBACKEND_ALLOW_LEGACY_SERIALIZERS=1``. Without it such a
snapshot can still be read, carried along and written back, since it is only bytes; its verdict is *incompatible*, and
says how to allow it. Once restored, a state is written under the snapshot of the new serializer, and the pickle is
gone with the next savepoint; then the permission is no longer needed.

    content := i32(length) pickled serializer                                   PickledSerializerSnapshot
    content := i32(length) pickled serializer i32(length) configuration         TypeSerializerConfigSnapshot
"""

from __future__ import annotations

import contextvars
import os
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Final, TypeVar

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import register_snapshot
from snapshots.errors import UnresolvableSerializerError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.opaque.moved_modules import unpickled

T = TypeVar("T")

ALLOW_VARIABLE: Final = "STATEBACKEND_ALLOW_LEGACY_SERIALIZERS"

_allowed: contextvars.ContextVar[bool] = contextvars.ContextVar("allow_legacy_serializers", default=False)


@contextmanager
def allow_legacy_serializers() -> Iterator[None]:
    """Inside the block, serializers that were persisted whole are unpickled; trust the state, or do not do this."""
    token = _allowed.set(True)
    try:
        yield
    finally:
        _allowed.reset(token)


def is_legacy_allowed() -> bool:
    """Whether the running program allows it, by the context or by the environment variable."""
    return _allowed.get() or os.environ.get(ALLOW_VARIABLE) == "1"


@register_snapshot("statebackend.PickledSerializerSnapshot")
class PickledSerializerSnapshot(TypeSerializerSnapshot[T]):
    """A serializer that was persisted whole, as the bytes of its pickle."""

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
        """The serializer itself; raises `UnresolvableSerializerError` unless it is allowed and is a serializer."""
        if not is_legacy_allowed():
            raise UnresolvableSerializerError(
                f"the serializer was persisted whole, as a pickle of {len(self.pickled)} bytes, and is not unpickled "
                f"unless you say so: {_HOW}"
            )
        if self._restored is None:
            self._restored = _unpickled(self.pickled)
        return self._restored

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        if not is_legacy_allowed():
            return TypeSerializerSchemaCompatibility.incompatible(
                Finding("", FieldVerdict.REFUSE, "legacy-serializer", "the serializer was persisted whole", _HOW)
            )
        snapshot = self.restore_serializer().snapshot_configuration()
        if not isinstance(snapshot, PickledSerializerSnapshot):
            return resolve_compatibility(snapshot, new_serializer)
        if self.restore_serializer() == new_serializer:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        reason = "a serializer that is persisted whole can only be followed by an equal one"
        fix = f"Give {type(new_serializer).__name__} a snapshot of its own"
        return TypeSerializerSchemaCompatibility.incompatible(
            Finding("", FieldVerdict.REFUSE, "legacy-serializer", reason, fix)
        )


_HOW = (
    "restore once inside 'with allow_legacy_serializers():' (or with "
    f"{ALLOW_VARIABLE}=1) from state that you trust, and take a savepoint, which is written in the new form"
)


@register_snapshot("statebackend.TypeSerializerConfigSnapshot")
class TypeSerializerConfigSnapshot(PickledSerializerSnapshot[T]):
    """The deprecated base of snapshots: the serializer persisted whole, and a configuration of its own beside it.

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
        """Writes the configuration; by default what was read."""
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
        serializer = unpickled(data)
    except Exception as error:
        raise UnresolvableSerializerError(
            f"the serializer that was persisted whole cannot be unpickled ({type(error).__name__}: {error}): "
            f"make its class importable where it was"
        ) from error
    if not isinstance(serializer, TypeSerializer):
        raise UnresolvableSerializerError(f"the pickle holds a {type(serializer).__name__}, which is no serializer")
    return serializer
