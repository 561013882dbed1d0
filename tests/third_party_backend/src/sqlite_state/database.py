"""The local database of a subtask: one table per state, and a second one with its changes since the last snapshot.

    row     := key_group, key, namespace, part, value
    part    := empty for a value | the user key of a map entry | u64(chunk number) of a list

Rows are sorted by their address, compared byte by byte, which is the canonical order. Triggers record the address of
every row that is inserted, replaced or deleted. A snapshot writes these rows, so handles need not track changes. Tables
are filled before their triggers are created.

The database is a cache of the checkpoint: it lives in one transaction that is never committed, and a crash loses it.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from statebackend.state.canonical import Address

Row = tuple[int, bytes, bytes, bytes, "bytes | None"]
"""Key group, key, namespace, part and value. A value of None marks a deleted row."""

ADDRESS = "key_group, key, namespace, part"
_COLUMNS = """
    key_group INTEGER NOT NULL,
    key BLOB NOT NULL CHECK (typeof(key) = 'blob'),
    namespace BLOB NOT NULL CHECK (typeof(namespace) = 'blob'),
    part BLOB NOT NULL CHECK (typeof(part) = 'blob'),
    {value}
    PRIMARY KEY (key_group, key, namespace, part)
"""
_UNDER_KEY = "key_group = ? AND key = ? AND namespace = ?"
_FETCHED_ROWS = 10_000


class StoredTable:
    """The rows of one state."""

    def __init__(self, connection: sqlite3.Connection, number: int, check_open: Callable[[], None]) -> None:
        self._connection = connection
        self._check_open = check_open
        self._name, self._changes = f"state_{number}", f"changes_{number}"
        connection.execute(f"CREATE TABLE {self._name} ({columns('value BLOB NOT NULL,')}) WITHOUT ROWID")
        connection.execute(f"CREATE TABLE {self._changes} ({columns('')}) WITHOUT ROWID")

    def track_changes(self) -> None:
        """Record which rows change from now on."""
        for event, row in (("INSERT", "NEW"), ("DELETE", "OLD")):
            address = ", ".join(f"{row}.{column.strip()}" for column in ADDRESS.split(","))
            self._connection.execute(
                f"CREATE TRIGGER {self._name}_{event} AFTER {event} ON {self._name} "
                f"BEGIN INSERT OR REPLACE INTO {self._changes} VALUES ({address}); END"
            )

    def get(self, address: Address, part: bytes = b"") -> bytes | None:
        """The value of one row."""
        rows = self._execute(f"SELECT value FROM {self._name} WHERE {_UNDER_KEY} AND part = ?", (*address, part))
        found = rows.fetchone()
        return None if found is None else found[0]

    def put(self, rows: Iterable[Row]) -> None:
        """Set rows."""
        self._check_open()
        self._connection.executemany(f"INSERT OR REPLACE INTO {self._name} VALUES (?, ?, ?, ?, ?)", rows)

    def delete(self, address: Address, part: bytes | None = None) -> None:
        """Delete one row, or all below the address."""
        only = "" if part is None else " AND part = ?"
        self._execute(
            f"DELETE FROM {self._name} WHERE {_UNDER_KEY}{only}", address if part is None else (*address, part)
        )

    def under(self, address: Address) -> list[tuple[bytes, bytes]]:
        """Parts and values below an address, in order."""
        query = f"SELECT part, value FROM {self._name} WHERE {_UNDER_KEY} ORDER BY part"
        return self._execute(query, address).fetchall()

    def has(self, address: Address) -> bool:
        """Whether there is a row below the address."""
        query = f"SELECT 1 FROM {self._name} WHERE {_UNDER_KEY} LIMIT 1"
        return self._execute(query, address).fetchone() is not None

    def rows(self) -> Iterator[Row]:
        """All rows in order."""
        return self._fetched(f"SELECT {ADDRESS}, value FROM {self._name} ORDER BY {ADDRESS}")

    def addresses(self) -> Iterator[Address]:
        """Key group, key and namespace of all rows, each once, in order."""
        columns = "key_group, key, namespace"
        return self._fetched(f"SELECT DISTINCT {columns} FROM {self._name} ORDER BY {columns}")

    def keys_after(self, key_group: int, after: bytes | None, limit: int) -> list[bytes]:
        """The first keys of a key group after a key, or the first of all."""
        condition, values = ("", ()) if after is None else (" AND key > ?", (after,))
        query = f"SELECT key FROM {self._name} WHERE key_group = ?{condition} ORDER BY key LIMIT ?"
        return [key for (key,) in self._execute(query, (key_group, *values, limit))]

    def changed_rows(self) -> list[Row]:
        """The changed rows since `forget_changes`, in order, with current values."""
        return self._execute(
            f"SELECT {ADDRESS}, value FROM {self._changes} LEFT JOIN {self._name} USING ({ADDRESS}) ORDER BY {ADDRESS}"
        ).fetchall()

    def forget_changes(self) -> None:
        """Forget all changes, because they are written."""
        self._execute(f"DELETE FROM {self._changes}")

    def row_count(self) -> int:
        """The number of rows; costs a pass over the table."""
        count: int = self._execute(f"SELECT count(*) FROM {self._name}").fetchone()[0]
        return count

    def drop(self) -> None:
        """Remove the table."""
        for name in (self._name, self._changes):
            self._execute(f"DROP TABLE {name}")

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        self._check_open()
        return self._connection.execute(statement, values)

    def _fetched(self, query: str) -> Iterator[Any]:
        cursor = self._execute(query)
        while rows := cursor.fetchmany(_FETCHED_ROWS):
            yield from rows
            # A closed database returns no rows, which must not look like the end of the scan.
            self._check_open()


class SqliteDatabase:
    """An empty database at a path; an existing one is removed."""

    def __init__(self, path: str, check_open: Callable[[], None]) -> None:
        if os.path.exists(path):
            os.unlink(path)
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = OFF")
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute("BEGIN")
        self._check_open = check_open
        self._numbers = itertools.count()

    def new_table(self) -> StoredTable:
        """An empty table."""
        return StoredTable(self._connection, next(self._numbers), self._check_open)

    def close(self) -> None:
        """Close the database; may be called twice."""
        self._connection.close()


def columns(value_column: str) -> str:
    """The columns of a table with this declaration of the value column."""
    return _COLUMNS.format(value=value_column)
