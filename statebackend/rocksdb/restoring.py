"""How a local database comes to hold a snapshot, from the cheapest way to the dearest.

* The local database holds exactly the wanted snapshot: it is opened as it is.
* The handles were written by this backend: their files are linked or copied, and ingested in order.
* Canonical savepoints: their rows are written as sorted files, one for each of theirs.

When the key groups changed, or the files are in another store, the next snapshot writes a new base, so that a file in a
handle never holds a key outside the handle's range and never depends on a savepoint.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from statebackend.api.descriptors import StateKind
from statebackend.api.errors import StateRestoreError
from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import CanonicalBatch, read_canonical
from statebackend.keyed.backend_parameters import RestoredHandle
from statebackend.keyed.state_files import StoredFile, stored_files
from statebackend.keyed.state_meta import CANONICAL_BACKEND, KeyedStateMeta, StateMeta
from statebackend.rocksdb.cached_state import Change
from statebackend.rocksdb.composite_key import CHUNK_NUMBER, KEY_GROUP
from statebackend.rocksdb.file_chain import FileChain
from statebackend.rocksdb.local_database import LocalDatabase, StateTable
from statebackend.rocksdb.store import ColumnFamily, RocksDBStore

ROCKSDB_BACKEND: Final = "rocksdb"

MayReferTo = Callable[[RestoredHandle, str], bool]
"""`KeyedStateBackend.may_refer_to`."""

Importer = Callable[[LocalDatabase, MayReferTo, StateTable, RestoredHandle, StateMeta], None]


def open_or_restore(
    database: LocalDatabase,
    handles: tuple[RestoredHandle, ...],
    metas: list[KeyedStateMeta],
    merged: KeyedStateMeta | None,
    may_refer_to: MayReferTo,
) -> bool:
    """Fills the database with what the handles hold; returns whether it did so already.

    ``metas`` are the handles' meta data, ``merged`` is theirs as one; all handles are of `READABLE_BACKENDS`. Raises
    what the store raises for missing and damaged files.
    """
    if _open_local(database, handles, metas):
        return True
    database.create()
    for state in merged.states if merged is not None else ():
        database.add_table(state)
    for restored, meta in zip(handles, metas, strict=True):
        importer = _IMPORTERS[restored.handle.backend]
        for state in meta.states:
            importer(database, may_refer_to, database.tables[state.name], restored, state)
    return False


def _open_local(database: LocalDatabase, handles: tuple[RestoredHandle, ...], metas: list[KeyedStateMeta]) -> bool:
    version = database.directory.read_version()
    if version is None or len(handles) != 1 or handles[0].handle.backend != ROCKSDB_BACKEND:
        return False
    handle = handles[0].handle
    names = [state.name for state in metas[0].states]
    if (
        version.state_id != handle.state_id
        or KeyGroupRange(handle.key_group_start, handle.key_group_end) != database.key_groups
        or sorted(version.column_families) != sorted(names)
        or not database.open_version(version)
    ):
        return False
    for state in metas[0].states:
        database.adopt_table(state, version.column_families[state.name], FileChain(stored_files(handle, state)))
    return True


def _import_native(
    database: LocalDatabase, may_refer_to: MayReferTo, table: StateTable, restored: RestoredHandle, state: StateMeta
) -> None:
    handle, files = restored.handle, stored_files(restored.handle, state)
    if not (database.key_groups.start <= handle.key_group_start and handle.key_group_end <= database.key_groups.end):
        _import_own_range(database, table, restored, files)
        return
    for stored in files:
        path = database.directory.new_file(".sst")
        restored.file_system.download(stored.handle, path)
        table.column_family.ingest(path)
    database.drop_marks(table)
    # Files in another store, or of one of several subtasks, must not be referred to by our checkpoints.
    if may_refer_to(restored, ROCKSDB_BACKEND):
        table.files = FileChain(files)
    else:
        table.files.needs_base = True


def _import_own_range(
    database: LocalDatabase, table: StateTable, restored: RestoredHandle, files: list[StoredFile]
) -> None:
    """Takes over the rows of the subtask's own key groups alone: the others would stay with it for long."""
    with database.directory.scratch() as directory:
        whole = RocksDBStore(os.path.join(directory, "whole"))
        try:
            family = whole.column_family("whole")
            for number, stored in enumerate(files):
                path = os.path.join(directory, f"{number}.sst")
                restored.file_system.download(stored.handle, path)
                family.ingest(path)
            database.ingest(table, _rows_within(family, database.key_groups))
        finally:
            whole.close()
    table.files.needs_base = True


def _rows_within(family: ColumnFamily, key_groups: KeyGroupRange) -> Iterator[Change]:
    behind = KEY_GROUP.pack(key_groups.end + 1)
    return itertools.takewhile(lambda row: row[0] < behind, family.scan(KEY_GROUP.pack(key_groups.start)))


def _import_canonical(
    database: LocalDatabase, may_refer_to: MayReferTo, table: StateTable, restored: RestoredHandle, state: StateMeta
) -> None:
    for stored in stored_files(restored.handle, state):
        local = database.directory.new_file(".parquet")
        restored.file_system.download(stored.handle, local)
        database.ingest(table, _raw_entries(database, state, read_canonical(local, database.key_groups)))
        os.unlink(local)


def _raw_entries(database: LocalDatabase, state: StateMeta, batches: Iterable[CanonicalBatch]) -> Iterator[Change]:
    if state.kind is StateKind.PRIORITY_QUEUE:
        return _raw_elements(state, batches)
    return _raw_keyed_entries(database, state, batches)


def _raw_elements(state: StateMeta, batches: Iterable[CanonicalBatch]) -> Iterator[Change]:
    for batch in batches:
        for key_group, element, _, _, value in zip(*batch, strict=True):
            if value != b"":
                raise StateRestoreError(
                    f"state {state.name!r}: the element {element.hex()} in key group {key_group} has a value; the file "
                    f"is not that of a priority queue"
                )
            yield KEY_GROUP.pack(key_group) + element, value


def _raw_keyed_entries(
    database: LocalDatabase, state: StateMeta, batches: Iterable[CanonicalBatch]
) -> Iterator[Change]:
    for batch in batches:
        for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
            prefix = KEY_GROUP.pack(key_group) + key + namespace
            if user_key is not None:
                yield prefix + user_key, value
            elif state.kind is StateKind.LIST:
                yield prefix + CHUNK_NUMBER.pack(database.next_chunk_number()), value
            else:
                yield prefix, value


_IMPORTERS: Final[Mapping[str, Importer]] = {
    ROCKSDB_BACKEND: _import_native,
    CANONICAL_BACKEND: _import_canonical,
}

READABLE_BACKENDS: Final = frozenset(_IMPORTERS)
"""Whose files can be restored here."""
