"""The migration of one restored state: from the bytes it was stored in to those that its descriptor stores."""

from __future__ import annotations

from typing import Any

from migration.schema_migration import SchemaMigration
from statebackend.descriptors import StateDescriptor, storage_serializer
from statebackend.state_meta import StateMeta
from statebackend.ttl.migration_source import migrated_storage_serializer


def state_migration(old: StateMeta, descriptor: StateDescriptor, now_ms: int) -> SchemaMigration[Any]:
    """Converts the values of the rows of a state, to be used where the verdict asks for a migration.

    ``descriptor`` is the one given to `KeyedStateBackend.create_state`, and ``now_ms`` the time of the backend's
    clock: if the state gets a time-to-live, all its entries count as accessed then.
    """
    old_serializers = {role: snapshot.restore_serializer() for role, snapshot in old.role_snapshots.items()}
    kind, serializers = descriptor.kind, descriptor.serializers
    return SchemaMigration(
        migrated_storage_serializer(kind, old_serializers, serializers, now_ms), storage_serializer(kind, serializers)
    )
