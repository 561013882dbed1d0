"""The snapshot of a serializer that consists of other serializers, such as a list or a map.

`CompositeTypeSerializerSnapshot` stores the nested snapshots. A subclass defines how the outer serializer is split into
nested serializers and built from them. The format has two independent versions, its own and that of the subclass
(Flink's layout and numbers):

    content := i32(911108) i32(outer version) outer i32(1333245) i32(1) i32(count) count * envelope

Compatibility is resolved in this order:

1. Another outer serializer class, or another number of nested serializers: *incompatible*.
2. Otherwise the worst of the outer check and the nested results.
3. *With reconfigured serializer* comes only from nested serializers. The outer serializer is then rebuilt around the
   reconfigured and the unchanged nested ones. If any part needs migration, the result is *after migration*.

Flink 2 accepts a composite of another class if the nested serializers agree (a list for a set), and then misreads the
bytes. This class always checks the outer class.

`merge_snapshots` merges what several writers of one state learned. A POJO serializer, for example, meets subclasses
while it writes, and each subtask stores the subclasses that it met. Snapshots are merged only if the bytes of each one
keep their meaning under the merged snapshot. Merging neither checks compatibility nor migrates.
"""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from snapshots.compatibility import (
    AS_IS,
    AsIsPlan,
    CompatibilityIssue,
    CompatibilityKind,
    FieldCompatibility,
    PartsPlan,
    Plan,
    TypeSerializerSchemaCompatibility,
    another_serializer,
    worst_kind,
)
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import read_versioned_snapshot, snapshot_to_bytes, write_versioned_snapshot
from snapshots.errors import SnapshotFormatError, StateFormatError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility

if TYPE_CHECKING:
    from typing_extensions import Self

    from typeserializers.kernel.type_serializer import TypeSerializer


def merge_snapshots(
    one: TypeSerializerSnapshot[Any], other: TypeSerializerSnapshot[Any]
) -> TypeSerializerSnapshot[Any] | None:
    """Returns the snapshot that reads the bytes of both, or None if there is none.

    Snapshots with equal bytes are equal; others are merged by `TypeSerializerSnapshot.merged_with`.
    """
    if snapshot_to_bytes(one) == snapshot_to_bytes(other):
        return one
    if type(one) is not type(other):
        return None
    return one.merged_with(other)


def merge_all(
    some: tuple[TypeSerializerSnapshot[Any], ...], others: tuple[TypeSerializerSnapshot[Any], ...]
) -> tuple[TypeSerializerSnapshot[Any], ...] | None:
    """Merges nested snapshots pair by pair; None if their numbers differ or a pair cannot be merged."""
    if len(some) != len(others):
        return None
    merged = [merge_snapshots(one, other) for one, other in zip(some, others, strict=True)]
    found = tuple(snapshot for snapshot in merged if snapshot is not None)
    return found if len(found) == len(merged) else None


T = TypeVar("T")
S = TypeVar("S", bound="TypeSerializer[Any]")

OUTER_MAGIC: Final = 911108
NESTED_MAGIC: Final = 1333245
NESTED_VERSION: Final = 1


