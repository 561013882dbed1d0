"""The tables of the heap by form, made for serializers, for bytes, and for another thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from statebackend.api.descriptors import USER_KEY_ROLE, StoredKind
from statebackend.api.key_groups import KeyGroupRange
from statebackend.heap.entry_table import HeapTable
from statebackend.heap.list_state import ListTable
from statebackend.heap.map_state import MapTable
from statebackend.heap.priority_queue import QueueTable
from statebackend.heap.value_state import ValueTable
from statebackend.keyed.entry_keys import EntryKeys, KeyForm
from statebackend.keyed.memory_form import MemoryForm
from statebackend.keyed.state_meta import StateMeta
from statebackend.keyed.state_schema import NAMESPACE_ROLE
from statebackend.kinds.state_kind import StateKind, TableForm
from typeserializers.kernel.type_serializer import TypeSerializer

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
) -> HeapTable:
    """An empty table; ``serializers`` are those of the descriptor by role, and that of namespaces."""
    if not isinstance(kind, StateKind):
        return QueueTable(name, key_groups)
    keys = EntryKeys(key_serializer, serializers[NAMESPACE_ROLE])
    is_immutable = all(
        serializer.is_immutable_type for role, serializer in serializers.items() if role not in _KEY_ROLES
    )
    form = MemoryForm(kind.storage_serializer(serializers), is_encoded=not is_immutable)
    return _TABLES[kind.form](name, keys, form, key_groups, KeyForm(serializers.get(USER_KEY_ROLE)))


def create_raw_table(meta: StateMeta, key_groups: KeyGroupRange) -> HeapTable:
    """An empty table whose entries stay bytes, for a state that nobody has registered."""
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
    """A table through which another thread may read frozen entries of ``table``, which has these serializers.

    ``own`` are duplicates of them, which are the thread's.
    """
    own_key_serializer = key_serializer.duplicate()
    if own_key_serializer is key_serializer and all(own[role] is serializers[role] for role in own):
        return table
    return create_table(table.name, kind, own_key_serializer, own, table.key_groups)
