"""Migration on the heap: the rows of a state are decoded into the table of its new serializers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from statebackend.api.descriptors import StateDescriptor
from statebackend.canonical.canonical_entries import CanonicalBatch
from statebackend.heap.table import HeapTable, UnreadableRowError
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.state_meta import StateMeta
from statebackend.keyed.state_migration import migration_failure, state_migration
from typeserializers.kernel.type_serializer import TypeSerializer


def migrate_into(
    table: HeapTable,
    batches: Iterable[CanonicalBatch],
    old: StateMeta,
    descriptor: StateDescriptor,
    parameters: KeyedStateBackendParameters,
    key_serializer: TypeSerializer[Any],
) -> None:
    """Fills an empty table, which is that of the descriptor, with migrated rows.

    Raises `StateMigrationException`, naming the entry, for one that cannot be migrated; the table is then of no use.
    """
    migration = state_migration(old, descriptor, parameters.clock())
    load = table.form.load_migrated(migration)
    rows = 0
    try:
        for batch in batches:
            table.load_batch(batch, load)
            rows += batch.row_count
            parameters.progress(old.name, rows)
    except UnreadableRowError as error:
        key_group, key, namespace, user_key, value = error.row
        failure = error.cause if value is None else migration.failure(value, error.cause)
        address = key_group, key, namespace
        raise migration_failure(
            parameters.operator_uid, old, key_serializer, address, user_key, failure
        ) from error.cause
