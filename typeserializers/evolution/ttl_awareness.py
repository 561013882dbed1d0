"""Turning time-to-live on or off for a state that already has values.

To the snapshots alone, a value with its last access and one without are different types, and *incompatible*. A keyed
backend may do better, because it can rewrite every value: it looks at an old snapshot through `ttl_aware`, under which
both with or both without is the ordinary compatibility result, and otherwise the *values'* snapshots decide: if they
are compatible in any way, the compatibility result is *after migration*. Lists and maps are looked into, because list
state has the access time in each element and map state in each value. `ttl_migration` is the conversion that such a
compatibility result asks for.

Values that get a time-to-live count as accessed now; values that lose it stay for good, even if they had expired.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

from snapshots.compatibility import CompatibilityIssue, FieldCompatibility, TypeSerializerSchemaCompatibility
from snapshots.data_views import DataInputView, DataOutputView
from snapshots.envelope import read_versioned_snapshot, register_snapshot, write_versioned_snapshot
from snapshots.errors import SnapshotFormatError
from snapshots.type_serializer_snapshot import TypeSerializerSnapshot, resolve_compatibility
from typeserializers.containers.lists import ListSerializerSnapshot
from typeserializers.containers.maps import MapSerializerSnapshot
from typeserializers.containers.ttl import TtlSerializer, TtlSerializerSnapshot
from typeserializers.evolution.plans import TimestampPlan, TimestampRemovalPlan
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

TTL_ENABLED: Final = CompatibilityIssue(
    "", FieldCompatibility.MIGRATE, "ttl-enabled", "every value counts as accessed when it migrates"
)
TTL_DISABLED: Final = CompatibilityIssue(
    "", FieldCompatibility.MIGRATE, "ttl-disabled", "access times go; expired values stay for good"
)


@register_snapshot("org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot")
class TtlAwareSerializerSnapshot(TypeSerializerSnapshot[T]):
    """A snapshot whose compatibility result lets time-to-live be turned on and off.

    The format is Flink's, version 1: ``bool(has time-to-live) envelope(snapshot)``.
    """

    def __init__(self, original: TypeSerializerSnapshot[T] | None = None) -> None:
        self._original = original

    @property
    def original(self) -> TypeSerializerSnapshot[T]:
        """The snapshot that this one looks at."""
        if self._original is None:
            raise SnapshotFormatError("this snapshot was neither read nor made from another one")
        return self._original

    @property
    def is_ttl_enabled(self) -> bool:
        """Whether the old values carry the time of their last access."""
        return isinstance(self.original, TtlSerializerSnapshot)

    @property
    def current_version(self) -> int:
        return 1

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_boolean(self.is_ttl_enabled)
        write_versioned_snapshot(out, self.original)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        # The flag repeats what the snapshot behind it says.
        source.read_boolean()
        self._original = read_versioned_snapshot(source)

    def restore_serializer(self) -> TypeSerializer[T]:
        return self.original.restore_serializer()

    def resolve_schema_compatibility(self, new_serializer: TypeSerializer[T]) -> TypeSerializerSchemaCompatibility[T]:
        new: TypeSerializer[Any] = new_serializer
        old: TypeSerializerSnapshot[Any] = self.original
        becomes_enabled = isinstance(new, TtlSerializer)
        if becomes_enabled == self.is_ttl_enabled:
            return resolve_compatibility(old, new)
        if isinstance(new, TtlSerializer):
            compatibility = resolve_compatibility(old, new.value_serializer)
        else:
            assert isinstance(old, TtlSerializerSnapshot)
            compatibility = resolve_compatibility(old.value_snapshot, new)
        if compatibility.is_incompatible:
            return TypeSerializerSchemaCompatibility.incompatible(*compatibility.issues)
        change = TTL_ENABLED if becomes_enabled else TTL_DISABLED
        plan = TimestampPlan(compatibility.plan) if becomes_enabled else TimestampRemovalPlan(compatibility.plan)
        return TypeSerializerSchemaCompatibility.compatible_after_migration([change, *compatibility.issues], plan=plan)


def ttl_aware(snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
    """The snapshot as a keyed backend looks at it: aware of time-to-live in values, list elements and map values."""
    if isinstance(snapshot, TtlAwareSerializerSnapshot):
        return snapshot
    if isinstance(snapshot, ListSerializerSnapshot):
        return type(snapshot).around(*(ttl_aware_part(nested) for nested in snapshot.nested_snapshots))
    if isinstance(snapshot, MapSerializerSnapshot):
        key, value = snapshot.nested_snapshots
        return type(snapshot).around(key, ttl_aware_part(value))
    return TtlAwareSerializerSnapshot(snapshot)


def ttl_aware_part(snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
    """The snapshot of an element or a map's value, aware of time-to-live."""
    return snapshot if isinstance(snapshot, TtlAwareSerializerSnapshot) else TtlAwareSerializerSnapshot(snapshot)


def resolve_ttl_aware_compatibility(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[T]
) -> TypeSerializerSchemaCompatibility[T]:
    """The compatibility result of a keyed backend: as `resolve_compatibility`, but time-to-live may be turned on and
    off.
    """
    return resolve_compatibility(ttl_aware(old_snapshot), new_serializer)
