"""Fills a local database with a snapshot, in the cheapest possible way.

1. The local database holds exactly the wanted snapshot: it is used unchanged, and opened when first needed.
2. The handles were written by this backend: their files are linked or copied, checked, and ingested in order.
3. The handles are canonical savepoints: their rows are written to one sorted file per savepoint file.

If other subtasks share a handle, only the subtask's own range is restored. Its files are downloaded once for all
subtasks of the operator on a host (`statebackend.state.rocksdb.local_directory`).

When the key groups changed, or the files are in another store, the next snapshot writes a new base. So a file of a
handle never holds a key outside the handle's range, and never depends on a savepoint.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import pyarrow as pa
from attrs import frozen

from statebackend.state.backend_parameters import RestoredHandle, RestoredStates
from statebackend.state.canonical import CanonicalBatch, read_canonical
from statebackend.state.composite_key import CHUNK_NUMBER, KEY_GROUP
from statebackend.state.errors import StateRestoreError
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.progress import StateProgress
from statebackend.state.rocksdb.cached_state import Change
from statebackend.state.rocksdb.engine import RocksDBEngine
from statebackend.state.rocksdb.file_chain import FileChain
from statebackend.state.rocksdb.local_database import LocalDatabase
from statebackend.state.rocksdb.sst_bounds import check_sst_file
from statebackend.state.rocksdb.table import RocksDBTable
from statebackend.state.state_files import StoredFile, stored_files
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import CANONICAL_BACKEND, StateMeta, StateSchema

ROCKSDB_BACKEND: Final = "rocksdb"


@frozen(eq=False)
class RestoreTarget:
    """A database to fill; the functions belong to its store.

    ``note_restore`` is called if a database that seemed to hold the snapshot must be restored after all.
    ``progress_of`` makes the progress of a state, from its name and the bytes of all its files.
    """

    database: LocalDatabase
    may_refer_to: Callable[[RestoredHandle], bool]
    next_chunk_number: Callable[[], int]
    note_restore: Callable[[], None]
    progress_of: Callable[[str, int], StateProgress]


Importer = Callable[[RestoreTarget, RocksDBTable, RestoredHandle, StateMeta, StateProgress], None]


def open_or_restore(target: RestoreTarget, restored: RestoredStates) -> bool:
    """Fill the database from the handles; return whether it already seems to hold the snapshot.

    Raises the file system's errors for missing and damaged files.
    """
    database = target.database
    if _expect_local(target, restored):
        # All subtasks of the operator have opened their state since the download.
        database.directory.downloads.discard()
        return True
    database.create()
    for state in restored.meta.states if restored.meta is not None else ():
        database.add_table(StateSchema(state.with_files(())))
    totals: Counter[str] = Counter()
    for handle, meta in restored.handles:
        for state in meta.states:
            totals[state.name] += sum(one.handle.size_bytes for one in stored_files(handle.handle, state))
    progress = {name: target.progress_of(name, total_bytes) for name, total_bytes in totals.items()}
    for handle, meta in restored.handles:
        importer = _IMPORTERS[handle.handle.backend]
        for state in meta.states:
            importer(target, database.tables[state.name], handle, state, progress[state.name])
    for one in progress.values():
        one.done()
    return False


def _expect_local(target: RestoreTarget, restored: RestoredStates) -> bool:
    database = target.database
    version = database.directory.read_version()
    # Files that the next snapshot must not refer to have to be rewritten.
    if version is None or len(restored.handles) != 1 or not target.may_refer_to(restored.handles[0][0]):
        return False
    handle, meta = restored.handles[0][0].handle, restored.handles[0][1]
    names = [state.name for state in meta.states]
    if version.state_id != handle.state_id or sorted(version.column_families) != sorted(names):
        return False

    def rebuild() -> None:
        target.note_restore()
        for state in meta.states:
            table = database.tables[state.name]
            files = table.files
            total_bytes = sum(one.handle.size_bytes for one in stored_files(handle, state))
            progress = target.progress_of(state.name, total_bytes)
            _import_native(target, table, restored.handles[0][0], state, progress)
            progress.done()
            # Snapshots frozen meanwhile use this chain, and it describes the table's content wherever the rows are.
            table.files = files

    database.expect_version(version, rebuild)
    for state in meta.states:
        files = FileChain(stored_files(handle, state))
        database.adopt_table(StateSchema(state.with_files(())), version, files)
    return True


def _import_native(
    target: RestoreTarget, table: RocksDBTable, restored: RestoredHandle, state: StateMeta, progress: StateProgress
) -> None:
    database = target.database
    files = stored_files(restored.handle, state)
    if not _is_whole(database, restored):
        _import_own_range(database, table, restored, files, progress)
        return
    for stored in files:
        path = database.directory.new_file(".sst")
        restored.file_system.download(stored.handle, path)
        check_sst_file(path)
        table.ingest(path)
        progress.add(size_bytes=stored.handle.size_bytes)
    database.drop_marks(table)
    # Our checkpoints must not refer to files in another store, or to files of one of several subtasks.
    if target.may_refer_to(restored):
        table.files = FileChain(files)
    else:
        table.files.needs_base = True


def _is_whole(database: LocalDatabase, restored: RestoredHandle) -> bool:
    """Whether the subtask owns all key groups of a handle."""
    held = restored.handle
    return database.key_groups.contains_range(KeyGroupRange(held.key_group_start, held.key_group_end))


def _import_own_range(
    database: LocalDatabase,
    table: RocksDBTable,
    restored: RestoredHandle,
    files: list[StoredFile],
    progress: StateProgress,
) -> None:
    """Restore only the rows of the subtask's own key groups; other rows would never be deleted."""
    with database.directory.scratch() as directory:
        whole = RocksDBEngine(os.path.join(directory, "whole"))
        try:
            family = whole.column_family("whole")
            for number, stored in enumerate(files):
                path = os.path.join(directory, f"{number}.sst")
                database.directory.downloads.download(restored.file_system, stored.handle, path)
                check_sst_file(path)
                family.ingest(path)
                progress.add(size_bytes=stored.handle.size_bytes)
            start, end = (KEY_GROUP.pack(one) for one in (database.key_groups.start, database.key_groups.end + 1))
            database.ingest(table, family.scan(start, end))
        finally:
            whole.close()
    table.files.needs_base = True


