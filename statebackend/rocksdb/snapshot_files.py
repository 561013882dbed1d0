"""The files that a snapshot adds to the store: increments as they were ingested, bases, and merged increments."""

from __future__ import annotations

import os
import tempfile

from statebackend.keyed_state_backend import KeyedStateBackendParameters
from statebackend.rocksdb.increments import merge_increments
from statebackend.rocksdb.local_database import LocalDatabase, StateTable, discard_pending
from statebackend.rocksdb.store import SstWriter
from statebackend.state_files import StateFiles, StoredFile
from statebackend.ttl.row_filter import RowFilter, kept_rows


def store_table(
    database: LocalDatabase,
    parameters: KeyedStateBackendParameters,
    table: StateTable,
    stem: str,
    state_id: str,
    row_filter: RowFilter | None,
) -> int:
    """Brings everything of a state into the store, merging files where there are too many; returns bytes written.

    A file that holds the whole state has only what ``row_filter`` leaves of it.
    """
    if table.files.needs_base:
        _write_base(database, table, row_filter)
    elif table.files.should_merge:
        # The state moves into a fresh column family that consists of one file, which becomes the new base.
        database.replace(table, database.write_sorted(kept_rows(row_filter, database.scan(table))))
    written = _merge_increments(database, parameters, table.files, stem, state_id)
    return written + _upload(parameters, table.files, stem, state_id)


def _write_base(database: LocalDatabase, table: StateTable, row_filter: RowFilter | None) -> None:
    """Writes the state whole, for the snapshot only: the database has it already."""
    discard_pending(table.files)
    path = database.directory.new_file(".sst")
    writer = SstWriter(path)
    writer.write(kept_rows(row_filter, database.scan(table)))
    table.files = StateFiles()
    if writer.entry_count:
        writer.finish()
        table.files.pending.append(path)


def _merge_increments(
    database: LocalDatabase, parameters: KeyedStateBackendParameters, files: StateFiles, stem: str, state_id: str
) -> int:
    """Makes one file of many small increments, if there are too many files; returns the bytes it uploaded.

    The database has their content already: only the checkpoints' files change.
    """
    places = files.increments_to_merge()
    if places is None:
        return 0
    with tempfile.TemporaryDirectory(dir=database.directory.path) as directory:
        paths = []
        for number, stored in enumerate(files.stored[places.start : places.stop]):
            paths.append(os.path.join(directory, f"{number}.sst"))
            parameters.file_system.download(stored.handle, paths[-1])
        writer = merge_increments(paths, directory, database.directory.new_file(".sst"))
    if writer is None:
        files.replace(places, None)
        return 0
    handle = parameters.file_system.upload(writer.path, f"{parameters.file_prefix}-{stem}-merged.sst")
    os.unlink(writer.path)
    files.replace(places, StoredFile(handle, state_id))
    return handle.size_bytes


def _upload(parameters: KeyedStateBackendParameters, files: StateFiles, stem: str, state_id: str) -> int:
    written = 0
    for number, path in enumerate(files.pending):
        handle = parameters.file_system.upload(path, f"{parameters.file_prefix}-{stem}-{number}.sst")
        os.unlink(path)
        written += handle.size_bytes
        files.stored.append(StoredFile(handle, state_id))
    files.pending = []
    return written
