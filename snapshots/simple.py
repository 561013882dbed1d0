"""The snapshot of a serializer that has no configuration: the class says everything.

Its content is empty, and there are only two verdicts: the very same serializer class is *as is*, anything else is
*incompatible*. A subclass names its serializer:

    @register_snapshot("my.project.PointSerializerSnapshot")
    class PointSerializerSnapshot(SimpleTypeSerializerSnapshot[Point]):
        def create_serializer(self) -> TypeSerializer[Point]:
            return PointSerializer()
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, TypeVar

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot

if TYPE_CHECKING:
    from typeserializers.type_serializer import TypeSerializer

T = TypeVar("T")


def another_serializer(old_name: str, new_name: str) -> Finding:
    """The finding that a serializer of another class stands where ``old_name`` wrote the state."""
    return Finding(
        path="",
        verdict=FieldVerdict.REFUSE,
        rule="serializer-class",
        reason=f"the state was written by {old_name}, and {new_name} cannot read it",
        fix=(
            f"Keep {old_name}; or convert the values: ConvertingSerializer(<the new serializer>, {{<the old one>: "
            f"function}}); or let the snapshot of {new_name} adopt the old one"
        ),
    )


class SimpleTypeSerializerSnapshot(TypeSerializerSnapshot[T]):
    """Same serializer class, or incompatible."""

    VERSION: ClassVar[int] = 3
    """Flink's current version of this format; versions 1 and 2 held names and are not written any more."""

    @abstractmethod
    def create_serializer(self) -> TypeSerializer[T]:
        """A new instance of the serializer."""

    @property
    def current_version(self) -> int:
        return self.VERSION

    def write_snapshot(self, out: DataOutputView) -> None:
        """There is nothing to write."""

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        if read_version == 2:
            # Version 2 repeated the name of the serializer class, which the envelope implies.
            source.read_utf()

    def restore_serializer(self) -> TypeSerializer[T]:
        return self.create_serializer()

    def resolve_schema_compatibility(
        self, new_serializer: TypeSerializer[T]
    ) -> TypeSerializerSchemaCompatibility[T]:
        old_class = type(self.create_serializer())
        new_class = type(new_serializer)
        if new_class is old_class:
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(old_class.__name__, new_class.__name__)
        )
