"""One state in RocksDB: its written rows, the handle with its cached changes, and the files of its snapshots.

Only this file and the database know which column family holds the rows. Everything else uses the table, so a state of
several generations can have several column families later.

*Changes*: the rows to write, and their effect on the digest. The stored value of a changed key is known if the epoch
has read it, and is looked up otherwise. So a deletion of a missing row costs at most a look-up and writes nothing. A
row that is rewritten with its old value does not change the digest.

*Clean-up*: rows are read a chunk at a time, in the order of the database, from the current key to the end and then from
the beginning to the start. No iterator stays open between chunks. The bytes of a row show whether it may have expired,
so only such rows are looked up in the cache. Rows in the cache are not visited before they are written out.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from operator import add
from typing import Any, Final, cast

from attrs import define

from statebackend.state.canonical import Address, CanonicalRow
from statebackend.state.composite_key import DELETION_MARK, KEY_GROUP, RawKeys
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_context import has_namespaces
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.list_state import InternalListState
from statebackend.state.map_state import InternalMapState
from statebackend.state.metrics import StateStatistics
from statebackend.state.priority_queue import PRIORITY_QUEUE
from statebackend.state.rocksdb.cached_state import UNKNOWN, CacheBounds, Drained, StoredRows, WriteBackCache
from statebackend.state.rocksdb.engine import ColumnFamily, Scan
from statebackend.state.rocksdb.file_chain import ContentDigest, FileChain, state_seed
from statebackend.state.rocksdb.list_state import ChunkSource, RocksDBListState, RocksDBObjectListState
from statebackend.state.rocksdb.map_state import RocksDBMapState
from statebackend.state.rocksdb.priority_queue import QueueEnds, RocksDBPriorityQueue, split_element_key
from statebackend.state.rocksdb.read_only_database import ReadOnlyRows
from statebackend.state.rocksdb.value_state import RocksDBRowValueState, create_value_state
from statebackend.state.state_kind import RowFilter, TableForm
from statebackend.state.state_meta import NAMESPACE_ROLE, StateSchema
from statebackend.state.state_store import StateTable
from statebackend.state.ttl import Expiry, Pass, PassStart
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer


def effective_changes(
    drained: Drained, stored_rows: StoredRows, digest: ContentDigest, seed: int, expired: RowFilter | None
) -> tuple[list[bytes], list[bytes | None]]:
    """Return the raw keys to write, in order, and their new values; update the digest.

    A row that ``expired`` filters out counts as absent, whether or not the clean-up has removed it.
    """
    keys, values, stored = drained.keys, drained.values, drained.stored
    if drained.digest is not None:
        digest.total += drained.digest
        return _in_order(keys, values)
    is_in_order = UNKNOWN in stored
    if is_in_order:
        # Look up neighbouring rows one after the other.
        known = dict(zip(keys, stored, strict=True))
        keys, values = _in_order(keys, values)
        stored = _looked_up(keys, list(map(known.__getitem__, keys)), stored_rows)
    if None in values and None in stored and (None, None) in zip(values, stored, strict=True):
        rows = zip(keys, values, stored, strict=True)
        keys, values, stored = _columns([row for row in rows if row[1] is not None or row[2] is not None])
    digest.add(seed, _rows(keys, values, expired))
    digest.take_away(seed, _rows(keys, stored, expired))
    # The digest is a sum, so order does not matter. Rows are sorted last, because unsorted rows are in memory order.
    return (keys, values) if is_in_order else _in_order(keys, values)


def _in_order(keys: list[bytes], values: list[bytes | None]) -> tuple[list[bytes], list[bytes | None]]:
    ordered = sorted(keys)
    value_of = dict(zip(keys, values, strict=True)).__getitem__
    return ordered, list(map(value_of, ordered))


def _looked_up(keys: list[bytes], stored: list[Any], stored_rows: StoredRows) -> list[bytes | None]:
    asked = [key for key, known in zip(keys, stored, strict=True) if known is UNKNOWN]
    found = iter(stored_rows.get_all(asked))
    return [next(found) if known is UNKNOWN else known for known in stored]


def _columns(rows: list[tuple[Any, Any, Any]]) -> tuple[list[Any], list[Any], list[Any]]:
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


def _rows(keys: list[bytes], values: list[bytes | None], expired: RowFilter | None) -> Iterable[bytes]:
    """The existing rows. No raw key is a prefix of another, so key and value need no separator."""
    if expired is not None:
        values = [None if value is None else expired(value) for value in values]
    if None not in values:
        present: Any = values
        return map(add, keys, present)
    return [key + value for key, value in zip(keys, values, strict=True) if value is not None]


CHUNK_ROWS: Final = 256


def places_of_rows(
    scan: Callable[[bytes], Iterator[tuple[bytes, bytes]]],
    key_groups: KeyGroupRange,
    split: Callable[[bytes], tuple[int, bytes, bytes, bytes]],
    begin: bytes,
    expiry: Expiry,
) -> Iterator[Address | None]:
    """Yield the addresses of rows that may have expired, None for other rows.

    ``begin`` is a raw key or a prefix of one. ``scan`` returns the rows from a raw key on.
    """
    expired_filter = expiry.filters()
    first, last = KEY_GROUP.pack(key_groups.start), KEY_GROUP.pack(key_groups.end + 1)
    for start, end in ((begin, last), (first, min(begin, last))):
        position = start
        while position < end:
            rows = list(itertools.islice(scan(position), CHUNK_ROWS))
            row_filter = expired_filter()
            for raw_key, value in rows:
                if raw_key >= end:
                    break
                yield None if row_filter(value) is value else split(raw_key)[:3]
            position = rows[-1][0] + b"\0" if len(rows) == CHUNK_ROWS else end


SplitKey = Callable[[bytes], tuple[int, bytes, bytes, bytes]]
"""Splits a raw key into key group, key, namespace and the rest."""


@define(eq=False)
class TableSharing:
    """What the tables of one store share.

    ``write_out`` writes the changes of a handle to the database. ``first_new_chunk`` returns the number of the first
    list chunk that no completed snapshot has.
    """

    key_serializer: TypeSerializer[Any]
    key_groups: KeyGroupRange
    bounds: CacheBounds
    check_open: Callable[[], None]
    next_chunk_number: Callable[[], int]
    first_new_chunk: Callable[[], int]

    def raw_keys(self, namespace_serializer: TypeSerializer[Any]) -> RawKeys:
        """The raw keys of a state with these namespaces."""
        is_namespaced = has_namespaces(namespace_serializer)
        return RawKeys(self.key_serializer, namespace_serializer, self.key_groups, is_namespaced)


class RocksDBTable(StateTable):
    """One state. ``handle`` is this epoch's; ``queue_ends`` are the bounds of a queue that was written out.

    No written row of a state has a namespace with larger bytes than ``last_namespace``, unless that is None.
    """

    def __init__(
        self, schema: StateSchema, sharing: TableSharing, family: ColumnFamily | ReadOnlyRows, files: FileChain
    ) -> None:
        super().__init__(schema)
        self.files = files
        self.handle: WriteBackCache | None = None
        self.queue_ends = QueueEnds()
        self.last_namespace: bytes | None = None
        self._sharing = sharing
        self._family = family

    def value_state(
        self, context: HandleContext, serializer: TypeSerializer[Any], default: Any
    ) -> InternalValueState[Any]:
        cache = self._cache(context)
        handle: InternalValueState[Any]
        if self.schema.is_bulk:
            handle = RocksDBRowValueState(self.last_namespace, self._keep_last_namespace, serializer, default, *cache)
        else:
            # It does not note the namespaces that it writes.
            self.last_namespace = None
            handle = create_value_state(serializer, default, *cache)
        self.handle = cast(WriteBackCache, handle)
        return handle

    def list_state(self, context: HandleContext, element_serializer: TypeSerializer[Any]) -> InternalListState[Any]:
        sharing = self._sharing
        chunks = ChunkSource(sharing.next_chunk_number, sharing.first_new_chunk, lambda: self.schema.expired_filter())
        form = RocksDBObjectListState if element_serializer.is_immutable_type else RocksDBListState
        handle = self.handle = form(element_serializer, chunks, *self._cache(context))
        return handle

    def map_state(
        self, context: HandleContext, key_serializer: TypeSerializer[Any], value_serializer: TypeSerializer[Any]
    ) -> InternalMapState[Any, Any]:
        handle = self.handle = RocksDBMapState(key_serializer, value_serializer, *self._cache(context))
        return handle

    def queue(self, element_serializer: TypeSerializer[Any]) -> RocksDBPriorityQueue[Any]:
        sharing = self._sharing
        handle = self.handle = RocksDBPriorityQueue(
            self.name,
            element_serializer,
            sharing.key_groups,
            self._family,
            sharing.bounds,
            self.queue_ends,
            self._keep_queue_ends,
        )
        return handle

    def rows(self) -> Iterator[CanonicalRow]:
        self.write_out()
        split = self.split_key()
        is_map = self.is_map
        return (
            (key_group, key, namespace, rest if is_map else None, value)
            for (key_group, key, namespace, rest), value in ((split(raw_key), value) for raw_key, value in self.scan())
        )

    def addresses(self) -> Iterator[Address]:
        self.write_out()
        return self._addresses(self.scan())

    def cleanup_pass(self, start: PassStart) -> Pass:
        begin = KEY_GROUP.pack(max(start.key_group, 0)) + start.key
        places = places_of_rows(self._family.scan, self._sharing.key_groups, self.split_key(), begin, start.expiry)
        place_of = start.place_of
        return (None if address is None else place_of(address) for address in places)

    def statistics(self) -> StateStatistics:
        handle = self.handle
        return StateStatistics(
            entries=self._family.estimated_entries(),
            entries_are_exact=False,
            cache_misses=None if handle is None else handle.cache_misses,
        )

    @property
    def is_map(self) -> bool:
        """Whether a raw key has a user key after the namespace."""
        return self.schema.meta.form is TableForm.MAP

    @property
    def place(self) -> str:
        """The name of the column family that holds the rows."""
        return self._family.name

    def split_key(self) -> SplitKey:
        """The function that splits raw keys of this state."""
        if self.schema.meta.kind is PRIORITY_QUEUE:
            return split_element_key
        return self._sharing.raw_keys(
            restored_with(self.schema.meta_now().namespace_snapshot, *self.schema.serializers.values())
        ).split

    def scan(self) -> Generator[tuple[bytes, bytes], None, None]:
        """All entries written out before the call, in key order."""
        # A key group is less than 2**15, so the next one exists.
        key_groups = self._sharing.key_groups
        return self._scan(self._family.scan(KEY_GROUP.pack(key_groups.start), KEY_GROUP.pack(key_groups.end + 1)))

    def marks(self) -> Iterable[bytes]:
        """The deletion marks among the rows."""
        return (mark for mark, _ in self._family.scan_prefix(DELETION_MARK))

    def write_out(self) -> None:
        """Write the changes of the handle to the database."""
        if self.handle is not None:
            self._sharing.bounds.write_out(self.handle)

    def changes_of(self, handle: WriteBackCache, digest: ContentDigest) -> Iterator[tuple[list[bytes], list[Any]]]:
        """The changes of a handle, in parts: raw keys in order, and their values. Adds them to the digest."""
        seed, expired = state_seed(self.name), self.schema.expired_filter()
        while (drained := handle.drain()).keys:
            yield effective_changes(drained, self._family, digest, seed, expired)

    def ingest(self, path: str) -> None:
        """Move a finished file into the rows; its entries override all earlier ones."""
        self._family.ingest(path)

    def move_to(self, family: ColumnFamily | ReadOnlyRows, files: FileChain) -> None:
        """Replace the whole content; the caller drops the old one."""
        self._family, self.files = family, files
        if self.handle is not None:
            rows: StoredRows = family
            self.handle.stored_rows = rows

    def close(self) -> None:
        """Close the handle."""
        if self.handle is not None:
            self.handle.close()

    def _cache(self, context: HandleContext) -> tuple[Any, ...]:
        raw_keys = self._sharing.raw_keys(self.schema.serializers[NAMESPACE_ROLE])
        return self.name, context, raw_keys, self._family, self._sharing.bounds

    def _keep_last_namespace(self, namespace: bytes) -> None:
        self.last_namespace = namespace

    def _keep_queue_ends(self, ends: QueueEnds) -> None:
        self.queue_ends = ends

    def _addresses(self, rows: Iterable[tuple[bytes, bytes]]) -> Iterator[Address]:
        split = self.split_key()
        previous = None
        for raw_key, _ in rows:
            address = split(raw_key)[:3]
            if address != previous:
                previous = address
                yield address

    def _scan(self, rows: Scan) -> Generator[tuple[bytes, bytes], None, None]:
        try:
            yield from rows
        finally:
            rows.close()
        # The scan also ends when the database is closed; this raises, so that a part is not taken for the whole.
        self._sharing.check_open()
