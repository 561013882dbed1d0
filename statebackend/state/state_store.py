"""The interface that a backend implements: heap, RocksDB and third-party stores.

A `StateStore` keeps the entries of one subtask's states, each in a `StateTable`. It does not know about current keys,
registrations, compatibility, time-to-live or metrics: `KeyedStateBackend` adds these. A table has one of three forms
(`TableForm`), or holds a priority queue. It returns a handle of its form; every kind of state is built on one.

The life of a state in a store:

    restore       the tables of all restored states exist; their bytes are unchanged
    create_table  an empty table, for a state that was not restored
    restore_as_is the entries already have the schema of the descriptor; its serializers read them
    rewrite       all entries are rewritten in the schema of the descriptor
    value_state, list_state, map_state, queue    the handle; once per epoch

A state that is not registered keeps its bytes and its schema, and is part of every snapshot.

A later store of *generations* could migrate lazily: a table has a part per schema
(`statebackend.state.state_meta.SchemaPart`), and its handle looks in the newest part first and moves what it finds in
an older one. So callers use a table instead of a location, and get a handle only after `restore_as_is` or `rewrite`.
"""

from __future__ import annotations

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

from statebackend.state.backend_parameters import (
    KeyedStateBackendParameters,
    KeyedStateSnapshotTask,
    RestoredHandle,
    RestoredStates,
)
from statebackend.state.canonical import Address, CanonicalRow
from statebackend.state.entry_migration import EntryMigration
from statebackend.state.errors import StateBackendClosedError, StateRegistrationError
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.list_state import InternalListState
from statebackend.state.map_state import InternalMapState
from statebackend.state.metrics import StateStatistics
from statebackend.state.priority_queue import KeyGroupedPriorityQueue
from statebackend.state.state_meta import KeyedStateMeta, StateMeta, StateSchema
from statebackend.state.ttl import Pass, PassStart
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.type_serializer import TypeSerializer


class StateTable(ABC):
    """The entries of one state in a store. ``schema`` is their schema; the store replaces it.

    A handle reads the current key from its context: the entry key of the key and, with namespaces, of the namespace
    (`statebackend.state.entry_keys`).
    """

    def __init__(self, schema: StateSchema) -> None:
        self.schema = schema

    @property
    def name(self) -> str:
        """The name of the state."""
        return self.schema.meta.name

    @abstractmethod
    def value_state(
        self, context: HandleContext, serializer: TypeSerializer[Any], default: Any
    ) -> InternalValueState[Any]:
        """The handle of a table of single values; a read without a value returns ``default``."""

    @abstractmethod
    def list_state(self, context: HandleContext, element_serializer: TypeSerializer[Any]) -> InternalListState[Any]:
        """The handle of a table of lists."""

    @abstractmethod
    def map_state(
        self, context: HandleContext, key_serializer: TypeSerializer[Any], value_serializer: TypeSerializer[Any]
    ) -> InternalMapState[Any, Any]:
        """The handle of a table of maps."""

    def queue(self, element_serializer: TypeSerializer[Any]) -> KeyGroupedPriorityQueue[Any]:
        """The handle of a priority queue. A store without priority queues keeps this default, which raises.

        `statebackend.state.rocksdb.priority_queue` has a base class that orders a queue and merges its changes: a store
        passes it pages of stored elements, and writes out what it drains.
        """
        raise StateRegistrationError(f"state {self.name!r}: this backend keeps no priority queues; use another one")

    @abstractmethod
    def rows(self) -> Iterator[CanonicalRow]:
        """Yield all entries in canonical form and order, including those that handles have not written out.

        Raises:
            StateBackendClosedError: The store was closed during the iteration, so the rows are incomplete.
        """

    @abstractmethod
    def addresses(self) -> Iterator[Address]:
        """Yield the addresses that have the state, each once, in order; otherwise as `rows`.

        For a priority queue, elements replace the keys.
        """

    def cleanup_pass(self, start: PassStart) -> Pass:
        """One pass of the incremental clean-up over the state (`statebackend.state.ttl`).

        It must be cheap to start and to continue, and tolerate any change of the state. This default lists all
        addresses at its start.
        """
        addresses = list(self.addresses())
        first = bisect.bisect_left(addresses, (start.key_group, start.key, b""))
        return map(start.place_of, itertools.chain(addresses[first:], addresses[:first]))

    def statistics(self) -> StateStatistics:
        """The store's own metrics of the state; empty by default.

        Called at most once per snapshot, if metrics are on. It should be cheap, whatever the size of the state.
        """
        return StateStatistics()


