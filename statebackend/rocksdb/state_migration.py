"""Bulk migration: all entries of a state are rewritten, in key order, into one new file and a new column family.

The old column family is dropped last. If it is interrupted, the local database has no version, and the next attempt
starts from the handles, which nothing has touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from migration.schema_migration import SchemaMigration
from statebackend.api.descriptors import StateDescriptor
from statebackend.api.errors import StateMigrationException
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.state_migration import state_migration
from statebackend.rocksdb.local_database import LocalDatabase, StateTable

PROGRESS_STEP: Final = 100_000


Failure = Callable[[bytes, Exception], StateMigrationException]
"""What to raise for the entry at a raw key."""


def migrate_state(
    database: LocalDatabase,
    parameters: KeyedStateBackendParameters,
    table: StateTable,
    descriptor: StateDescriptor,
    failure: Failure,
) -> int:
    """Rewrites a state for the serializers of its descriptor; returns the number of entries.

    Raises ``failure``, with the state as it was, for an entry that cannot be migrated.
    """
    migration = state_migration(table.meta, descriptor, parameters.clock())
    written = database.write_sorted(_migrated_entries(database, parameters, table, migration, failure))
    database.replace(table, written)
    return 0 if written is None else written.entry_count


def _migrated_entries(
    database: LocalDatabase,
    parameters: KeyedStateBackendParameters,
    table: StateTable,
    migration: SchemaMigration[Any],
    failure: Failure,
) -> Iterator[tuple[bytes, bytes]]:
    name, progress, transcode = table.meta.name, parameters.progress, migration.transcode
    count = 0
    for raw_key, value in database.scan(table):
        cause: Exception | None = None
        try:
            migrated, position = transcode(value, 0)
        except Exception as error:
            migrated, position, cause = b"", -1, error
        if position != len(value):
            raise failure(raw_key, migration.failure(value, cause)) from cause
        yield raw_key, migrated
        count += 1
        if count % PROGRESS_STEP == 0:
            progress(name, count)
    progress(name, count)
