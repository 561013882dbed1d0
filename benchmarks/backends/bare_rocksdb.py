"""Plain rocksdict as a store of bytes, the peer of the RocksDB backend.

There are three variants, because they differ in what survives a crash of the process:

1. with its write-ahead log: every write survives;
2. without the log, flushed at the end of an epoch: faster, and what was flushed survives;
3. without both: the fastest, and nothing survives.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import rocksdict

WITH_LOG = "bare rocksdict"
FLUSHED = "bare rocksdict without log, flushed per epoch"
VOLATILE = "bare rocksdict without log, not persisted"


@contextmanager
def bare_store(directory: str, has_log: bool = True) -> Iterator[Any]:
    """Open a database of raw bytes with the default options of rocksdict, and remove it at the end."""
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
    """Write entries, which must be sorted by key, to an SST file for `ingest`."""
    writer: Any = rocksdict.SstFileWriter(rocksdict.Options(raw_mode=True))
    writer.open(path)
    for key, value in entries:
        writer[key] = value
    writer.finish()


def ingest(database: Any, paths: list[str]) -> None:
    """Ingest SST files into the database, which moves them into its directory."""
    options: Any = rocksdict.IngestExternalFileOptions()
    options.set_move_files(True)
    database.ingest_external_file(paths, options)
