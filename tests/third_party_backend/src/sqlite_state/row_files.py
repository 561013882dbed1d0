"""The files of a snapshot: each is a SQLite database with one table of rows, as in `database`.

    CREATE TABLE rows (key_group, key, namespace, part, value) WITHOUT ROWID      application_id "SQST", user_version 1

A row without a value deletes this row of an older file. A state is its files, applied in order.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

from sqlite_state.database import ADDRESS, Row, columns
from statebackend import KeyGroupRange, StateRestoreError

APPLICATION_ID = 0x53515354
FORMAT_VERSION = 1


def write_row_file(path: str, rows: Iterable[Row]) -> None:
    """Write a file of rows, which need not be sorted."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("BEGIN")
        connection.execute(f"CREATE TABLE rows ({columns('value BLOB,')}) WITHOUT ROWID")
        connection.executemany("INSERT INTO rows VALUES (?, ?, ?, ?, ?)", rows)
        connection.execute("COMMIT")


def read_row_file(path: str, key_groups: KeyGroupRange, origin: str) -> Iterator[Row]:
    """The rows in the range; raises `StateRestoreError` with ``origin`` for other files."""
    try:
        with closing(sqlite3.connect(f"{Path(path).as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
            if found != [APPLICATION_ID, FORMAT_VERSION]:
                raise StateRestoreError(f"{origin} does not hold rows of version {FORMAT_VERSION}")
            yield from connection.execute(
                f"SELECT {ADDRESS}, value FROM rows WHERE key_group BETWEEN ? AND ?", (key_groups.start, key_groups.end)
            )
    except sqlite3.DatabaseError as error:
        raise StateRestoreError(f"{origin} cannot be read: {error}") from error