class CompositeTypeSerializerSnapshot(TypeSerializerSnapshot[T], Generic[T, S]):
    """Base class for snapshots of serializers with nested serializers; also for custom ones.

    A subclass defines `outer_serializer_class`, `nested_serializers` and `create_outer_serializer`. If the outer
    serializer has configuration of its own, it also defines the methods for the outer snapshot.
    """

    VERSION: ClassVar[int] = 3

    current_outer_version: ClassVar[int] = 1
    """The version that `write_outer_snapshot` writes."""

    def __init__(self, serializer: S | None = None) -> None:
        self._nested: tuple[TypeSerializerSnapshot[Any], ...] = ()
        if serializer is not None:
            self._nested = tuple(nested.snapshot_configuration() for nested in self.nested_serializers(serializer))
            self.take_outer_snapshot(serializer)

    @classmethod
    def around(cls, *nested: TypeSerializerSnapshot[Any]) -> Self:
        """Creates a snapshot with an empty outer configuration around nested snapshots."""
        snapshot = cls()
        snapshot._nested = nested
        return snapshot

    @property
    @abstractmethod
    def outer_serializer_class(self) -> type[S]:
        """The exact class of the serializer that this snapshot describes."""

    @abstractmethod
    def nested_serializers(self, outer: S) -> Sequence[TypeSerializer[Any]]:
        """Returns the nested serializers of ``outer``, always in the same order."""

    @abstractmethod
    def create_outer_serializer(self, nested: Sequence[TypeSerializer[Any]]) -> S:
        """Creates the outer serializer from the nested ones and the configuration that `read_outer_snapshot` read."""

    def nested_path(self, index: int) -> str:
        """Returns the path segment of a nested serializer in issues, such as ``[]`` for the elements of a list."""
        return f"[{index}]"

    def take_outer_snapshot(self, serializer: S) -> None:
        """Stores the outer configuration of the serializer in this snapshot; nothing by default."""

    def write_outer_snapshot(self, out: DataOutputView) -> None:
        """Writes the outer configuration; nothing by default."""

    def read_outer_snapshot(self, read_outer_version: int, source: DataInputView) -> None:
        """Reads the outer configuration written under that version; nothing by default."""

    def holds_distinct_values(self, index: int) -> bool:
        """Whether the values of a nested serializer are distinct, as the keys of a map are."""
        return False

    def resolve_outer_schema_compatibility(self, new_serializer: S) -> Sequence[CompatibilityIssue]:
        """Returns issues of the outer configuration: none if it is compatible, otherwise migrate, lossy or reject.

        A reconfigured outer serializer is not supported.
        """
        return ()

    @property
    def current_version(self) -> int:
        return self.VERSION

    @property
    def nested_snapshots(self) -> tuple[TypeSerializerSnapshot[Any], ...]:
        """The snapshots of the nested serializers."""
        return self._nested

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_int(OUTER_MAGIC)
        out.write_int(self.current_outer_version)
        self.write_outer_snapshot(out)
        out.write_int(NESTED_MAGIC)
        out.write_int(NESTED_VERSION)
        out.write_int(len(self._nested))
        for nested in self._nested:
            write_versioned_snapshot(out, nested)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        if read_version != self.VERSION:
            raise SnapshotFormatError(
                f"version {read_version} of a composite snapshot has no frame and cannot be read: rewrite it "
                f"with a release that writes version {self.VERSION}"
            )
        _expect(source, OUTER_MAGIC, "the outer snapshot")
        outer_version = source.read_int()
        if not 0 < outer_version <= self.current_outer_version:
            raise SnapshotFormatError(
                f"outer version {outer_version} of {type(self).__name__} is not supported "
                f"(newest supported: {self.current_outer_version}): a newer release wrote it, or the bytes are damaged"
            )
        self.read_outer_snapshot(outer_version, source)
        _expect(source, NESTED_MAGIC, "the nested snapshots")
        _expect(source, NESTED_VERSION, "the version of the nested snapshots")
        # An envelope takes at least a name length and a version.
        count = source.read_count(minimum_item_bytes=6)
        self._nested = tuple(read_versioned_snapshot(source) for _ in range(count))

    def restore_serializer(self) -> TypeSerializer[T]:
        nested = [snapshot.restore_serializer() for snapshot in self._nested]
        try:
            return self.create_outer_serializer(nested)
        except (IndexError, ValueError, TypeError) as error:
            raise SnapshotFormatError(
                f"{type(self).__name__} cannot create its serializer from {len(nested)} nested ones ({error}): "
                f"the bytes are damaged"
            ) from error

    def merged_with(self, other: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[T] | None:
        """Keeps the outer configuration and merges the nested snapshots."""
        assert isinstance(other, CompositeTypeSerializerSnapshot)
        nested = merge_all(self._nested, other._nested)
        if nested is None or self._outer_bytes() != other._outer_bytes():
            return None
        merged = copy.copy(self)
        merged._nested = nested
        return merged

    def _outer_bytes(self) -> bytes:
        out = DataOutputView()
        out.write_int(self.current_outer_version)
        self.write_outer_snapshot(out)
        return out.to_bytes()

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        return self.resolve_with(new_serializer, resolve_compatibility)

    def resolve_with(
        self,
        new_serializer: TypeSerializer[T],
        resolve_nested: Callable[
            [TypeSerializerSnapshot[Any], TypeSerializer[Any]], TypeSerializerSchemaCompatibility[Any]
        ],
    ) -> TypeSerializerSchemaCompatibility[T]:
        """Resolves compatibility with ``resolve_nested`` for the parts; a record allows more than the top level."""
        expected = self.outer_serializer_class
        if type(new_serializer) is not expected:
            return TypeSerializerSchemaCompatibility.incompatible(
                another_serializer(self.type_name_of_state(), expected.__name__, new_serializer)
            )
        outer: S = new_serializer
        nested = self.nested_serializers(outer)
        if len(nested) != len(self._nested):
            return TypeSerializerSchemaCompatibility.incompatible(
                CompatibilityIssue(
                    "",
                    FieldCompatibility.REJECT,
                    "nested-count",
                    f"the state has {len(self._nested)} nested serializers, and the new serializer has {len(nested)}",
                    "Keep the number, or use a record: fields of a record can be added and removed",
                )
            )
        issues = list(self.resolve_outer_schema_compatibility(outer))
        compatibilities = [resolve_nested(old, new) for old, new in zip(self._nested, nested, strict=True)]
        unchanged: list[str] = []
        for index, nested_compatibility in enumerate(compatibilities):
            path = self.nested_path(index)
            issues += [issue.below(path) for issue in nested_compatibility.issues]
            unchanged += [path + unchanged_path for unchanged_path in nested_compatibility.unchanged]
            if nested_compatibility.merges_values and self.holds_distinct_values(index):
                reason = "different keys may become equal; the migration stops if a state has two such keys"
                issues.append(
                    CompatibilityIssue(path, FieldCompatibility.MIGRATE, "equal-keys", reason, merges_values=True)
                )
        kind = worst_kind([issue.compatibility.kind for issue in issues] + [part.kind for part in compatibilities])
        plan: Plan | None = None
        if kind is not CompatibilityKind.INCOMPATIBLE:
            parts = tuple(part.plan for part in compatibilities)
            stays = kind is CompatibilityKind.AS_IS and all(isinstance(part, AsIsPlan) for part in parts)
            plan = AS_IS if stays else PartsPlan(parts)
        if kind is CompatibilityKind.WITH_RECONFIGURED_SERIALIZER:
            mixed = [
                part.reconfigured_serializer if part.is_with_reconfigured_serializer else new
                for part, new in zip(compatibilities, nested, strict=True)
            ]
            self_like = type(self)(outer)
            compatibility: TypeSerializerSchemaCompatibility[T] = (
                TypeSerializerSchemaCompatibility.compatible_with_reconfigured_serializer(
                    self_like.create_outer_serializer(mixed), issues, plan=plan
                )
            )
            return compatibility.with_unchanged(unchanged)
        return TypeSerializerSchemaCompatibility(kind, tuple(issues), unchanged=tuple(unchanged), plan=plan)

    def type_name_of_state(self) -> str:
        """Returns the type as people write it, or the serializer class if the serializer cannot be restored."""
        try:
            return self.restore_serializer().type_name
        except StateFormatError:
            return self.outer_serializer_class.__name__


def _expect(source: DataInputView, expected: int, what: str) -> None:
    position = source.position
    found = source.read_int()
    if found != expected:
        raise SnapshotFormatError(
            f"{what} must begin with {expected}, found {found} at byte {position}: the bytes are damaged, "
            f"or have another format"
        )
