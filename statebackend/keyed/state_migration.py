"""The migration of one restored state: from the bytes it was stored in to those that its descriptor stores, and how an
entry is named that cannot be migrated.
"""

from __future__ import annotations

from typing import Any

from migration.schema_migration import SchemaMigration
from snapshots.value_text import shown
from statebackend.api.descriptors import USER_KEY_ROLE, StateDescriptor, storage_serializer
from statebackend.api.errors import StateMigrationException
from statebackend.keyed.key_context import has_namespaces
from statebackend.keyed.state_meta import StateMeta
from statebackend.ttl.migration_plan import storage_plan
from typeserializers.kernel.type_serializer import TypeSerializer


def state_migration(old: StateMeta, descriptor: StateDescriptor, now_ms: int) -> SchemaMigration[Any]:
    """Converts the values of the rows of a state, to be used where the verdict asks for a migration.

    ``descriptor`` is the one given to `KeyedStateBackend.create_state`, and ``now_ms`` the time of the backend's
    clock: if the state gets a time-to-live, all its entries count as accessed then.
    """
    old_serializers = {role: snapshot.restore_serializer() for role, snapshot in old.role_snapshots.items()}
    kind, serializers = descriptor.kind, descriptor.serializers
    return SchemaMigration(
        storage_serializer(kind, old_serializers),
        storage_serializer(kind, serializers),
        storage_plan(kind, old.role_snapshots, serializers, now_ms),
    )


def migration_failure(
    operator_uid: str,
    meta: StateMeta,
    key_serializer: TypeSerializer[Any],
    address: tuple[int, bytes, bytes],
    user_key: bytes | None,
    error: Exception,
) -> StateMigrationException:
    """What a backend raises for an entry that cannot be migrated, which it names as the user knows it.

    ``meta`` is what was restored, ``address`` is key group, key and namespace, and ``user_key`` that of a map's entry.
    The error is usually a `MigrationError` (`SchemaMigration.failure`), which says where inside the value, and why.
    """
    key_group, key, namespace = address
    where = f"key {_decoded(key_serializer, key)}"
    namespace_serializer = meta.namespace_snapshot.restore_serializer()
    if has_namespaces(namespace_serializer):
        where += f" in namespace {_decoded(namespace_serializer, namespace)}"
    if user_key is not None and USER_KEY_ROLE in meta.role_snapshots:
        user_key_serializer = meta.role_snapshots[USER_KEY_ROLE].restore_serializer()
        where += f", the entry of {_decoded(user_key_serializer, user_key)}"
    return StateMigrationException(
        f"operator {operator_uid!r}, state {meta.name!r}, {where} (key group {key_group}) cannot be migrated: {error}. "
        f"Nothing was changed: what it was restored from is as it was"
    )


def _decoded(serializer: TypeSerializer[Any], data: bytes) -> str:
    try:
        return shown(serializer.from_bytes(data))
    except Exception:
        return f"of the bytes {data.hex()}"
