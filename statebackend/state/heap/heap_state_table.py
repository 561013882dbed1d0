"""One state in the heap store: its content, the handle of an epoch, its size in memory, and its clean-up.

`estimated_bytes` samples the first entries. It counts shared objects once per entry and does not follow deep
references. Where entries are alike, the estimate is right to within a small factor, which is enough for a bound.

The clean-up of expired entries visits one key group at a time and sorts nothing. Starting a pass costs the size of a
key group, and a step costs little, because the time of a value is read in place. The first key group is that of the
current key. The start within the group depends on the time: keys are listed in insertion order, and the first ones may
be long-lived.

Tables are created with serializers or for bytes, and for use on another thread.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from statebackend.state.canonical import Address, CanonicalBatch, CanonicalRow, batches_of
from statebackend.state.clock import Clock
from statebackend.state.descriptors import USER_KEY_ROLE, StoredKind
from statebackend.state.entry_keys import EntryKeys, KeyForm
from statebackend.state.heap.entry_table import HeapTable, StateContent
from statebackend.state.heap.list_state import HeapListState, HeapObjectListState, HeapTimedListState, ListTable
from statebackend.state.heap.map_state import HeapMapState, HeapObjectMapState, MapTable
from statebackend.state.heap.priority_queue import HeapPriorityQueue, QueueTable
from statebackend.state.heap.row_table import HeapRowValueState, RowTable, ValueRowTable
from statebackend.state.heap.value_state import ValueTable, create_value_state
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_context import has_namespaces
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.list_state import InternalListState
from statebackend.state.map_state import InternalMapState
from statebackend.state.metrics import StateStatistics
from statebackend.state.state_kind import StateKind, TableForm
from statebackend.state.state_meta import NAMESPACE_ROLE, StateMeta, StateSchema
from statebackend.state.state_store import StateStore, StateTable
from statebackend.state.ttl import Pass, PassStart
from statebackend.state.value_forms import MemoryForm
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE

_SAMPLED: Final = (64, 16, 4, 4, 4, 2)
"""How many elements of a container are sampled, by depth; deeper elements are not visited."""


def estimated_bytes(value: Any, depth: int = 0) -> int:
    """The estimated bytes of a value with all that it refers to. Takes milliseconds at most, whatever the size."""
    size = sys.getsizeof(value, 64)
    if depth == len(_SAMPLED) or isinstance(value, (bytes, str, int, float, bool, type(None), type)):
        return size
    if isinstance(value, Mapping):
        return size + _of_all(itertools.chain.from_iterable(_first(value.items(), depth)), 2 * len(value), depth)
    if isinstance(value, (list, tuple, set, frozenset)):
        return size + _of_all(_first(value, depth), len(value), depth)
    fields = [*getattr(value, "__dict__", {}).values()]
    fields += [getattr(value, name, None) for name in getattr(type(value), "__slots__", ())]
    return size + sum(estimated_bytes(field, depth + 1) for field in fields)


def _first(elements: Iterable[Any], depth: int) -> Iterable[Any]:
    return itertools.islice(elements, _SAMPLED[depth])


def _of_all(sample: Iterable[Any], count: int, depth: int) -> int:
    sizes = [estimated_bytes(element, depth + 1) for element in sample]
    return sum(sizes) * count // len(sizes) if sizes else 0


_SCATTER: Final = 0x9E3779B97F4A7C15

_LONG_AGO: Final = -(1 << 64)


def places_of_table(
    table: HeapTable, form: TableForm, first_group: int, clock: Clock, ttl_ms: int
) -> Iterator[tuple[int, Any] | None]:
    """Yield key group and entry key of each entry, and None for a value that has not expired.

    Keys that were added or removed since may be missing or stale.
    """
    offset = ((clock() * _SCATTER) & 0xFFFFFFFFFFFFFFFF) >> 32
    time_of = _time_of_bytes if table.form.is_encoded else operator.itemgetter(1)
    if form is not TableForm.VALUE:
        time_of = _long_ago
    live = table.history.live
    for key_group, keys in table.live_keys(first_group):
        begin = offset % len(keys) if keys else 0
        last_expired_ms = clock() - ttl_ms
        for part in (keys[begin:], keys[:begin]):
            for key in part:
                stored = live.get(key)
                is_alive = stored is None or time_of(stored) > last_expired_ms
                yield None if is_alive else (key_group, key)
        # Only the first group starts in the middle. The pass reads all later groups whole.
        offset = 0


def _time_of_bytes(stored: bytes) -> int:
    return int.from_bytes(stored[:8], "big", signed=True)


def _long_ago(stored: Any) -> int:
    """For lists and maps: the handle reads their times."""
    return _LONG_AGO


_KEY_ROLES: Final = frozenset({NAMESPACE_ROLE, USER_KEY_ROLE})

_TABLES: Final[Mapping[TableForm, Callable[[str, EntryKeys, MemoryForm, KeyGroupRange, KeyForm], HeapTable]]] = {
    TableForm.VALUE: lambda name, keys, form, key_groups, _: ValueTable(name, keys, form, key_groups),
    TableForm.LIST: lambda name, keys, form, key_groups, _: ListTable(name, keys, form, key_groups),
    TableForm.MAP: MapTable,
}


def create_table(
    name: str,
    kind: StoredKind,
    key_serializer: TypeSerializer[Any],
    serializers: Mapping[str, TypeSerializer[Any]],
    key_groups: KeyGroupRange,
    *,
    is_bulk: bool = False,
) -> HeapTable:
    """Create an empty table. ``serializers`` are those of the descriptor by role, and the namespace serializer."""
    if not isinstance(kind, StateKind):
        return QueueTable(name, key_groups)
    if is_bulk and kind.form is TableForm.VALUE and serializers[NAMESPACE_ROLE].length > 0:
        return ValueRowTable(name, key_serializer, serializers[NAMESPACE_ROLE], key_groups)
    keys = EntryKeys(key_serializer, serializers[NAMESPACE_ROLE])
    is_immutable = all(
        serializer.is_immutable_type for role, serializer in serializers.items() if role not in _KEY_ROLES
    )
    form = MemoryForm(kind.storage_serializer(serializers), is_encoded=not is_immutable)
    return _TABLES[kind.form](name, keys, form, key_groups, KeyForm(serializers.get(USER_KEY_ROLE)))


def create_raw_table(meta: StateMeta, key_groups: KeyGroupRange) -> HeapTable:
    """Create an empty table of encoded entries, for a state that is not registered."""
    if not isinstance(meta.kind, StateKind):
        return QueueTable(meta.name, key_groups)
    form = MemoryForm(None, is_encoded=True)
    return _TABLES[meta.kind.form](meta.name, EntryKeys(None, None), form, key_groups, KeyForm(None))


def reading_table(
    table: HeapTable,
    kind: StoredKind,
    key_serializer: TypeSerializer[Any],
    serializers: Mapping[str, TypeSerializer[Any]],
    own: Mapping[str, TypeSerializer[Any]],
) -> HeapTable:
    """Return a table with which another thread reads frozen entries of ``table``.

    ``serializers`` are those of ``table``; ``own`` are duplicates for the thread.
    """
    if isinstance(table, RowTable):
        # It needs no serializer.
        return table
    own_key_serializer = key_serializer.duplicate()
    if own_key_serializer is key_serializer and all(own[role] is serializers[role] for role in own):
        return table
    return create_table(table.name, kind, own_key_serializer, own, table.key_groups)


class HeapStateTable(StateTable):
    """One state. ``content`` has a table of entries once the state is or was registered."""

    def __init__(self, schema: StateSchema, store: StateStore) -> None:
        super().__init__(schema)
        self.content = StateContent()
        self._store = store
        self._handle: Any = None

    def value_state(
        self, context: HandleContext, serializer: TypeSerializer[Any], default: Any
    ) -> InternalValueState[Any]:
        entries = self._entries()
        create: Any = HeapRowValueState if isinstance(entries, ValueRowTable) else create_value_state
        handle: InternalValueState[Any] = self._opened(create(entries, context, serializer, default))
        return handle

    def list_state(self, context: HandleContext, element_serializer: TypeSerializer[Any]) -> InternalListState[Any]:
        entries = self._entries()
        assert isinstance(entries, ListTable)
        objects = HeapTimedListState if entries.width == 2 else HeapObjectListState
        form = HeapListState if entries.form.is_encoded else objects
        handle: InternalListState[Any] = self._opened(form(entries, context, element_serializer))
        return handle

    def map_state(
        self, context: HandleContext, key_serializer: TypeSerializer[Any], value_serializer: TypeSerializer[Any]
    ) -> InternalMapState[Any, Any]:
        entries = self._entries()
        form = HeapMapState if entries.form.is_encoded else HeapObjectMapState
        handle: InternalMapState[Any, Any] = self._opened(form(entries, context, value_serializer))
        return handle

    def queue(self, element_serializer: TypeSerializer[Any]) -> HeapPriorityQueue[Any]:
        handle: HeapPriorityQueue[Any] = self._opened(HeapPriorityQueue(self._entries(), element_serializer))
        return handle

    def rows(self) -> Iterator[CanonicalRow]:
        return self._read_entries().rows()

    def addresses(self) -> Iterator[Address]:
        return self._read_entries().addresses()

    def batches(self) -> Iterable[CanonicalBatch]:
        """All entries, from the table or from the files."""
        if self.content.table is not None:
            return batches_of(self.content.table.rows())
        key_groups, local_directory = self._store.key_groups, self._store.parameters.local_directory
        return (batch for source in self.content.sources for batch in source.batches(key_groups, local_directory))

    def cleanup_pass(self, start: PassStart) -> Pass:
        kind = self.schema.meta.kind
        assert isinstance(kind, StateKind)
        expiry, entries = start.expiry, self._entries()
        places = places_of_table(entries, kind.form, start.key_group, expiry.clock, expiry.config.ttl_ms)
        if isinstance(entries, ValueRowTable):
            to_bytes, place_of = entries.keys.to_bytes, start.place_of
            return (place and place_of((place[0], *to_bytes(place[1]))) for place in places)
        if has_namespaces(self.schema.serializers[NAMESPACE_ROLE]):
            return (place and (place[0], *place[1]) for place in places)
        return (place and (*place, VOID_NAMESPACE) for place in places)

    def statistics(self) -> StateStatistics:
        entries = self.content.table
        return StateStatistics() if entries is None else StateStatistics(entries=entries.entry_count())

    def estimated_bytes(self) -> int:
        """The estimated memory of the entries."""
        return 0 if self.content.table is None else estimated_bytes(self.content.table.history.live)

    def close_handle(self) -> None:
        """Close the handle of this epoch, if there is one."""
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _entries(self) -> Any:
        """The table of entries, which exists since the state was registered."""
        assert self.content.table is not None
        return self.content.table

    def _opened(self, handle: Any) -> Any:
        """Register the handle, so that it is notified when its epoch ends."""
        self._entries().handle = self._handle = handle
        return handle

    def _read_entries(self) -> HeapTable:
        """The table of entries; for a state that is not registered, a temporary table of bytes."""
        if self.content.table is not None:
            return self.content.table
        table = create_raw_table(self.schema.meta, self._store.key_groups)
        for batch in self.batches():
            table.load_batch(batch, table.form.load)
        return table
