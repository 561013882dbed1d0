"""rocksdict as somebody uses it who needs a store of bytes and nothing else.

Three ways of it are peers, because they promise different things at the end of an epoch: with its log, as it comes,
what was written survives the process; without the log it is faster and survives it only after a flush; without either
nothing survives, and no loop over it is faster.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import rocksdict

WITH_LOG = "bare rocksdict"
FLUSHED = "bare rocksdict without log, flushed per epoch"
VOLATILE = "bare rocksdict without log, keeping nothing"


@contextmanager
def bare_store(directory: str, has_log: bool = True) -> Iterator[Any]:
    """A database of raw bytes with rocksdict's own options, which is removed in the end."""
    database: Any = rocksdict.Rdict(directory, rocksdict.Options(raw_mode=True))
    write_options: Any = rocksdict.WriteOptions()
    write_options.disable_wal = not has_log
    database.set_write_options(write_options)
    try:
        yield database
    finally:
        database.close()
        shutil.rmtree(directory, ignore_errors=True)


def write_sorted_file(path: str, entries: Iterable[tuple[bytes, bytes]]) -> None:
    """Writes entries, given in key order, to a file that can be ingested."""
    writer: Any = rocksdict.SstFileWriter(rocksdict.Options(raw_mode=True))
    writer.open(path)
    for key, value in entries:
        writer[key] = value
    writer.finish()


def ingest(database: Any, paths: list[str]) -> None:
    """Makes sorted files part of the database, which takes them as its own."""
    options: Any = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)
    database.ingest_external_file(paths, options)
