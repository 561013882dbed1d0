"""Two versions of one class. Each is defined in its own function, under the same name."""

from __future__ import annotations

from typing import Any

import typeserializers as ts
from migration import SchemaMigration
from snapshots import TypeSerializerSchemaCompatibility, resolve_compatibility, snapshot_from_bytes, snapshot_to_bytes
from statebackend.testing.upgrades import migration_between


def written(serializer: ts.TypeSerializer[Any]) -> Any:
    """The snapshot of a serializer after a round trip through bytes."""
    return snapshot_from_bytes(snapshot_to_bytes(serializer.snapshot_configuration()))


def compatibility_of(
    old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any]
) -> TypeSerializerSchemaCompatibility[Any]:
    """The compatibility result of ``new`` with the stored snapshot of ``old``."""
    return resolve_compatibility(written(old), new)


def rules(compatibility: TypeSerializerSchemaCompatibility[Any]) -> dict[str, str]:
    """The rule at each path. If a path has several rules, the last one."""
    return {issue.path: issue.rule for issue in compatibility.issues}


def migrated(old: ts.TypeSerializer[Any], new: ts.TypeSerializer[Any], value: Any) -> Any:
    """The migrated value. Both forms of the migration must return it."""
    migration: SchemaMigration[Any] = migration_between(written(old), new)
    data = old.to_bytes(value)
    result = migration.to_value(data)
    assert new.from_bytes(migration.to_bytes(data)) == result
    assert new.to_bytes(result) == migration.to_bytes(data)
    return result
