"""One state in the heap store: its content, and the one handle of an epoch over it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from statebackend.canonical.canonical_entries import Address, CanonicalBatch, CanonicalRow, batches_of
from statebackend.heap.entry_table import HeapTable
from statebackend.heap.entry_table_creation import create_raw_table
from statebackend.heap.expired_places import places_of_table
from statebackend.heap.list_state import HeapListState
from statebackend.heap.map_state import HeapMapState
from statebackend.heap.priority_queue import HeapPriorityQueue
from statebackend.heap.size_estimate import estimated_bytes
from statebackend.heap.state_content import StateContent
from statebackend.heap.value_state import create_value_state
from statebackend.keyed.key_context import has_namespaces
from statebackend.keyed.state_schema import NAMESPACE_ROLE, StateSchema
from statebackend.keyed.state_store import StateStore, StateTable
from statebackend.kinds.internal_states import HandleContext
from statebackend.kinds.list_kind import InternalListState
from statebackend.kinds.map_kind import InternalMapState
from statebackend.kinds.state_kind import StateKind
from statebackend.kinds.value_kind import InternalValueState
from statebackend.metrics.state_metrics import StateStatistics
from statebackend.ttl.expiry_sweep import Pass, PassStart
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE


class HeapStateTable(StateTable):
    """See the module. ``content`` has a table of entries once the state is or was registered."""

    def __init__(self, schema: StateSchema, store: StateStore) -> None:
        super().__init__(schema)
        self.content = StateContent()
        self._store = store
        self._handle: Any = None

    def value_state(
        self, context: HandleContext, serializer: TypeSerializer[Any], default: Any
    ) -> InternalValueState[Any]:
        entries = self._entries()
        handle: InternalValueState[Any] = self._opened(create_value_state(entries, context, serializer, default))
        return handle

    def list_state(self, context: HandleContext, element_serializer: TypeSerializer[Any]) -> InternalListState[Any]:
        entries = self._entries()
        handle: InternalListState[Any] = self._opened(HeapListState(entries, context, element_serializer))
        return handle

    def map_state(
        self, context: HandleContext, key_serializer: TypeSerializer[Any], value_serializer: TypeSerializer[Any]
    ) -> InternalMapState[Any, Any]:
        entries = self._entries()
        handle: InternalMapState[Any, Any] = self._opened(HeapMapState(entries, context, value_serializer))
        return handle

    def queue(self, element_serializer: TypeSerializer[Any]) -> HeapPriorityQueue[Any]:
        handle: HeapPriorityQueue[Any] = self._opened(HeapPriorityQueue(self._entries(), element_serializer))
        return handle

    def rows(self) -> Iterator[CanonicalRow]:
        return self._read_entries().rows()

    def addresses(self) -> Iterator[Address]:
        return self._read_entries().addresses()

    def batches(self) -> Iterable[CanonicalBatch]:
        """All entries, from the table or the files they are in."""
        if self.content.table is not None:
            return batches_of(self.content.table.rows())
        key_groups, local_directory = self._store.key_groups, self._store.parameters.local_directory
        return (batch for source in self.content.sources for batch in source.batches(key_groups, local_directory))

    def cleanup_pass(self, start: PassStart) -> Pass:
        kind = self.schema.meta.kind
        assert isinstance(kind, StateKind)
        expiry = start.expiry
        places = places_of_table(self._entries(), kind.form, start.key_group, expiry.clock, expiry.config.ttl_ms)
        if has_namespaces(self.schema.serializers[NAMESPACE_ROLE]):
            return (place and (place[0], *place[1]) for place in places)
        return (place and (*place, VOID_NAMESPACE) for place in places)

    def statistics(self) -> StateStatistics:
        entries = self.content.table
        return StateStatistics() if entries is None else StateStatistics(entries=entries.entry_count())

    def estimated_bytes(self) -> int:
        """About how much of Python's memory the entries take."""
        return 0 if self.content.table is None else estimated_bytes(self.content.table.history.live)

    def close_handle(self) -> None:
        """Ends the handle of this epoch, if there is one."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _entries(self) -> Any:
        """The table of entries, which there is since the state was registered."""
        assert self.content.table is not None
        return self.content.table

    def _opened(self, handle: Any) -> Any:
        """Has the handle told when its epoch ends."""
        self._entries().handle = self._handle = handle
        return handle

    def _read_entries(self) -> HeapTable:
        """The table of entries; for a state that nobody registered, a table of bytes that is not kept."""
        if self.content.table is not None:
            return self.content.table
        table = create_raw_table(self.schema.meta, self._store.key_groups)
        for batch in self.batches():
            table.load_batch(batch, table.form.load)
        return table
