"""The tables of the kinds of state, made for serializers, for bytes, and for another thread; and their handles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from statebackend.api.descriptors import USER_KEY_ROLE, StateDescriptor, StateKind, storage_serializer
from statebackend.api.key_groups import KeyGroupRange
from statebackend.heap.list_state import HeapListState, ListTable
from statebackend.heap.map_state import HeapMapState, MapTable
from statebackend.heap.priority_queue import HeapPriorityQueue, QueueTable
from statebackend.heap.stored_form import EntryKeys, KeyForm, RawEntryKeys, RawKeyForm, RawStoredForm, StoredForm
from statebackend.heap.table import HeapTable
from statebackend.heap.value_state import ValueTable, create_value_state
from statebackend.keyed.key_context import AnyKeyContext
from statebackend.keyed.state_meta import StateMeta
from typeserializers.kernel.type_serializer import TypeSerializer

_KEY_ROLES: Final = frozenset({"namespace", USER_KEY_ROLE})

_Table = Callable[[str, EntryKeys, StoredForm, KeyGroupRange, KeyForm], HeapTable]

_TABLES: Final[dict[StateKind, _Table]] = {
    StateKind.VALUE: lambda name, keys, form, key_groups, _: ValueTable(name, keys, form, key_groups),
    StateKind.LIST: lambda name, keys, form, key_groups, _: ListTable(name, keys, form, key_groups),
    StateKind.MAP: MapTable,
    StateKind.REDUCING: lambda name, keys, form, key_groups, _: ValueTable(name, keys, form, key_groups),
    StateKind.AGGREGATING: lambda name, keys, form, key_groups, _: ValueTable(name, keys, form, key_groups),
    StateKind.PRIORITY_QUEUE: lambda name, _, form, key_groups, user_keys: QueueTable(name, key_groups),
}


_HANDLES: Final[dict[StateKind, Callable[[Any, Any, Any], Any]]] = {
    StateKind.VALUE: create_value_state,
    StateKind.LIST: HeapListState,
    StateKind.MAP: HeapMapState,
    StateKind.REDUCING: lambda table, context, descriptor: create_value_state(table, context, descriptor.stored_value),
    StateKind.AGGREGATING: lambda table, context, descriptor: create_value_state(
        table, context, descriptor.stored_value
    ),
    StateKind.PRIORITY_QUEUE: lambda table, _, descriptor: HeapPriorityQueue(table, descriptor.element_serializer),
}


def create_table(
    name: str,
    kind: StateKind,
    key_serializer: TypeSerializer[Any],
    serializers: Mapping[str, TypeSerializer[Any]],
    key_groups: KeyGroupRange,
) -> HeapTable:
    """An empty table; ``serializers`` are those of the descriptor by role, and that of namespaces."""
    keys = EntryKeys(KeyForm(key_serializer), serializers["namespace"])
    is_immutable = all(
        serializer.is_immutable_type for role, serializer in serializers.items() if role not in _KEY_ROLES
    )
    form = StoredForm(storage_serializer(kind, dict(serializers)), is_encoded=not is_immutable)
    user_keys = KeyForm(serializers[USER_KEY_ROLE]) if USER_KEY_ROLE in serializers else RawKeyForm()
    return _TABLES[kind](name, keys, form, key_groups, user_keys)


def create_raw_table(meta: StateMeta, key_groups: KeyGroupRange) -> HeapTable:
    """An empty table whose entries stay bytes, for a state that nobody has registered."""
    return _TABLES[meta.kind](meta.name, RawEntryKeys(), RawStoredForm(), key_groups, RawKeyForm())


def reading_table(
    table: HeapTable,
    kind: StateKind,
    key_serializer: TypeSerializer[Any],
    serializers: Mapping[str, TypeSerializer[Any]],
    own: Mapping[str, TypeSerializer[Any]],
) -> HeapTable:
    """A table through which another thread may read frozen entries of ``table``, which has these serializers.

    ``own`` are duplicates of them, which are the thread's.
    """
    own_key_serializer = key_serializer.duplicate()
    if own_key_serializer is key_serializer and all(own[role] is serializers[role] for role in own):
        return table
    return create_table(table.name, kind, own_key_serializer, own, table.key_groups)


def create_handle(table: HeapTable, context: AnyKeyContext, descriptor: StateDescriptor) -> Any:
    """A state handle, or a priority queue, over a table that was made for the descriptor."""
    return _HANDLES[descriptor.kind](table, context, descriptor)
