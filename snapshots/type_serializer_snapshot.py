"""What is persisted about a serializer: its snapshot, never the serializer itself.

A snapshot has three duties (Flink's contract): to write and read itself under a version, to rebuild a serializer that
reads the *old* bytes, and to say whether a *new* serializer may take over. It is a point-in-time object: it must not
change when the serializer it was taken from goes on living.

Who judges: the old snapshot judges the new serializer. An old class cannot foresee its replacements, so where it
finds the new serializer incompatible, the new serializer's own snapshot is asked whether it adopts the old one
(Flink's FLIP-263 turned its interface round for this reason). `resolve_compatibility` runs both steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from snapshots.compatibility import TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.errors import SnapshotFormatError

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_defined: dict[str, type[TypeSerializerSnapshot[Any]]] = {}


def location_of(snapshot_class: type[object]) -> str:
    """Where a class was defined, as ``module:qualified.name``."""
    return f"{snapshot_class.__module__}:{snapshot_class.__qualname__}"


def defined_snapshot_classes() -> Mapping[str, type[TypeSerializerSnapshot[Any]]]:
    """The snapshot classes of this process by `location_of`, without those local to a function."""
    return _defined


class TypeSerializerSnapshot(ABC, Generic[T]):
    """A versioned, point-in-time description of a serializer's configuration and written schema.

    A subclass must be constructible without arguments; `read_snapshot` then fills it.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # A class that was defined can be found again by its name; nothing is ever imported for that.
        if "<locals>" not in cls.__qualname__:
            _defined[location_of(cls)] = cls

    @property
    @abstractmethod
    def current_version(self) -> int:
        """The version that `write_snapshot` writes; every earlier version must stay readable."""

    @abstractmethod
    def write_snapshot(self, out: DataOutputView) -> None:
        """Writes the content of the snapshot (the envelope with name and version is not its concern)."""

    @abstractmethod
    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        """Fills this snapshot from content written under ``read_version``.

        Raises `SnapshotFormatError` for a version or content it does not know.
        """

    def check_version(self, read_version: int) -> None:
        """Raises `SnapshotFormatError` unless content of that version can be read; `read_snapshot` begins with it."""
        if not 0 < read_version <= self.current_version:
            raise SnapshotFormatError(
                f"version {read_version} of {type(self).__name__} is not known here (newest known: "
                f"{self.current_version}): it was written by a newer release, or the bytes are damaged"
            )

    @abstractmethod
    def restore_serializer(self) -> TypeSerializer[T]:
        """A serializer that reads the bytes written when the snapshot was taken."""

    @abstractmethod
    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        """The verdict on ``new_serializer`` taking over the state that this snapshot describes."""

    def adopt_schema(self, old_snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSchemaCompatibility[T] | None:
        """Asked of the *new* serializer's snapshot when the old one refuses: the verdict, or None for no opinion."""
        return None

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[T] | None:
        """The snapshot under which the bytes of both mean what they did; None, as here, if there is none.

        ``other`` is of the same class and is written differently: the same serializer has learned other things in
        another subtask. To be implemented by the snapshot of a serializer that learns while it writes, or that has
        serializers inside; `snapshots.merging` is what asks.
        """
        return None


def resolve_compatibility(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[T]
) -> TypeSerializerSchemaCompatibility[T]:
    """The verdict on ``new_serializer`` over ``old_snapshot``: the old one judges, then the new one may adopt."""
    verdict = old_snapshot.resolve_schema_compatibility(new_serializer)
    if not verdict.is_incompatible:
        return verdict
    return new_serializer.snapshot_configuration().adopt_schema(old_snapshot) or verdict
