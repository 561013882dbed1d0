"""The tables of a subtask's local database: where the entries of each state are, and how sorted files get into them.

A database that already holds the wanted snapshot starts read-only, with few changes kept as an overlay, and a larger
change opens it for writing (`statebackend.state.rocksdb.read_only_database`). If opening shows that it is unusable, it
is rebuilt from the handles, and the overlay is applied on top. That is possible only before the disk has changed.

Nothing is written through the memtable. A file of changes is ingested into the state's column family *and* kept, as a
second link, for the checkpoint's store. A state is replaced as a whole in a fresh column family, so a failure leaves
nothing half-replaced.

Merging increments makes one sorted file from those of several epochs. For each key the last file decides. The files are
ingested in order into a temporary database; its live keys are those whose last change is a value. A key that is marked
as deleted in a file and is not live was deleted last. The merged file deletes it too, because an older file may still
have it, and marks it.
"""

from __future__ import annotations

import heapq
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Final

from statebackend.state.composite_key import DELETION_MARK
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.rocksdb.cached_state import Change
from statebackend.state.rocksdb.engine import ColumnFamily, RocksDBEngine, RocksDBError, SstWriter
from statebackend.state.rocksdb.file_chain import FileChain
from statebackend.state.rocksdb.local_directory import LocalStateDirectory, LocalVersion
from statebackend.state.rocksdb.priority_queue import QueueEnds
from statebackend.state.rocksdb.read_only_database import ReadOnlyDatabase
from statebackend.state.rocksdb.table import RocksDBTable, TableSharing
from statebackend.state.state_files import MAX_FILES
from statebackend.state.state_meta import StateSchema

_FIRST_KEY = b"\x00"


def marks_of(keys: Sequence[bytes], values: Sequence[bytes | None]) -> list[bytes]:
    """The marks for the deletions among changes. Marks sort after all changes."""
    return [DELETION_MARK + key for key, value in zip(keys, values, strict=True) if value is None]


def merge_increments(paths: Sequence[str], directory: str, target: str) -> SstWriter | None:
    """Merge increments, given in order, into one file; return None if nothing is left.

    Takes ownership of the files. ``directory`` is for the temporary database, on the same device. Memory does not grow
    with the files.
    """
    store = RocksDBEngine(os.path.join(directory, "merging"))
    try:
        family = store.column_family("increments")
        for path in paths:
            family.ingest(path)
        writer = SstWriter(target)
        deletions: Iterator[Change] = ((mark[len(DELETION_MARK) :], None) for mark in _last_marks(family))
        writer.write(heapq.merge(_alive(family), deletions, key=itemgetter(0)))
        writer.write((mark, b"") for mark in _last_marks(family))
    finally:
        store.close()
    if not writer.entry_count:
        return None
    writer.finish()
    return writer


def _alive(family: ColumnFamily) -> Iterator[Change]:
    return family.scan(_FIRST_KEY, DELETION_MARK)


def _last_marks(family: ColumnFamily) -> Iterator[bytes]:
    """The marks of keys whose last change is a deletion, in order."""
    return (mark for mark, _ in family.scan_prefix(DELETION_MARK) if _is_deleted(family, mark[len(DELETION_MARK) :]))


def _is_deleted(family: ColumnFamily, raw_key: bytes) -> bool:
    try:
        return family.get(raw_key) is None
    except Exception as error:
        family.reading_failed(error)


MAX_UNMERGED_FILES: Final = 64
"""A local database is deleted if RocksDB did not merge this many files of one state."""

MAX_SMALL_FILES: Final = 4 * MAX_FILES
"""It is also deleted if it has this many files more than its size explains. A restore makes `MAX_FILES`."""

FULL_FILE_BYTES: Final = 1 << 20
"""RocksDB merges only the files of level zero. A file whose keys sort after all others is put at the last level. New
timers in a subtask's only key group do this, so each epoch adds a file of a few rows there."""


