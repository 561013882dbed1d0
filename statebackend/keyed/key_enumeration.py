"""Listing the keys of a state, and visiting them; the same for every backend, over the addresses of what is stored."""

from __future__ import annotations

import itertools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Final

from snapshots.errors import SerializationError
from statebackend.api.descriptors import StateDescriptor, StateKind
from statebackend.api.errors import StateBackendError
from statebackend.keyed.backend_parameters import KeyedStateBackendParameters
from statebackend.keyed.key_context import KeyContext
from statebackend.keyed.state_meta import KeyedStateMeta, StateMeta
from typeserializers.kernel.type_serializer import TypeSerializer

Address = tuple[int, bytes, bytes]
"""Where state is: key group, and the bytes of key and namespace."""

_EVERY_NAMESPACE: Final[Any] = object()


class KeyEnumeration(ABC):
    """What a backend knows of its keys: the current one, and those that have state."""

    def __init__(self, parameters: KeyedStateBackendParameters) -> None:
        self.parameters = parameters
        self.key_serializer = parameters.key_serializer
        self.context = KeyContext()

    @abstractmethod
    def current_meta(self) -> KeyedStateMeta:
        """The states as they are now, registered or not, without files.

        Now: serializers may learn while they write, so their snapshots are taken anew each time.
        """

    def state_meta(self, name: str) -> StateMeta | None:
        """The state of that name as it is now, registered or not, without files; None for an unknown name.

        A backend that need not look at all its states for that overrides it.
        """
        return self.current_meta().state(name)

    @abstractmethod
    def stored_addresses(self, name: str) -> Iterator[Address]:
        """The addresses that have the state of that name, each once, sorted; none for an unknown name.

        Works for unregistered states too. The elements of a priority queue stand in the place of keys.
        """

    @abstractmethod
    def get_or_create_keyed_state(self, namespace_serializer: TypeSerializer[Any], descriptor: StateDescriptor) -> Any:
        """The handle of a state with namespaces, registered on first use."""

    @abstractmethod
    def set_current_key(self, key: Any, key_group: int) -> None:
        """Makes a key current."""

    @abstractmethod
    def check_open(self) -> None:
        """Raises `StateBackendClosedError` after `close`."""

    def get_keys(self, name: str, namespace: Any = _EVERY_NAMESPACE) -> Iterator[Any]:
        """The keys that have the state of that name, in one namespace or in any, each once, in no promised order.

        Works for unregistered states too. Costs a pass over the whole state. Whether what changes meanwhile is seen is
        open; `apply_to_all_keys` lists the keys first.
        """
        self.check_open()
        self._check_has_keys(name)
        from_bytes = self.key_serializer.from_bytes
        if namespace is _EVERY_NAMESPACE:
            return (from_bytes(key) for (_, key), _ in itertools.groupby(self.stored_addresses(name), _key_of_address))
        return (from_bytes(key) for _, key in self._keys_in(name, namespace))

    def get_keys_and_namespaces(self, name: str) -> Iterator[tuple[Any, Any]]:
        """The pairs of key and namespace that have the state of that name, each once; otherwise as `get_keys`."""
        self.check_open()
        self._check_has_keys(name)
        serializer = self.stored_namespace_serializer(name)
        if serializer is None:
            return iter(())
        key_from_bytes, namespace_from_bytes = self.key_serializer.from_bytes, serializer.from_bytes
        return (
            (key_from_bytes(key), namespace_from_bytes(namespace)) for _, key, namespace in self.stored_addresses(name)
        )

    def apply_to_all_keys(
        self,
        namespace: Any,
        namespace_serializer: TypeSerializer[Any],
        descriptor: StateDescriptor,
        function: Callable[[Any, Any], object],
    ) -> None:
        """Calls ``function(key, state)`` for every key that has the state in the namespace, with that key current.

        The keys are listed first, so the function may change the state, of any key. Afterwards key and namespace are
        what they were; what the function raises ends the pass and is passed on.
        """
        state = self.get_or_create_keyed_state(namespace_serializer, descriptor)
        if namespace is None:
            raise null_namespace(descriptor.name)
        key_context, context = state.key_context, self.context
        entry_namespace = key_context.entry_namespace(namespace)
        previous = context.key, context.key_group, key_context.namespace
        from_bytes = self.key_serializer.from_bytes
        try:
            for key_group, key_bytes in list(self._keys_in(descriptor.name, namespace)):
                key = from_bytes(key_bytes)
                self.set_current_key(key, key_group)
                key_context.enter(entry_namespace)
                function(key, state)
        finally:
            context.key, context.key_group, namespace_before = previous
            key_context.enter(namespace_before)

    def _keys_in(self, name: str, namespace: Any) -> Iterator[tuple[int, bytes]]:
        if namespace is None:
            raise null_namespace(name)
        serializer = self.stored_namespace_serializer(name)
        if serializer is None:
            return iter(())
        wanted = serializer.to_bytes(namespace)
        return ((key_group, key) for key_group, key, found in self.stored_addresses(name) if found == wanted)

    def _check_has_keys(self, name: str) -> None:
        meta = self.state_meta(name)
        if meta is not None and meta.kind is StateKind.PRIORITY_QUEUE:
            raise StateBackendError(f"state {name!r} is a priority queue, whose elements are not kept by key")

    def stored_namespace_serializer(self, name: str) -> TypeSerializer[Any] | None:
        meta = self.state_meta(name)
        return None if meta is None else meta.namespace_snapshot.restore_serializer()


_key_of_address = operator.itemgetter(0, 1)


def null_namespace(state_name: str) -> SerializationError:
    """The refusal of None as a namespace."""
    return SerializationError(f"state {state_name!r}, the namespace", ("None is no namespace",))
