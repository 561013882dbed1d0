"""Opens the files of a RocksDB database that Flink or Spark wrote, and scans or checks its column families.

The files are linked or copied to a private directory under their original names, and opened read-only. Flink appends to
lists with RocksDB's string append operator, separator ``,``. `rocksdict` has no method for it, but loads it from an
options file. This module writes an options file with this operator only. The options of the checkpoint are never read,
because they could refer to other directories.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, Final

import rocksdict

from statebackend.savepoint.errors import ForeignFormatError

_FILE_NAME: Final = re.compile(r"\d{1,20}\.sst|MANIFEST-\d{1,20}|CURRENT|OPTIONS-\d{1,20}")
_MANIFEST: Final = re.compile(rb"MANIFEST-\d{1,20}\n")

_CHUNK: Final = 512
"""The number of entries that are read at once."""

_OPTIONS: Final = """[Version]
  rocksdb_version=8.10.0
  options_file_version=1.1

[DBOptions]
  stats_persist_period_sec=0

[CFOptions "default"]
  merge_operator={id=StringAppendOperator;delimiter=,;}

[TableOptions/BlockBasedTable "default"]
"""


def is_needed(name: str, location: str) -> bool:
    """Return whether the database needs a file: all files except the options.

    Raises:
        ForeignFormatError: The name is not the name of a file of such a database.
    """
    if _FILE_NAME.fullmatch(name) is None:
        raise ForeignFormatError(f"{location} names the file {name!r}, which is not a file of a RocksDB database")
    return not name.startswith("OPTIONS")


class ForeignDatabase:
    """The database of Flink or Spark in ``directory``, for exclusive use.

    Args:
        directory: The directory with the files.
        location: Names the database in errors.
        stored: The location of each file in the savepoint, for errors.

    Raises:
        ForeignFormatError: The files are not a complete database.
    """

    def __init__(self, directory: str, location: str, stored: Mapping[str, str]) -> None:
        self._directory, self._location, self._stored = directory, location, stored
        current = os.path.join(directory, "CURRENT")
        content = b""
        if os.path.exists(current):
            with open(current, "rb") as file:
                content = file.read(64)
        if _MANIFEST.fullmatch(content) is None:
            raise ForeignFormatError(f"{location}: there is no file CURRENT of RocksDB that names a manifest")
        options_directory = os.path.join(directory, "options")
        os.mkdir(options_directory, mode=0o700)
        for name, text in (("CURRENT", "MANIFEST-000001\n"), ("OPTIONS-000007", _OPTIONS)):
            with open(os.path.join(options_directory, name), "w", encoding="ascii") as file:
                file.write(text)
        try:
            families = {name: _options(options_directory) for name in rocksdict.Rdict.list_cf(directory)}
            families.pop("default", None)
            self._database: Any = rocksdict.Rdict(
                directory,
                _options(options_directory),
                column_families=families,
                access_type=rocksdict.AccessType.read_only(),
            )
        except Exception as error:
            # rocksdict raises nothing more specific.
            raise ForeignFormatError(f"{location}: RocksDB cannot open the files: {self._text(error)}") from error
        self._names = frozenset(families)

    def scan(self, state_name: str, first: bytes, stop: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        """Yield the entries of a state with ``first <= key < stop``, several at a time.

        Raises:
            ForeignFormatError: The files are damaged.
        """
        if state_name not in self._names:
            return
        try:
            family: Any = self._database.get_column_family(state_name)
            entries = family.items(from_key=first)
            last = first
            while chunk := list(islice(entries, _CHUNK)):
                last = chunk[-1][0]
                if last >= stop:
                    if below := chunk[: bisect_left(chunk, stop, key=itemgetter(0))]:
                        yield below
                    return
                yield chunk
            _check_end(family, last)
        except Exception as error:
            raise ForeignFormatError(
                f"{self._location}, state {state_name!r}: RocksDB cannot read the files: {self._text(error)}"
            ) from error

    def check(self) -> None:
        """Read all keys.

        Raises:
            ForeignFormatError: The files are damaged.
        """
        try:
            for name in ("default", *self._names):
                family: Any = self._database.get_column_family(name)
                for last in deque(family.keys(), maxlen=1) or (b"",):
                    _check_end(family, last)
        except Exception as error:
            raise ForeignFormatError(f"{self._location}: RocksDB cannot read the files: {self._text(error)}") from error

    def _text(self, error: Exception) -> str:
        """Return the text of an error with the files of the savepoint instead of the private copies."""
        place = re.compile(re.escape(f"{self._directory}/") + r"([-\w.]*\w)")
        return place.sub(lambda found: self._stored.get(found[1], found[1]), str(error))


def _check_end(family: Any, last: bytes) -> None:
    """Raise the error at which ``items`` or ``keys`` ended. They hide it."""
    iterator = family.iter()
    iterator.seek(last)
    if iterator.valid():
        iterator.next()
    iterator.status()


def _options(directory: str) -> Any:
    _, families = rocksdict.Options.load_latest(directory)
    return families["default"]