def _import_canonical(
    target: RestoreTarget, table: RocksDBTable, restored: RestoredHandle, state: StateMeta, progress: StateProgress
) -> None:
    database = target.database
    raw_entries = _raw_elements if state.kind is PRIORITY_QUEUE else _raw_keyed_entries
    for stored in stored_files(restored.handle, state):
        local = database.directory.new_file(".parquet")
        if _is_whole(database, restored):
            restored.file_system.download(stored.handle, local)
        else:
            database.directory.downloads.download(restored.file_system, stored.handle, local)
        database.ingest(
            table, raw_entries(target, state, _counted(read_canonical(local, database.key_groups), progress))
        )
        progress.add(size_bytes=stored.handle.size_bytes)
        os.unlink(local)
        # Otherwise Arrow keeps freed memory, as much as several of the largest values, for the life of the process.
        pa.default_memory_pool().release_unused()


def _counted(batches: Iterable[CanonicalBatch], progress: StateProgress) -> Iterator[CanonicalBatch]:
    for batch in batches:
        yield batch
        progress.add(batch.row_count)


def _raw_elements(target: RestoreTarget, state: StateMeta, batches: Iterable[CanonicalBatch]) -> Iterator[Change]:
    for batch in batches:
        for key_group, element, _, _, value in zip(*batch, strict=True):
            if value != b"":
                raise StateRestoreError(
                    f"state {state.name!r}: the element {element.hex()} in key group {key_group} has a value; the file "
                    f"is not that of a priority queue"
                )
            yield KEY_GROUP.pack(key_group) + element, value


def _raw_keyed_entries(target: RestoreTarget, state: StateMeta, batches: Iterable[CanonicalBatch]) -> Iterator[Change]:
    is_list = state.form is TableForm.LIST
    for batch in batches:
        for key_group, key, namespace, user_key, value in zip(*batch, strict=True):
            prefix = KEY_GROUP.pack(key_group) + key + namespace
            if user_key is not None:
                yield prefix + user_key, value
            elif is_list:
                yield prefix + CHUNK_NUMBER.pack(target.next_chunk_number()), value
            else:
                yield prefix, value


_IMPORTERS: Final[Mapping[str, Importer]] = {
    ROCKSDB_BACKEND: _import_native,
    CANONICAL_BACKEND: _import_canonical,
}
