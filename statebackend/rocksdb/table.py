"""One state in RocksDB: the rows that are written out, the handle that holds what is not, and the files of snapshots.

Where the rows are (a column family) is known here, and to the database that makes them; whoever wants something of a
state asks its table. A state of several generations will have several places, which nobody else needs to see.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from attrs import define

from statebackend.api.key_groups import KeyGroupRange
from statebackend.canonical.canonical_entries import Address, CanonicalRow
from statebackend.keyed.key_context import has_namespaces
from statebackend.keyed.state_schema import NAMESPACE_ROLE, StateSchema
from statebackend.keyed.state_store import StateTable
from statebackend.kinds.internal_states import HandleContext
from statebackend.kinds.list_kind import InternalListState
from statebackend.kinds.map_kind import InternalMapState
from statebackend.kinds.state_kind import TableForm
from statebackend.kinds.value_kind import InternalValueState
from statebackend.metrics.state_metrics import StateStatistics
from statebackend.queues.queue_kind import PRIORITY_QUEUE
from statebackend.rocksdb.cached_state import CacheBounds, StoredRows, WriteBackCache
from statebackend.rocksdb.composite_key import DELETION_MARK, KEY_GROUP, RawKeys
from statebackend.rocksdb.content_digest import ContentDigest, state_seed
from statebackend.rocksdb.database_at_rest import RowsAtRest
from statebackend.rocksdb.effective_changes import effective_changes
from statebackend.rocksdb.engine import ColumnFamily, Scan
from statebackend.rocksdb.expired_rows import places_of_rows
from statebackend.rocksdb.file_chain import FileChain
from statebackend.rocksdb.list_state import ChunkSource, RocksDBListState
from statebackend.rocksdb.map_state import RocksDBMapState
from statebackend.rocksdb.priority_queue import QueueEnds, RocksDBPriorityQueue, split_element_key
from statebackend.rocksdb.value_state import create_value_state
from statebackend.ttl.expiry_sweep import Pass, PassStart
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

SplitKey = Callable[[bytes], tuple[int, bytes, bytes, bytes]]
"""From a raw key to key group, key, namespace and the rest."""


@define(eq=False)
class TableSharing:
    """What the tables of one store share.

    ``write_out`` brings what a handle holds into the database; ``first_new_chunk`` is the number of the first list
    chunk that no completed snapshot has.
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
    """See the module. ``handle`` is this epoch's, ``queue_ends`` say where a queue begins that is written out."""

    def __init__(
        self, schema: StateSchema, sharing: TableSharing, family: ColumnFamily | RowsAtRest, files: FileChain
    ) -> None:
        super().__init__(schema)
        self.files = files
        self.handle: WriteBackCache | None = None
        self.queue_ends = QueueEnds()
        self._sharing = sharing
        self._family = family

    def value_state(
        self, context: HandleContext, serializer: TypeSerializer[Any], default: Any
    ) -> InternalValueState[Any]:
        handle = self.handle = create_value_state(serializer, default, *self._cache(context))
        return handle

    def list_state(self, context: HandleContext, element_serializer: TypeSerializer[Any]) -> InternalListState[Any]:
        sharing = self._sharing
        chunks = ChunkSource(sharing.next_chunk_number, sharing.first_new_chunk, lambda: self.schema.expired_filter())
        handle = self.handle = RocksDBListState(element_serializer, chunks, *self._cache(context))
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
        """Whether what follows the namespace in a raw key is a user key."""
        return self.schema.meta.form is TableForm.MAP

    @property
    def place(self) -> str:
        """The name under which the database has the rows."""
        return self._family.name

    def split_key(self) -> SplitKey:
        """Takes raw keys of this state apart."""
        if self.schema.meta.kind is PRIORITY_QUEUE:
            return split_element_key
        return self._sharing.raw_keys(
            restored_with(self.schema.meta_now().namespace_snapshot, *self.schema.serializers.values())
        ).split

    def scan(self) -> Generator[tuple[bytes, bytes], None, None]:
        """All entries that are written out at the time of the call, in key order."""
        return self._scan(self._family.scan(KEY_GROUP.pack(self._sharing.key_groups.start)))

    def marks(self) -> Iterable[bytes]:
        """The marks of deletions among the rows."""
        return (mark for mark, _ in self._family.scan_prefix(DELETION_MARK))

    def write_out(self) -> None:
        """Brings what the handle holds into the database."""
        if self.handle is not None:
            self._sharing.bounds.write_out(self.handle)

    def changes_of(self, handle: WriteBackCache, digest: ContentDigest) -> Iterator[tuple[list[bytes], list[Any]]]:
        """What a handle holds back, a part at a time: raw keys in order, and their values; counts them in."""
        seed, expired = state_seed(self.name), self.schema.expired_filter()
        while (drained := handle.drain()).keys:
            yield effective_changes(drained, self._family, digest, seed, expired)

    def ingest(self, path: str) -> None:
        """Moves a finished file into the rows; its entries override all earlier ones."""
        self._family.ingest(path)

    def move_to(self, family: ColumnFamily | RowsAtRest, files: FileChain) -> None:
        """Makes what is there the whole content; the caller drops what was there before."""
        self._family, self.files = family, files
        if self.handle is not None:
            rows: StoredRows = family
            self.handle.stored_rows = rows

    def close(self) -> None:
        """Ends the handle."""
        if self.handle is not None:
            self.handle.close()

    def _cache(self, context: HandleContext) -> tuple[Any, ...]:
        raw_keys = self._sharing.raw_keys(self.schema.serializers[NAMESPACE_ROLE])
        return self.name, context, raw_keys, self._family, self._sharing.bounds

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
        # Whole keys are compared, since that is one step; a key group is less than 2**15, so that there is one behind.
        behind = KEY_GROUP.pack(self._sharing.key_groups.end + 1)
        try:
            for raw_key, value in rows:
                if raw_key >= behind:
                    return
                yield raw_key, value
        finally:
            rows.close()
        # A scan also ends when the database is closed; what was read of it must not pass for the whole.
        self._sharing.check_open()