class LocalDatabase:
    """The database in a subtask's local directory. Call `create` or `expect_version` first.

    ``version`` changes with every change of the database's content.
    """

    def __init__(
        self,
        directory: LocalStateDirectory,
        key_groups: KeyGroupRange,
        sharing: TableSharing,
        memory_budget_bytes: int,
    ) -> None:
        self.directory = directory
        self.key_groups = key_groups
        self.tables: dict[str, RocksDBTable] = {}
        self.version = 0
        self._sharing = sharing
        self._family_numbers = itertools.count()
        self._memory_budget_bytes = memory_budget_bytes
        self._process = os.getpid()
        self._read_only: ReadOnlyDatabase | None = None
        self._rebuild: Callable[[], None] = lambda: None
        self._unopenable: BaseException | None = None
        self._is_damaged = False
        self._changed_rows = 0
        self._engine: RocksDBEngine | None = None

    def create(self) -> None:
        """Start with an empty database."""
        self.directory.wipe()
        self._engine = self._open_empty()

    def expect_version(self, version: LocalVersion, rebuild: Callable[[], None]) -> None:
        """Use the database of the directory, which holds that version, read-only.

        If opening it for writing shows that it is unusable, each table gets an empty column family, and ``rebuild``
        fills them.
        """
        # Each killed attempt finds the version and leaves its files.
        self.directory.remove_files()
        self._rebuild = rebuild
        self._read_only = ReadOnlyDatabase(version, self._open_reader, self._opened_rows, self._note_damage)

    def _open_reader(self) -> RocksDBEngine:
        places = [table.place for table in self.tables.values()]
        return RocksDBEngine(self.directory.database_path, self._memory_budget_bytes, places)

    def _note_damage(self) -> None:
        # Otherwise each later attempt would read it and rebuild it again.
        self._is_damaged = True
        self.directory.begin_change()

    def _open_for_writing(self, read_only: ReadOnlyDatabase) -> None:
        # After the backend's close another one may have the lock, and nothing would close this database.
        self._sharing.check_open()
        self._check_process()
        if self._unopenable is not None:
            raise RocksDBError(
                f"the local database could not be opened at an earlier attempt: {self._unopenable}"
            ) from self._unopenable
        try:
            kept = read_only.end()
            is_fit = self._open_version({table.place for table in self.tables.values()})
            if not is_fit:
                # Files of changes may still wait for ingestion.
                self.directory.remove_database()
                self._engine = self._open_empty()
            for table in self.tables.values():
                place = table.place if is_fit else f"{next(self._family_numbers)}:{table.name}"
                table.move_to(self._opened().column_family(place), table.files)
            self._read_only = None
            if not is_fit:
                self._rebuild()
            self._is_damaged = False
            for name, rows in kept.items():
                if rows:
                    keys = sorted(rows)
                    self.tables[name].ingest(self._written(keys, [rows[key] for key in keys], ()).path)
        except BaseException as error:
            # A partly filled table must not be read.
            for table in self.tables.values():
                table.move_to(read_only.rows[table.name], table.files)
            self._read_only, self._unopenable = read_only, error
            raise

    def _open_empty(self) -> RocksDBEngine:
        """Open a new database after the old one was removed."""
        engine = RocksDBEngine(self.directory.database_path, self._memory_budget_bytes)
        try:
            # A column family that could not be removed would pass for the rows of a new table.
            for name in engine.column_family_names:
                engine.drop(name)
        except BaseException:
            engine.close()
            raise
        return engine

    def _open_version(self, wanted: set[str]) -> bool:
        """Open the database of the directory; return whether it is usable.

        It is unusable if it is damaged, lacks a wanted column family, holds marks, or consists of many files. A read
        looks into each file, and a database that is open only for short times may never merge them.
        """
        self.directory.begin_change()
        if self._is_damaged:
            return False
        try:
            engine = RocksDBEngine(self.directory.database_path, self._memory_budget_bytes)
        except RocksDBError:
            return False
        try:
            is_fit = _has_all_in_few_files(engine, wanted)
        except RocksDBError:
            # The first read of a damaged part raises an error.
            is_fit = False
        except BaseException:
            # Nothing else would close it, and it would keep the lock.
            engine.close()
            raise
        if not is_fit:
            engine.close()
            return False
        present = engine.column_family_names
        self._family_numbers = itertools.count(1 + max((int(name.partition(":")[0]) for name in present), default=-1))
        self._engine = engine
        return True

    @property
    def engine(self) -> RocksDBEngine:
        """The engine, open for writing. Raises `RocksDBError`, or the errors of a rebuild."""
        if self._read_only is not None:
            self._open_for_writing(self._read_only)
        return self._opened()

    @property
    def is_open(self) -> bool:
        """Whether the database has been opened for writing."""
        return self._engine is not None

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the process that owns the database."""
        return os.getpid() != self._process

    def add_table(self, schema: StateSchema) -> RocksDBTable:
        """Add an empty table."""
        self._change()
        name = schema.meta.name
        table = self.tables[name] = RocksDBTable(schema, self._sharing, self._new_column_family(name), FileChain())
        return table

    def adopt_table(self, schema: StateSchema, version: LocalVersion, files: FileChain) -> None:
        """Add a table whose rows the expected version of the database has."""
        assert self._read_only is not None
        name = schema.meta.name
        table = self.tables[name] = RocksDBTable(schema, self._sharing, self._read_only.rows[name], files)
        table.queue_ends = QueueEnds(
            version.lower_bounds.get(name, b""), version.heads.get(name), version.upper_bounds.get(name)
        )
        table.last_namespace = version.last_namespaces.get(name)

    def write_sorted(self, entries: Iterable[Change]) -> SstWriter | None:
        """Write entries to a new file, without other changes; None if there are no entries."""
        writer = SstWriter(self.directory.new_file(".sst"))
        writer.write(entries)
        if not writer.entry_count:
            return None
        writer.finish()
        return writer

    def ingest(self, table: RocksDBTable, entries: Iterable[Change]) -> int:
        """Add entries, given in key order, to the state and to the next snapshot; return their number."""
        written = self.write_sorted(entries)
        if written is None:
            return 0
        self._change()
        self._ingest_file(table.ingest, table.files, written)
        self._merge_pending(table.files)
        return written.entry_count

    def ingest_changes(self, table: RocksDBTable, keys: list[bytes], values: list[bytes | None]) -> None:
        """Add changes, at least one and in key order, to the state and to the next snapshot.

        If the next snapshot writes a base, no file is kept for it.
        """
        files, increment = table.files, None
        if not files.skips_changes:
            increment = self._written(keys, values, marks_of(keys, values))
        self._changed_rows += len(keys)
        if self._read_only is not None and self._read_only.keep(table.name, keys, values):
            self.version += 1
        elif increment is not None and None not in values:
            self._change()
            self._ingest_file(table.ingest, files, increment)
            increment = None
        else:
            # Marks are only for the increment. In the database they would never be overwritten or deleted.
            changes = self._written(keys, values, ())
            self._change()
            table.ingest(changes.path)
        if increment is not None:
            files.append(increment.path)
        self._merge_pending(files)

    def _written(self, keys: list[bytes], values: list[bytes | None], marks: Sequence[bytes]) -> SstWriter:
        writer = SstWriter(self.directory.new_file(".sst"))
        writer.put_all(keys, values)
        writer.put_all(marks, [b""] * len(marks))
        writer.finish()
        return writer

    def drop_marks(self, table: RocksDBTable) -> None:
        """Delete the marks of restored increments."""
        written = self.write_sorted((mark, None) for mark in table.marks())
        if written is not None:
            self._change()
            table.ingest(written.path)

    def replace(self, table: RocksDBTable, written: SstWriter | None) -> None:
        """Replace the content of a state by a file; on failure the old rows stay."""
        family, files = self._new_column_family(table.name), FileChain()
        if written is not None:
            try:
                self._ingest_file(family.ingest, files, written)
            except BaseException:
                self.engine.drop(family.name)
                raise
        self._change()
        old_place, old_files = table.place, table.files
        table.move_to(family, files)
        table.queue_ends, table.last_namespace = QueueEnds(), None
        old_files.discard()
        self.engine.drop(old_place)

    def close(self, snapshot_taken: str | None) -> None:
        """Close engine and directory; ``snapshot_taken`` is the state id of the snapshot that it holds exactly."""
        families = {name: table.place for name, table in self.tables.items()}
        ends = {name: table.queue_ends for name, table in self.tables.items()}
        bounds = {name: one.lower_bound for name, one in ends.items() if one.lower_bound}
        heads = {name: one.head for name, one in ends.items() if one.head is not None}
        upper_bounds = {name: one.upper_bound for name, one in ends.items() if one.upper_bound is not None}
        try:
            ended = {} if self._read_only is None else self._read_only.end()
            kept = {name: rows for name, rows in ended.items() if rows}
            if self._engine is not None:
                self._engine.close()
            if snapshot_taken is not None and self._unopenable is None and not self._is_damaged:
                tables = self.tables.items()
                namespaces = {name: one.last_namespace for name, one in tables if one.last_namespace is not None}
                self.directory.write_version(
                    LocalVersion(
                        snapshot_taken, families, bounds, heads, upper_bounds, namespaces, kept, self._changed_rows
                    )
                )
        finally:
            self.directory.close()

    def _ingest_file(self, ingest: Callable[[str], None], files: FileChain, written: SstWriter) -> None:
        # Ingestion moves the file into the database, so keep a second link for the upload.
        kept = self.directory.new_file(".sst")
        os.link(written.path, kept)
        ingest(written.path)
        files.append(kept)

    def _merge_pending(self, files: FileChain) -> None:
        """Merge pending files, so that a cache written out often in one epoch does not leave many."""
        while merged := files.mergeable():
            with self.directory.scratch() as directory:
                links = [os.path.join(directory, f"{file.number}.sst") for file in merged]
                for file, link in zip(merged, links, strict=True):
                    os.link(file.path, link)
                writer = merge_increments(links, directory, self.directory.new_file(".sst"))
            files.replace_last(merged, None if writer is None else writer.path)

    def _check_process(self) -> None:
        if self.is_inherited:
            raise RocksDBError(
                f"the database at {self.directory.database_path} belongs to process {self._process}; open it again here"
            )

    def _change(self) -> None:
        # A forked child must not change the version, which belongs to the parent.
        self._check_process()
        self.version += 1
        self.directory.begin_change()

    def _opened(self) -> RocksDBEngine:
        assert self._engine is not None
        return self._engine

    def _opened_rows(self, name: str) -> ColumnFamily:
        # Opening the database may move its tables to other column families.
        engine = self.engine
        return engine.column_family(self.tables[name].place)

    def _new_column_family(self, name: str) -> ColumnFamily:
        return self.engine.column_family(f"{next(self._family_numbers)}:{name}")


def _has_all_in_few_files(engine: RocksDBEngine, wanted: set[str]) -> bool:
    """Whether these column families exist, without marks and without too many files."""
    return wanted <= set(engine.column_family_names) and not any(
        _has_too_many_files(engine.column_family(name))
        or next(engine.column_family(name).scan_prefix(DELETION_MARK), None) is not None
        for name in wanted
    )


def _has_too_many_files(family: ColumnFamily) -> bool:
    counts = family.files_at_levels()
    return counts[0] > MAX_UNMERGED_FILES or sum(counts) > MAX_SMALL_FILES + family.size_bytes() // FULL_FILE_BYTES
