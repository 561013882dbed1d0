"""A local database that is not open for writing: rows are read from the disk, and few changes are kept as an overlay.

Opening RocksDB for writing takes several milliseconds and several disk syncs; opening it read-only takes less than one.
An epoch of few records reads and changes a row or two. So a table whose rows are already on disk starts with
`ReadOnlyRows` instead of its column family. A row is looked up first in the overlay, which the directory's version
hands from epoch to epoch, and then on disk, where nothing changes.

Any other request, or too many changes, opens the database for writing: the overlay is moved into it, and all later
access goes to the open database.

The overlay is bounded in rows and bytes, because every epoch reads and writes it. If the last epoch changed more rows
than may be kept, the first look-up opens the database for writing at once.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn

from statebackend.state.rocksdb.cached_state import UNKNOWN
from statebackend.state.rocksdb.engine import ColumnFamily, RocksDBEngine, RocksDBError, Scan
from statebackend.state.rocksdb.local_directory import LocalVersion

MAX_KEPT_ROWS: Final = 256
MAX_KEPT_BYTES: Final = 32 << 10

Rows = dict[bytes, "bytes | None"]
"""Raw keys with their values; None means deleted, whatever the database holds."""


class ReadOnlyDatabase:
    """A read-only database with an overlay of few changes.

    ``open_reader`` opens the database to read the column families of the version. ``opened`` opens it for writing, and
    returns the column family of a state. ``found_damaged`` is called after a row could not be read: the database is
    then rebuilt from the checkpoint when it is opened.
    """

    def __init__(
        self,
        version: LocalVersion,
        open_reader: Callable[[], RocksDBEngine],
        opened: Callable[[str], ColumnFamily],
        found_damaged: Callable[[], None],
    ) -> None:
        places = version.column_families
        self.kept: dict[str, Rows] = {name: dict(version.kept.get(name, {})) for name in places}
        """The overlay: changes that are not in the database, by state name."""
        self.rows = {name: ReadOnlyRows(place, self, name) for name, place in places.items()}
        self.opened = opened
        self.found_damaged = found_damaged
        self._open_reader = open_reader
        self._reader: RocksDBEngine | None = None
        self.is_open = True
        """Whether rows are still read from the disk."""
        self._expects_many = version.changed_rows > MAX_KEPT_ROWS
        _open_databases.add(self)

    def keep(self, name: str, keys: list[bytes], values: list[bytes | None]) -> bool:
        """Keep changes of a state in the overlay, if there is room; return whether there was."""
        if not self.is_open or len(keys) > MAX_KEPT_ROWS:
            return False
        after = self.kept[name] | dict(zip(keys, values, strict=True))
        others = [rows for other, rows in self.kept.items() if other != name]
        if sum(map(len, others)) + len(after) > MAX_KEPT_ROWS:
            return False
        if sum(map(_size_bytes, others)) + _size_bytes(after) > MAX_KEPT_BYTES:
            return False
        self.kept[name].update(after)
        return True

    def stored_rows(self, name: str) -> ColumnFamily:
        """The rows of a state on disk, or those of the open database if the disk cannot be read separately."""
        if not self.is_open or self._expects_many:
            return self.opened(name)
        if self._reader is None:
            try:
                self._reader = self._open_reader()
            except RocksDBError:
                # Opening it for writing shows whether it is usable or must be rebuilt.
                return self.opened(name)
        return self._reader.column_family(self.rows[name].name)

    def end(self) -> dict[str, Rows]:
        """End the read-only phase; return the overlay, which the caller then owns."""
        kept = self.kept
        self.disown()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()
        return kept

    def disown(self) -> None:
        """Send all look-ups to the open database; the reader stays open."""
        self.is_open = False
        self.kept = {name: {} for name in self.rows}
        for rows in self.rows.values():
            rows.forget()


_open_databases: weakref.WeakSet[ReadOnlyDatabase] = weakref.WeakSet()


def _disown_all() -> None:
    # A child must not read the overlay, and no check happens before the disk is needed.
    for database in _open_databases:
        database.disown()


os.register_at_fork(after_in_child=_disown_all)


class ReadOnlyRows:
    """The rows of one state, with the methods of `ColumnFamily`. A call that opens the database raises its errors."""

    __slots__ = ("_database", "_kept", "_state_name", "_stored", "name")

    def __init__(self, place: str, database: ReadOnlyDatabase, state_name: str) -> None:
        self.name = place
        self._database = database
        self._state_name = state_name
        self._kept = database.kept[state_name]
        self._stored: ColumnFamily | None = None

    def get(self, raw_key: bytes) -> Any:
        """The value of a key, or None."""
        value = self._kept.get(raw_key, UNKNOWN)
        if value is not UNKNOWN:
            return value
        stored = self._stored
        if stored is None:
            stored = self._stored_rows()
        try:
            return stored.get(raw_key)
        except Exception as error:
            return self._rebuilt(error).get(raw_key)

    def get_all(self, raw_keys: list[bytes]) -> list[bytes | None]:
        """The values of keys, or None; fastest if the keys are sorted."""
        kept = self._kept
        asked = [key for key in raw_keys if key not in kept] if kept else raw_keys
        if not asked:
            return [kept[key] for key in raw_keys]
        found = self._get_all_stored(asked)
        if len(asked) == len(raw_keys):
            return found
        rest: Iterator[bytes | None] = iter(found)
        return [kept[key] if key in kept else next(rest) for key in raw_keys]

    def keys(self, from_key: bytes, end: bytes, limit: int) -> list[bytes]:
        """The first keys from ``from_key`` on and before ``end``; at most ``limit``."""
        return self._opened().keys(from_key, end, limit)

    def scan(self, from_key: bytes, end: bytes | None = None) -> Scan:
        """All entries from ``from_key`` on and before ``end``."""
        return self._opened().scan(from_key, end)

    def scan_prefix(self, prefix: bytes) -> Scan:
        """All entries whose key starts with ``prefix``."""
        return self._opened().scan_prefix(prefix)

    def scan_prefix_from(self, prefix: bytes, rest: bytes) -> Scan:
        """The entries of `scan_prefix` from ``prefix`` and ``rest`` on."""
        return self._opened().scan_prefix_from(prefix, rest)

    def reading_failed(self, error: Exception) -> NoReturn:
        """Raise the error for an exception of `get`."""
        if self._stored is None:
            # Opening or rebuilding the database failed.
            raise error
        self._stored.reading_failed(error)

    def estimated_entries(self) -> int:
        """An estimate of the number of keys."""
        on_disk = self._stored_rows().estimated_entries()
        # Opening the database may have moved the overlay into it.
        kept = self._kept
        replaced = self._get_all_stored(list(kept))
        return max(on_disk + _number_of_rows(kept.values()) - _number_of_rows(replaced), 0)

    def ingest(self, path: str) -> None:
        """Move a finished file into the column family."""
        self._opened().ingest(path)

    def forget(self) -> None:
        """Send all look-ups to the open database."""
        self._stored, self._kept = None, {}

    def _stored_rows(self) -> ColumnFamily:
        if self._stored is None:
            self._stored = self._database.stored_rows(self._state_name)
        return self._stored

    def _get_all_stored(self, raw_keys: list[bytes]) -> list[bytes | None]:
        stored = self._stored_rows()
        try:
            return stored.get_all(raw_keys)
        except RocksDBError as error:
            return self._rebuilt(error).get_all(raw_keys)

    def _rebuilt(self, error: Exception) -> ColumnFamily:
        """Rebuild the database after a read from the disk failed. Raise the error if it was not read-only."""
        if not self._database.is_open:
            raise error
        self._database.found_damaged()
        return self._opened()

    def _opened(self) -> ColumnFamily:
        return self._database.opened(self._state_name)


def _number_of_rows(values: Iterable[bytes | None]) -> int:
    return sum(value is not None for value in values)


def _size_bytes(rows: Rows) -> int:
    return sum(len(key) + len(value or b"") for key, value in rows.items())
