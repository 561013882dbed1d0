"""A RocksDB database of raw bytes, written by ingesting sorted files. The only module that writes with rocksdict.

Known properties of rocksdict, and how this module handles them:

* ``close()`` leaves the database open while a column family, iterator or snapshot of it exists, and the next open fails
  on the lock. All of them are made here and dropped before closing. Running scans are ended.
* ``ReadOptions.set_iterate_lower_bound`` sets the *upper* bound. Scans seek and stop by themselves.
* A child process can read, and seems to write, through the parent's handle. A forked child gets an error on every call.
* All errors are plain ``Exception``. They become `RocksDBError` with the path. Point reads are not wrapped, because
  another call costs too much: readers pass what they catch to `reading_failed`.
* An iterator that meets damage ends as at the end of the data. After an iterator ended, the position is checked in
  another way, so that damage is never taken for the end.
* A whole filter block larger than a shard of the block cache never stays in it, and each read is a hundred times
  slower. Index and filters are partitioned.
* ``Snapshot`` keeps point reads consistent, but not its iterators. An iterator of the column family is consistent as of
  its creation, on any thread, also after its column family is dropped. Scans use that.
* A read-only database takes no lock, and a writer deletes files that it needs. Only the holder of the directory's lock
  opens one, and closes it before a writer opens.
* There is no merge operator and no compaction filter. Neither is needed without writes through the memtable.

All writes are `SstWriter` files with strictly ascending keys, ingested whole. The write-ahead log stays empty, an epoch
becomes visible atomically per column family, and the same file is the increment of a checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from itertools import islice, starmap
from operator import itemgetter, lt
from typing import Any, Final, NoReturn

import rocksdict

from statebackend.checkpoint.errors import fix_of
from statebackend.state.errors import StateBackendError
from statebackend.state.rocksdb.sst_bounds import TABLE_FORMAT_VERSION

DEFAULT_MEMORY_BUDGET_BYTES: Final = 64 << 20
MIN_MEMORY_BUDGET_BYTES: Final = 1 << 20

_WRITE_BUFFER_SHARE: Final = 8
"""Write buffers may fill 1/8 of the budget. They hold only metadata of column families."""

_WRITE_BUFFER_BYTES: Final = 1 << 20

_MAX_SORTED_RUNS: Final = 4
"""RocksDB merges files of similar size when a column family has this many. A read looks into each file, and a scan
steps over all that was deleted or overwritten and not merged."""

_MAX_OPEN_FILES: Final = 512
"""The limit of open file handles per store; further files are opened when they are read."""

_LEVELS: Final = 7
"""Levels of a column family. An ingested file goes to the last level that needs no overlap with earlier levels."""

_MIN_SCANNED_KEYS: Final = 1024
"""Fewer keys are looked up one by one."""

_MOST_ROWS_PER_KEY: Final = 3
"""A scan ends if it meets more rows for each key."""

_SAMPLED_ROWS: Final = 128
_MOST_SCANNED_ROWS: Final = 4096
_SCANNED_BYTES: Final = 1 << 20
"""How much a scan reads before it is checked again whether it pays."""

_ROWS_AT_ONCE: Final = 128
_BYTES_AT_ONCE: Final = 256 << 10
"""The size of the parts that `ColumnFamily.scan` reads."""

DEFAULT_COLUMN_FAMILY: Final = "default"

_value_of: Final = itemgetter(1)

Scan = Generator[tuple[bytes, bytes], None, None]


class RocksDBError(StateBackendError):
    """RocksDB rejected an operation or found its files damaged."""


@contextlib.contextmanager
def _translated(action: str, path: str) -> Iterator[None]:
    try:
        yield
    except StateBackendError:
        # The error is from the caller's entries, not from the library.
        raise
    except Exception as error:
        raise _failure(action, path, error) from error


def _failure(action: str, path: str, error: Exception) -> RocksDBError:
    text = f"RocksDB could not {action} at {path}: {error}"
    fix = fix_of(str(error))
    return RocksDBError(text if fix is None else f"{text}. {fix}")


class _SharedMemory:
    """The one block cache of a process, which also counts the write buffers of all its stores."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.block_cache: Any = rocksdict.Cache(budget_bytes)
        self.write_buffers: Any = rocksdict.WriteBufferManager.new_write_buffer_manager_with_cache(
            budget_bytes // _WRITE_BUFFER_SHARE, False, self.block_cache
        )

    def grow(self, budget_bytes: int) -> None:
        """Raise the budget to at least this size."""
        if budget_bytes > self.budget_bytes:
            self.budget_bytes = budget_bytes
            self.block_cache.set_capacity(budget_bytes)
            self.write_buffers.set_buffer_size(budget_bytes // _WRITE_BUFFER_SHARE)


_shared_memory: dict[int, _SharedMemory] = {}


def shared_memory(budget_bytes: int | None = None) -> _SharedMemory:
    """The memory that all stores of this process share. A budget of None keeps the current size."""
    # It must not be shared with a forked child, which does not have the background threads.
    process = os.getpid()
    memory = _shared_memory.get(process)
    if memory is None:
        _shared_memory.clear()
        memory = _shared_memory[process] = _SharedMemory(budget_bytes or DEFAULT_MEMORY_BUDGET_BYTES)
    elif budget_bytes is not None:
        memory.grow(budget_bytes)
    return memory


def _options() -> Any:
    memory = shared_memory()
    table = rocksdict.BlockBasedOptions()
    table.set_format_version(TABLE_FORMAT_VERSION)
    table.set_block_cache(memory.block_cache)
    table.set_bloom_filter(10, False)
    table.set_block_size(8 << 10)
    # Index and filter are cached in partitions. The whole filter of a large file would be larger than a shard of
    # the cache, so it would never fit and be read again at every access.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(32 << 10)
    table.set_pin_top_level_index_and_filter(True)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.create_missing_column_families(True)
    options.set_block_based_table_factory(table)
    options.set_write_buffer_manager(memory.write_buffers)
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    # Ingested files are small compared with the base. Compacting files of similar size rarely rewrites the base,
    # and fits into the short time for which a store is open. Ingestion never waits for it.
    options.set_compaction_style(rocksdict.DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_MAX_SORTED_RUNS)
    options.set_level_zero_slowdown_writes_trigger(10_000)
    options.set_level_zero_stop_writes_trigger(20_000)
    options.set_max_open_files(_MAX_OPEN_FILES)
    # By default a store opens its files with fifteen threads, created for each column family. With bounded open
    # files it opens at most sixteen files at once, which takes less time than creating the threads.
    options.set_max_file_opening_threads(1)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


class SstWriter:
    """Writes one sorted file; keys must be strictly ascending. A None value is a deletion."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.entry_count = 0
        self._writer: Any = rocksdict.SstFileWriter(_options())
        with _translated("begin a file", path):
            self._writer.open(path)

    def write(self, entries: Any) -> None:
        """Append ``(key, value or None)`` pairs."""
        writer, count = self._writer, 0
        for key, value in entries:
            # Errors of the entries pass unchanged; only errors of the library are translated.
            try:
                if value is None:
                    del writer[key]
                else:
                    writer[key] = value
            except Exception as error:
                raise _failure("write a sorted file", self.path, error) from error
            count += 1
        self.entry_count += count

    def put_all(self, keys: Sequence[bytes], values: Sequence[Any]) -> None:
        """Append keys with their values, None for a deletion; faster than `write`, above all for values of one kind."""
        put, delete = self._writer.__setitem__, self._writer.__delitem__
        with _translated("write a sorted file", self.path):
            if None not in values:
                deque(map(put, keys, values), maxlen=0)
            elif values.count(None) == len(values):
                deque(map(delete, keys), maxlen=0)
            else:
                for key, value in zip(keys, values, strict=True):
                    delete(key) if value is None else put(key, value)
        self.entry_count += len(keys)

    def put_rows(self, rows: Iterable[tuple[bytes, bytes]]) -> int:
        """Append keys with their values, and return their number."""
        with _translated("write a sorted file", self.path):
            count = len(list(starmap(self._writer.__setitem__, rows)))
        self.entry_count += count
        return count

    def finish(self) -> None:
        """Complete the file; it must hold at least one entry."""
        with _translated("finish a sorted file", self.path):
            self._writer.finish()
        self._writer = None


class ColumnFamily:
    """One column family: point reads, ordered scans, and ingestion of sorted files."""

    def __init__(self, store: RocksDBEngine, name: str, handle: Any) -> None:
        self.name = name
        self._store = store
        self._handle = handle
        self.get = handle.get

    def get_all(self, raw_keys: list[bytes]) -> list[bytes | None]:
        """The values of keys, or None; fastest if the keys are sorted, and faster still if few other rows lie between.

        A row of a scan takes much less time than a look-up.
        """
        found = self._scanned(raw_keys) if len(raw_keys) >= _MIN_SCANNED_KEYS else []
        if len(found) < len(raw_keys):
            try:
                found += self.get(raw_keys[len(found) :] if found else raw_keys)
            except Exception as error:
                self.reading_failed(error)
        return found

    def _scanned(self, raw_keys: list[bytes]) -> list[bytes | None]:
        """The values of the first keys, up to where a scan meets too many other rows, or ends."""
        found: list[bytes | None] = []
        if not all(map(lt, raw_keys, islice(raw_keys, 1, None))):
            return found
        size, iterator = _SAMPLED_ROWS, self._iterator(raw_keys[0])
        try:
            while len(found) < len(raw_keys):
                rows = dict(islice(iterator, size))
                if not rows:
                    break
                start, last = len(found), next(reversed(rows))
                stop = bisect_right(raw_keys, last, start)
                found += map(rows.get, raw_keys[start:stop])
                if len(rows) < size or (stop - start) * _MOST_ROWS_PER_KEY < size:
                    break
                if size == _SAMPLED_ROWS:
                    row_bytes = sum(map(len, rows.values())) // size + len(last)
                    size = max(_SAMPLED_ROWS, min(_MOST_SCANNED_ROWS, _SCANNED_BYTES // row_bytes))
        except Exception:
            # The look-ups of the other keys meet the damage too, and raise the error.
            return found
        finally:
            del iterator
        return found

    def scan(self, from_key: bytes, end: bytes | None = None) -> Scan:
        """All entries from ``from_key`` on and before ``end``, in key order.

        Shows the entries as of the time of the call. Any thread may read it, one at a time. Closing the store ends the
        scan, because a store with open scans cannot be closed.
        """
        return self._store.track(self._scan(self._iterator(from_key), self._handle, from_key, end))

    def scan_prefix(self, prefix: bytes) -> Scan:
        """All entries whose key starts with ``prefix``, in key order; otherwise like `scan`."""
        return self._store.track(self._scan_prefix(self._iterator(prefix), self._handle, prefix))

    def scan_prefix_from(self, prefix: bytes, rest: bytes) -> Scan:
        """The entries of `scan_prefix` from ``prefix`` and ``rest`` on."""
        return self._store.track(self._scan_prefix(self._iterator(prefix + rest), self._handle, prefix))

    def keys(self, from_key: bytes, end: bytes, limit: int) -> list[bytes]:
        """The first keys from ``from_key`` on and before ``end``, in order; at most ``limit``."""
        self._check_usable()
        keys: list[bytes] = []
        iterator: Any = None
        try:
            with _translated("scan", self._store.path):
                iterator, size = self._handle.keys(from_key=from_key), 1
                while len(keys) < limit and (not keys or keys[-1] < end):
                    wanted = min(size, limit - len(keys))
                    part = list(islice(iterator, wanted))
                    keys += part
                    if len(part) < wanted:
                        _check_end(self._handle, keys[-1] if keys else from_key)
                        break
                    # Few keys after the end are read: deleted ones before them take time.
                    size = min(4 * size, _ROWS_AT_ONCE)
        finally:
            # As in `_scan`.
            del iterator
        del keys[bisect_left(keys, end) :]
        return keys

    def _iterator(self, from_key: bytes) -> Any:
        self._check_usable()
        with _translated("scan", self._store.path):
            return self._handle.items(from_key=from_key)

    def _check_usable(self) -> None:
        self._store.check_process()
        if self._handle is None:
            _released()

    # Only the generators hold the iterators, so closing the generators releases the database. An iterator works
    # even after its column family is dropped.

    def _scan(self, iterator: Any, handle: Any, from_key: bytes, end: bytes | None) -> Scan:
        try:
            with _translated("scan", self._store.path):
                last, size = from_key, 1
                # Rows in parts take half the time. The first part is a row, so a short scan reads few rows too many.
                while rows := list(islice(iterator, size)):
                    last = rows[-1][0]
                    if end is not None and last >= end:
                        yield from [row for row in rows if row[0] < end]
                        return
                    yield from rows
                    row_bytes = sum(map(len, map(_value_of, rows))) // size + len(last)
                    size = max(1, min(4 * size, _ROWS_AT_ONCE, _BYTES_AT_ONCE // row_bytes))
                _check_end(handle, last)
        finally:
            # The traceback of an error would hold them, so the database could not be closed.
            del iterator, handle

    def _scan_prefix(self, iterator: Any, handle: Any, prefix: bytes) -> Scan:
        try:
            with _translated("scan", self._store.path):
                key = prefix
                for key, value in iterator:
                    if not key.startswith(prefix):
                        return
                    yield key, value
                _check_end(handle, key)
        finally:
            del iterator, handle

    def reading_failed(self, error: Exception) -> NoReturn:
        """Raise the error for an exception of `get`. A `StateBackendError` is raised unchanged, with its cause."""
        if isinstance(error, StateBackendError):
            raise error
        raise _failure("read an entry", self._store.path, error) from error

    def estimated_entries(self) -> int:
        """RocksDB's estimate of the number of keys; deletions and overwritten entries make it inexact."""
        with _translated("estimate the number of keys", self._store.path):
            return int(self._handle.property_int_value("rocksdb.estimate-num-keys") or 0)

    def files_at_levels(self) -> list[int]:
        """The number of files per level. Files at the first level were ingested and not merged yet."""
        return [self.property_value(f"num-files-at-level{level}") for level in range(_LEVELS)]

    def size_bytes(self) -> int:
        """The bytes of all files."""
        return self.property_value("live-sst-files-size")

    def ingest(self, path: str) -> None:
        """Move a finished file into the column family; its entries override all earlier ones."""
        self._store.check_process()
        options = rocksdict.IngestExternalFileOptions()
        options.set_move_files(True)
        with _translated("ingest a sorted file", path):
            self._handle.ingest_external_file([path], options)

    def property_value(self, name: str) -> int:
        """A numeric property of RocksDB, by its name without the leading ``rocksdb.``."""
        self._store.check_process()
        with _translated(f"report its property {name!r}", self._store.path):
            value: Any = self._handle.property_value(f"rocksdb.{name}")
        if value is None:
            raise RocksDBError(f"RocksDB knows no property {name!r}")
        return int(value)

    def disown(self) -> None:
        """Reject reads in a forked child. It must not drop the parent's handle."""
        self.get = self._reject_child

    def _reject_child(self, *_: Any) -> bytes:
        self._store.check_process()
        raise AssertionError("only a forked child is rejected")

    def release(self) -> None:
        """Drop the handle, so that the database can be closed."""
        self.get = _released
        self._handle = None


def _check_end(handle: Any, last_key: bytes) -> None:
    """Raise the error that an iterator may have hidden when it ended after ``last_key``."""
    iterator = handle.iter()
    try:
        iterator.seek(last_key)
        if iterator.valid():
            iterator.next()
        iterator.status()
    finally:
        del iterator, handle


def _column_families_at(path: str) -> list[str]:
    return rocksdict.Rdict.list_cf(path, _options()) if os.path.exists(os.path.join(path, "CURRENT")) else []


class RocksDBEngine:
    """A database directory. Belongs to one process and one thread.

    With ``only_read`` only these column families are opened, which must exist, and nothing can be written. This takes a
    fraction of the time, because nothing on disk changes. Later writes of others are not visible.
    """

    def __init__(
        self, path: str, memory_budget_bytes: int | None = None, only_read: Collection[str] | None = None
    ) -> None:
        self.path = path
        self._process = os.getpid()
        self._is_only_read = only_read is not None
        shared_memory(memory_budget_bytes)
        self._families: dict[str, ColumnFamily] = {}
        self._scans: weakref.WeakSet[Scan] = weakref.WeakSet()
        with _translated("open", path):
            if only_read is None:
                # RocksDB would create the directory, and its files, readable by all users.
                os.makedirs(path, mode=0o700, exist_ok=True)
            names = _column_families_at(path) if only_read is None else only_read
            families = {name: _options() for name in names if name != DEFAULT_COLUMN_FAMILY}
            access = rocksdict.AccessType.read_write() if only_read is None else rocksdict.AccessType.read_only()
            self._database: Any = rocksdict.Rdict(path, _options(), column_families=families, access_type=access)
            for name in families:
                self._families[name] = ColumnFamily(self, name, self._database.get_column_family(name))
        _open_stores.add(self)

    @property
    def column_family_names(self) -> tuple[str, ...]:
        """The column families, without RocksDB's default one."""
        return tuple(self._families)

    def column_family(self, name: str) -> ColumnFamily:
        """The column family of that name, created if it does not exist."""
        self.check_process()
        family = self._families.get(name)
        if family is None and self._is_only_read:
            # The library would create it, even in a read-only database.
            raise RocksDBError(f"the database at {self.path} is open to be read and has no column family {name!r}")
        if family is None:
            with _translated(f"create column family {name!r}", self.path):
                family = ColumnFamily(self, name, self._database.create_column_family(name, _options()))
            self._families[name] = family
        return family

    def disown(self) -> None:
        """Make every access raise an error in a forked child."""
        for family in self._families.values():
            family.disown()

    def drop(self, name: str) -> None:
        """Drop a column family with all its entries."""
        family = self._families.pop(name)
        family.release()
        with _translated(f"drop column family {name!r}", self.path):
            self._database.drop_column_family(name)

    def track(self, scan: Scan) -> Scan:
        """Track a scan with a weak reference, to end it on close."""
        self.check_process()
        self._scans.add(scan)
        return scan

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a forked child of the process that opened the store."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise `RocksDBError` in a process that inherited the store by a fork."""
        if self.is_inherited:
            raise RocksDBError(f"the database at {self.path} belongs to process {self._process}; open it again here")

    def close(self) -> None:
        """Close the database and release its lock; may be called twice. Does nothing in a forked child."""
        if self._database is None or self.is_inherited:
            return
        for scan in list(self._scans):
            scan.close()
        for family in self._families.values():
            family.release()
        self._families.clear()
        # This is the last reference, so dropping it closes the database. Its own `close` would wait for a sync of the
        # empty write-ahead log.
        self._database = None


_open_stores: weakref.WeakSet[RocksDBEngine] = weakref.WeakSet()


def _disown_stores() -> None:
    for store in _open_stores:
        store.disown()


os.register_at_fork(after_in_child=_disown_stores)


def _released(*_: Any) -> bytes:
    raise RocksDBError("the database is closed; state handles live for one epoch")
