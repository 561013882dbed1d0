"""The tables of a subtask's local database: where the entries of each state are, and how sorted files get into them.

Nothing is ever written through the memtable. A file of changes is *both* ingested into the state's column family *and*
kept, under a second link, for the checkpoint's store. A state is replaced as a whole by moving it into a fresh column
family, so that nothing is half-replaced when something fails.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Final

from attrs import define, field

from statebackend.api.key_groups import KeyGroupRange
from statebackend.keyed.state_meta import StateMeta
from statebackend.rocksdb.cached_state import Change, WriteBackCache
from statebackend.rocksdb.composite_key import DELETION_MARK, KEY_GROUP
from statebackend.rocksdb.file_chain import FileChain
from statebackend.rocksdb.increments import merge_increments, with_marks
from statebackend.rocksdb.local_directory import LocalStateDirectory, LocalVersion
from statebackend.rocksdb.store import FILES_AT_LEVEL_ZERO, ColumnFamily, RocksDBError, RocksDBStore, Scan, SstWriter
from typeserializers.kernel.type_serializer import TypeSerializer

MAX_LOCAL_FILES: Final = 64
"""Files of one state, beyond those that RocksDB has merged, with which a local database is thrown away."""


@define(eq=False)
class StateTable:
    """One state: where its entries are, what its serializers were, its handle if registered, and its files.

    ``serializers`` are those that it was registered with, by role and "namespace". ``lower_bound`` are bytes below
    which a priority queue has no element.
    """

    meta: StateMeta
    column_family: ColumnFamily
    files: FileChain = field(factory=FileChain)
    state: WriteBackCache | None = None
    lower_bound: bytes = b""
    serializers: Mapping[str, TypeSerializer[Any]] = field(factory=dict)

    def meta_now(self) -> StateMeta:
        """What its serializers are now, after all that they have written."""
        return self.meta.as_written_by(self.serializers) if self.serializers else self.meta


class LocalDatabase:
    """The database in a subtask's local directory; without a store until `create` or `open_version`.

    ``version`` is another number after every change of what the database holds.
    """

    def __init__(
        self,
        directory: LocalStateDirectory,
        key_groups: KeyGroupRange,
        check_open: Callable[[], None],
        memory_budget_bytes: int,
    ) -> None:
        self.directory = directory
        self.key_groups = key_groups
        self.tables: dict[str, StateTable] = {}
        self.sequence = 0
        self.version = 0
        self._family_numbers = itertools.count()
        self._check_open = check_open
        self._memory_budget_bytes = memory_budget_bytes
        self._lower_bounds: Mapping[str, bytes] = {}
        self._store: RocksDBStore | None = None

    def create(self) -> None:
        """Begins with an empty database."""
        self.directory.wipe()
        self._store = RocksDBStore(self.directory.database_path, self._memory_budget_bytes)

    def open_version(self, version: LocalVersion) -> bool:
        """Opens the database that the directory holds, if it is fit for use.

        It is not if it is damaged, lacks a column family of that version, holds marks, or consists of many files: each
        is looked into at every read, and a database that is open for short times only may never get to merging them.
        """
        self.directory.begin_change()
        try:
            store = RocksDBStore(self.directory.database_path, self._memory_budget_bytes)
        except RocksDBError:
            return False
        present = set(store.column_family_names)
        wanted = set(version.column_families.values())
        if not wanted <= present or any(
            store.column_family(name).property_value(FILES_AT_LEVEL_ZERO) > MAX_LOCAL_FILES
            or next(store.column_family(name).scan_prefix(DELETION_MARK), None) is not None
            for name in wanted
        ):
            store.close()
            return False
        self._family_numbers = itertools.count(1 + max((_family_number(name) for name in present), default=-1))
        self._lower_bounds = version.lower_bounds
        self._store = store
        return True

    @property
    def store(self) -> RocksDBStore:
        """The open store."""
        assert self._store is not None
        return self._store

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the one that opened the store."""
        return self._store is not None and self._store.is_inherited

    def add_table(self, meta: StateMeta) -> StateTable:
        """An empty table."""
        self._change()
        table = self.tables[meta.name] = StateTable(meta, self._new_column_family(meta.name))
        return table

    def adopt_table(self, meta: StateMeta, family_name: str, files: FileChain) -> None:
        """A table whose column family exists."""
        table = self.tables[meta.name] = StateTable(meta, self.store.column_family(family_name), files)
        table.lower_bound = self._lower_bounds.get(meta.name, b"")

    def next_chunk_number(self) -> int:
        """The number of the next list chunk; it only grows, across snapshots too."""
        number = self.sequence
        self.sequence += 1
        return number

    def scan(self, table: StateTable) -> Generator[tuple[bytes, bytes], None, None]:
        """All entries that a state has at the time of the call, in key order."""
        return self._scan(table.column_family.scan(KEY_GROUP.pack(self.key_groups.start)))

    def _scan(self, rows: Scan) -> Generator[tuple[bytes, bytes], None, None]:
        end = self.key_groups.end
        try:
            for raw_key, value in rows:
                if raw_key[0] << 8 | raw_key[1] > end:
                    return
                yield raw_key, value
        finally:
            rows.close()
        # A scan also ends when the store is closed; what was read of it must not pass for the whole.
        self._check_open()

    def write_sorted(self, entries: Iterable[Change]) -> SstWriter | None:
        """Writes entries to a file of their own, changing nothing else; None if there are none."""
        writer = SstWriter(self.directory.new_file(".sst"))
        writer.write(entries)
        if not writer.entry_count:
            return None
        writer.finish()
        return writer

    def ingest(self, table: StateTable, entries: Iterable[Change]) -> int:
        """Makes entries, given in key order, part of the state and of the next snapshot; returns their number."""
        written = self.write_sorted(entries)
        if written is None:
            return 0
        self._take_in(table, written)
        return written.entry_count

    def ingest_changes(self, table: StateTable, keys: list[bytes], values: list[bytes | None]) -> None:
        """Makes changes, at least one and in key order, part of the state and of the next snapshot."""
        if None in values:
            # Marks are for the increment alone: in the database they would never be overwritten, and stay for ever.
            changes = list(zip(keys, values, strict=True))
            kept, written = self.write_sorted(with_marks(changes)), self.write_sorted(changes)
            assert kept is not None
            assert written is not None
            self._change()
            table.column_family.ingest(written.path)
            table.files.append(kept.path)
            self._merge_pending(table.files)
            return
        writer = SstWriter(self.directory.new_file(".sst"))
        writer.put_all(keys, values)
        writer.finish()
        self._take_in(table, writer)

    def drop_marks(self, table: StateTable) -> None:
        """Deletes the marks that restored increments have brought along."""
        marks = table.column_family.scan_prefix(DELETION_MARK)
        written = self.write_sorted((mark, None) for mark, _ in marks)
        if written is not None:
            self._change()
            table.column_family.ingest(written.path)

    def replace(self, table: StateTable, written: SstWriter | None) -> None:
        """Makes a file the whole content of a state, whose old column family goes; if that fails it is as it was."""
        family, files = self._new_column_family(table.meta.name), FileChain()
        if written is not None:
            try:
                self._ingest_file(family, files, written)
            except BaseException:
                self.store.drop(family.name)
                raise
        self._change()
        old_family, table.column_family = table.column_family, family
        old_files, table.files = table.files, files
        if table.state is not None:
            table.state.column_family = family
        old_files.discard()
        self.store.drop(old_family.name)

    def close(self, snapshot_taken: str | None) -> None:
        """Closes the store and the directory, which holds exactly the snapshot of that state id, if one is given."""
        families = {name: table.column_family.name for name, table in self.tables.items()}
        bounds = {name: table.lower_bound for name, table in self.tables.items() if table.lower_bound}
        try:
            if self._store is not None:
                self._store.close()
            if snapshot_taken is not None:
                self.directory.write_version(LocalVersion(snapshot_taken, families, bounds))
        finally:
            self.directory.close()

    def _take_in(self, table: StateTable, written: SstWriter) -> None:
        self._change()
        self._ingest_file(table.column_family, table.files, written)
        self._merge_pending(table.files)

    def _ingest_file(self, family: ColumnFamily, files: FileChain, written: SstWriter) -> None:
        # The database takes the file as its own, so a second link is kept for the upload.
        kept = self.directory.new_file(".sst")
        os.link(written.path, kept)
        family.ingest(written.path)
        files.append(kept)

    def _merge_pending(self, files: FileChain) -> None:
        """Keeps the number of pending files small when a cache is written out again and again in one epoch."""
        while merged := files.mergeable():
            with self.directory.scratch() as directory:
                links = [os.path.join(directory, f"{file.number}.sst") for file in merged]
                for file, link in zip(merged, links, strict=True):
                    os.link(file.path, link)
                writer = merge_increments(links, directory, self.directory.new_file(".sst"))
            files.replace_last(merged, None if writer is None else writer.path)

    def _change(self) -> None:
        self.version += 1
        self.directory.begin_change()

    def _new_column_family(self, name: str) -> ColumnFamily:
        return self.store.column_family(f"{next(self._family_numbers)}:{name}")


def _family_number(name: str) -> int:
    return int(name.partition(":")[0])
