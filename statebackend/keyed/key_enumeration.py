"""Listing the keys of a state, and visiting them; the same for every store, over the addresses of what is stored."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final

from snapshots.errors import SerializationError
from statebackend.api.errors import StateBackendError
from statebackend.canonical.canonical_entries import Address
from statebackend.keyed.key_context import KeyContext, KeySetter
from statebackend.keyed.state_store import StateStore
from statebackend.kinds.internal_states import InternalState
from statebackend.queues.queue_kind import PRIORITY_QUEUE
from typeserializers.kernel.known_serializers import restored_with
from typeserializers.kernel.type_serializer import TypeSerializer

EVERY_NAMESPACE: Final[Any] = object()
"""Stands for all the namespaces there are."""


class KeyEnumeration:
    """The keys that have state in a store, registered or not.

    Costs a pass over the whole state. Whether what changes meanwhile is seen is open.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store

    def keys(self, name: str, namespace: Any) -> Iterator[Any]:
        """The keys that have the state of that name, in one namespace or in any, each once, in no promised order."""
        from_bytes = self._store.key_serializer.from_bytes
        if namespace is EVERY_NAMESPACE:
            return (from_bytes(key) for (_, key), _ in itertools.groupby(self._addresses(name), _key_of_address))
        return (from_bytes(key) for _, key in self._keys_in(name, namespace))

    def keys_and_namespaces(self, name: str) -> Iterator[tuple[Any, Any]]:
        """The pairs of key and namespace that have the state of that name, each once."""
        addresses, serializer = self._addresses(name), self._namespace_serializer(name)
        if serializer is None:
            return iter(())
        key_from_bytes, namespace_from_bytes = self._store.key_serializer.from_bytes, serializer.from_bytes
        return ((key_from_bytes(key), namespace_from_bytes(namespace)) for _, key, namespace in addresses)

    def visit(
        self,
        name: str,
        state: InternalState,
        namespace: Any,
        current: KeyContext,
        set_key: KeySetter,
        function: Callable[[Any, Any], object],
    ) -> None:
        """Calls ``function(key, state)`` for every key that has the state in the namespace, with that key current.

        The keys are listed first, so the function may change the state, of any key. Afterwards key and namespace are
        what they were; what the function raises ends the pass and is passed on.
        """
        if namespace is None:
            raise null_namespace(name)
        key_context = state.key_context
        entry_namespace = key_context.entry_namespace(namespace)
        previous = current.key, current.key_group, key_context.namespace
        from_bytes = self._store.key_serializer.from_bytes
        try:
            for key_group, key_bytes in list(self._keys_in(name, namespace)):
                key = from_bytes(key_bytes)
                set_key(key, key_group)
                key_context.enter(entry_namespace)
                function(key, state)
        finally:
            current.key, current.key_group, namespace_before = previous
            key_context.enter(namespace_before)

    def _keys_in(self, name: str, namespace: Any) -> Iterator[tuple[int, bytes]]:
        if namespace is None:
            raise null_namespace(name)
        addresses, serializer = self._addresses(name), self._namespace_serializer(name)
        if serializer is None:
            return iter(())
        wanted = serializer.to_bytes(namespace)
        return ((key_group, key) for key_group, key, found in addresses if found == wanted)

    def _addresses(self, name: str) -> Iterator[Address]:
        table = self._store.tables.get(name)
        if table is None:
            return iter(())
        if table.schema.meta.kind is PRIORITY_QUEUE:
            raise StateBackendError(f"state {name!r} is a priority queue, whose elements are not kept by key")
        addresses: Iterator[Address] = table.addresses()
        return addresses

    def _namespace_serializer(self, name: str) -> TypeSerializer[Any] | None:
        meta, table = self._store.state_meta_now(name), self._store.tables.get(name)
        if meta is None:
            return None
        return restored_with(meta.namespace_snapshot, *(() if table is None else table.schema.serializers.values()))


_key_of_address = operator.itemgetter(0, 1)


def null_namespace(state_name: str) -> SerializationError:
    """The refusal of None as a namespace."""
    return SerializationError(f"state {state_name!r}, the namespace", ("None is no namespace",))
