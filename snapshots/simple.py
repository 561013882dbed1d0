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
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from snapshots.compatibility import FieldVerdict, Finding, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot

if TYPE_CHECKING:
    from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")


def names_apart(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> tuple[str, str]:
    """What to call the old and the new type in a finding: as people write them; if alike, with the serializers."""
    new_type = new_serializer.type_name
    if old_type != new_type:
        return old_type, new_type
    return f"{old_type} ({old_class})", f"{new_type} ({type(new_serializer).__name__})"


def another_serializer(old_type: str, old_class: str, new_serializer: TypeSerializer[Any]) -> Finding:
    """The finding that ``new_serializer`` stands where one of another class, ``old_class``, wrote the state."""
    old_name, new_name = names_apart(old_type, old_class, new_serializer)
    return Finding(
        path="",
        verdict=FieldVerdict.REFUSE,
        rule="serializer-class",
        reason=f"the state holds {old_name}, and {new_name} cannot take it over",
        fix=(
            f"Keep {old_name}; or convert the values: ConvertingSerializer(<the new serializer>, {{<the old one>: "
            f"function}}); or let the snapshot of the new one adopt the old one"
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

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        old_serializer = self.create_serializer()
        if type(new_serializer) is type(old_serializer):
            return TypeSerializerSchemaCompatibility.compatible_as_is()
        return TypeSerializerSchemaCompatibility.incompatible(
            another_serializer(old_serializer.type_name, type(old_serializer).__name__, new_serializer)
        )