class StateStore(ABC):
    """The states of one subtask and its range of key groups, in one thread; only snapshot tasks may run on others.

    Attributes:
        format: The name of the file format, which handles store.
        tables: The tables by name, in the order of their creation.
        sequence: The next number of a list chunk. It only grows, across snapshots too.
    """

    format: ClassVar[str]

    def __init__(self, parameters: KeyedStateBackendParameters, key_serializer: TypeSerializer[Any]) -> None:
        self.parameters = parameters
        self.key_serializer = key_serializer
        self.tables: dict[str, Any] = {}
        self.sequence = 0
        self.is_local = False
        """Whether the restore found its state on the local disk or in the process, and read no files."""
        self.is_closed = False

    @property
    def key_groups(self) -> KeyGroupRange:
        """The key groups of the subtask."""
        return self.parameters.key_group_range

    @abstractmethod
    def restore(self, restored: RestoredStates) -> None:
        """Make the tables of all restored states; called once, first, on a store without tables.

        Rows of other key groups are skipped.

        Raises:
            StorageError: A file is missing or damaged.
        """

    @abstractmethod
    def create_table(self, schema: StateSchema) -> StateTable:
        """Add an empty table to ``tables``."""

    @abstractmethod
    def restore_as_is(self, table: Any, schema: StateSchema) -> None:
        """Keep the entries unchanged; the serializers of the schema read them from now on.

        Raises:
            StateRestoreError: The store reads the entries now, and fails. The table is unchanged.
        """

    @abstractmethod
    def rewrite(self, table: Any, schema: StateSchema, migration: EntryMigration) -> int:
        """Rewrite all entries for a schema; return their number, and report progress.

        The migrated rows go through `EntryMigration.with_new_keys`, in canonical order.

        Raises `EntryMigration.failure` for an entry that cannot be migrated; the table is then unchanged.
        """

    @abstractmethod
    def freeze(self, checkpoint_id: int, state_id: str) -> KeyedStateSnapshotTask:
        """Freeze the current state, and return the task that writes the changes since the last snapshot.

        This call does everything that another thread cannot do. A fully synchronous store writes here, and its task
        only returns the result.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything and close the handles; may be called during `restore`, and twice."""

    def snapshot_written(self, checkpoint_id: int) -> None:  # noqa: B027
        """Called on the owner's thread if the last snapshot was written before any other call."""

    def next_chunk_number(self) -> int:
        """The number of the next list chunk."""
        number = self.sequence
        self.sequence += 1
        return number

    def meta_now(self) -> KeyedStateMeta:
        """The current metadata of all states, registered or not, without files.

        Serializers may learn while they write, so each call takes their snapshots again.
        """
        states = tuple(table.schema.meta_now() for table in self.tables.values())
        return KeyedStateMeta(self.key_serializer.snapshot_configuration(), self.sequence, states)

    def state_meta_now(self, name: str) -> StateMeta | None:
        """The current metadata of one state; None for an unknown name."""
        table = self.tables.get(name)
        return None if table is None else table.schema.meta_now()

    def check_open(self) -> None:
        """Raise `StateBackendClosedError` once the store is closed."""
        if self.is_closed:
            raise closed_error(self.parameters.operator_uid)

    def may_refer_to(self, restored: RestoredHandle) -> bool:
        """Whether snapshots may refer to the files of a restored handle.

        They may if the files are in the store's own format, hold only keys of this subtask, and are in its file system.
        Otherwise the first snapshot must write a new base.
        """
        handle = restored.handle
        return (
            handle.backend == self.format
            and KeyGroupRange(handle.key_group_start, handle.key_group_end) == self.key_groups
            and restored.file_system.uri == self.parameters.file_system.uri
        )


def closed_error(operator_uid: str) -> StateBackendClosedError:
    """The error for using a backend or its store after it was closed."""
    return StateBackendClosedError(
        f"the state of operator {operator_uid!r} is closed; "
        f"state handles live for one epoch and are made again in open()"
    )
