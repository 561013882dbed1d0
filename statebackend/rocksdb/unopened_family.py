"""The rows of a state in a local database that is not open: whoever asks for one opens it.

Opening and closing a database takes some milliseconds and several waits for the disk, and in an epoch of few records
most subtasks have none. So a table whose rows are there already begins with this in the place of its column family; the
database puts the column families there, of all tables, when it is opened (`LocalDatabase.engine`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from attrs import frozen

from statebackend.rocksdb.engine import ColumnFamily, Scan


@frozen(eq=False)
class UnopenedFamily:
    """A column family by its name. Each call opens the database, and raises what that does; see `ColumnFamily`."""

    name: str
    opened: Callable[[], ColumnFamily]
    """Opens the database, and gives the column family that has the rows then: another one where it was filled anew."""

    @property
    def get(self) -> Callable[[Any], Any]:
        """The value of a key, or of each of a list of keys; None where there is none."""
        get: Callable[[Any], Any] = self.opened().get
        return get

    def get_all(self, raw_keys: list[bytes]) -> list[bytes | None]:
        """The values of keys, None where there is none."""
        return self.opened().get_all(raw_keys) if raw_keys else []

    def scan(self, from_key: bytes) -> Scan:
        """All entries from ``from_key`` on."""
        return self.opened().scan(from_key)

    def scan_prefix(self, prefix: bytes) -> Scan:
        """All entries whose key begins with ``prefix``."""
        return self.opened().scan_prefix(prefix)

    def scan_prefix_from(self, prefix: bytes, rest: bytes) -> Scan:
        """The entries of `scan_prefix` from ``prefix`` and ``rest`` on."""
        return self.opened().scan_prefix_from(prefix, rest)

    def reading_failed(self, error: Exception) -> NoReturn:
        """Raises an exception of `get`, which comes of opening the database, as it is."""
        raise error

    def estimated_entries(self) -> int:
        """An estimate of the number of keys."""
        return self.opened().estimated_entries()

    def ingest(self, path: str) -> None:
        """Moves a finished file into the column family."""
        self.opened().ingest(path)
