"""One state in the SQLite store: its rows in the database, its files in the file system, and its handle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlite_state.database import StoredTable
from sqlite_state.priority_queue import SqlitePriorityQueue
from sqlite_state.state_handles import SqliteListState, SqliteMapState, SqliteValueState
from statebackend.state.canonical import Address, CanonicalRow
from statebackend.state.entry_keys import CurrentAddress
from statebackend.state.internal_states import HandleContext
from statebackend.state.metrics import StateStatistics
from statebackend.state.state_files import StateFiles
from statebackend.state.state_kind import TableForm
from statebackend.state.state_meta import NAMESPACE_ROLE, StateSchema
from statebackend.state.state_store import StateStore, StateTable
from typeserializers import TypeSerializer


class SqliteTable(StateTable):
    """The table of one state."""

    def __init__(self, schema: StateSchema, store: StateStore, stored: StoredTable) -> None:
        super().__init__(schema)
        self.stored = stored
        self.files = StateFiles()
        self._store = store
        self._queue: SqlitePriorityQueue[Any] | None = None

    @property
    def is_map(self) -> bool:
        """Whether the part of a row is a user key."""
        return self.schema.meta.form is TableForm.MAP

    def value_state(
        self, context: HandleContext, serializer: TypeSerializer[Any], default: Any
    ) -> SqliteValueState[Any]:
        return SqliteValueState(*self._shared(context), serializer=serializer, default=default)

    def list_state(self, context: HandleContext, element_serializer: TypeSerializer[Any]) -> SqliteListState[Any]:
        return SqliteListState(
            *self._shared(context),
            element_serializer=element_serializer,
            next_chunk_number=self._store.next_chunk_number,
        )

    def map_state(
        self, context: HandleContext, key_serializer: TypeSerializer[Any], value_serializer: TypeSerializer[Any]
    ) -> SqliteMapState[Any, Any]:
        return SqliteMapState(*self._shared(context), key_serializer=key_serializer, value_serializer=value_serializer)

    def queue(self, element_serializer: TypeSerializer[Any]) -> SqlitePriorityQueue[Any]:
        self._queue = SqlitePriorityQueue(self.name, element_serializer, self._store.key_groups, self.stored)
        return self._queue

    def rows(self) -> Iterator[CanonicalRow]:
        self.write_back()
        is_map = self.is_map
        return ((*row[:3], row[3] if is_map else None, row[4]) for row in self.stored.rows())

    def addresses(self) -> Iterator[Address]:
        self.write_back()
        return self.stored.addresses()

    def statistics(self) -> StateStatistics:
        return StateStatistics(entries=self.stored.row_count())

    def write_back(self) -> None:
        """Write the changes of a queue."""
        if self._queue is not None:
            self._queue.write_back()

    def close(self) -> None:
        """Close a queue."""
        if self._queue is not None:
            self._queue.close()

    def _shared(self, context: HandleContext) -> tuple[Any, ...]:
        store = self._store
        namespace_serializer = self.schema.serializers[NAMESPACE_ROLE]
        address = CurrentAddress(context, store.key_serializer, namespace_serializer, store.key_groups, self.name)
        return self.name, self.stored, context, address
