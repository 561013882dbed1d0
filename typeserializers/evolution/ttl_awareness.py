"""Turns time-to-live on or off for a state that already has values.

For plain snapshots, a value with a last access time and one without are *incompatible* types. A keyed backend can
rewrite every value, so it resolves through `ttl_aware`. If both or neither have a time-to-live, the ordinary result
applies. Otherwise the snapshots of the *values* decide: if they are compatible in any way, the result is *after
migration*. List state has the time in each element and map state in each value, so lists and maps are handled too.

Values that get a time-to-live count as accessed now. Values that lose it stay forever, even if they had expired.
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
    "", FieldCompatibility.MIGRATE, "ttl-disabled", "access times are dropped; expired values stay forever"
)


@register_snapshot("org.apache.flink.runtime.state.ttl.TtlAwareSerializerSnapshot")
class TtlAwareSerializerSnapshot(TypeSerializerSnapshot[T]):
    """A snapshot that allows turning time-to-live on and off.

    The format is Flink's, version 1: ``bool(has time-to-live) envelope(snapshot)``.
    """

    current_version = 1

    def __init__(self, original: TypeSerializerSnapshot[T] | None = None) -> None:
        self._original = original

    @property
    def original(self) -> TypeSerializerSnapshot[T]:
        """The wrapped snapshot."""
        if self._original is None:
            raise SnapshotFormatError("this snapshot is empty: read it, or create it from another snapshot")
        return self._original

    @property
    def is_ttl_enabled(self) -> bool:
        """Whether the old values carry the time of their last access."""
        return isinstance(self.original, TtlSerializerSnapshot)

    def write_snapshot(self, out: DataOutputView) -> None:
        out.write_boolean(self.is_ttl_enabled)
        write_versioned_snapshot(out, self.original)

    def read_snapshot(self, read_version: int, source: DataInputView) -> None:
        self.check_version(read_version)
        # The flag repeats the class of the snapshot after it.
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
    """Wraps a snapshot so that time-to-live may change in values, list elements and map values."""
    if isinstance(snapshot, TtlAwareSerializerSnapshot):
        return snapshot
    if isinstance(snapshot, ListSerializerSnapshot):
        return type(snapshot).around(*(ttl_aware_part(nested) for nested in snapshot.nested_snapshots))
    if isinstance(snapshot, MapSerializerSnapshot):
        key, value = snapshot.nested_snapshots
        return type(snapshot).around(key, ttl_aware_part(value))
    return TtlAwareSerializerSnapshot(snapshot)


def ttl_aware_part(snapshot: TypeSerializerSnapshot[Any]) -> TypeSerializerSnapshot[Any]:
    """Wraps the snapshot of a list element or map value."""
    return snapshot if isinstance(snapshot, TtlAwareSerializerSnapshot) else TtlAwareSerializerSnapshot(snapshot)


def resolve_ttl_aware_compatibility(
    old_snapshot: TypeSerializerSnapshot[Any], new_serializer: TypeSerializer[T]
) -> TypeSerializerSchemaCompatibility[T]:
    """Resolves compatibility for a keyed backend: like `resolve_compatibility`, but time-to-live may change."""
    return resolve_compatibility(ttl_aware(old_snapshot), new_serializer)
