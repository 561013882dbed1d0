"""Addresses, keys and values as bytes, for a backend that stores bytes at once instead of keeping objects in a cache.

What a handle is given is encoded when it is given, and decoded when it is asked for. That alone makes true most of
what the contract asks of values: a misfit is refused before anything changes, what was given or returned is the
caller's own, a value is what its bytes say from the first read on.

The address of the current key is encoded once per key: a handle asks for it at every access.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError
from snapshots.value_text import shown
from statebackend.api.errors import null_element, unreadable_entry
from statebackend.keyed.key_context import AnyKeyContext, has_namespaces
from statebackend.keyed.key_enumeration import Address
from statebackend.keyed.keyed_state_backend import KeyedStateBackend
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE

T = TypeVar("T")

_NOTHING: Final[Any] = object()


class EntryEncoder:
    """The encodings of one state of a backend; ``context`` is the key context of its handle.

    To be made in `KeyedStateBackend.create_state`, with the namespace serializer that it was given.
    """

    __slots__ = ("_address", "_key_group", "_key_groups", "_key_to_bytes", "_last_key", "context", "name")

    def __init__(self, backend: KeyedStateBackend, state_name: str, namespace_serializer: TypeSerializer[Any]) -> None:
        self.name = state_name
        self.context: AnyKeyContext = backend.key_context_for(state_name, namespace_serializer)
        self._key_groups = backend.key_group_range
        self._key_to_bytes = _entry_key_encoder(backend.key_serializer, namespace_serializer, f"state {state_name!r}")
        self._last_key: Any = _NOTHING
        self._key_group = -1
        self._address: Address = (-1, b"", b"")

    def address(self) -> Address:
        """Where the state of the current key and namespace is: key group, and the bytes of key and namespace.

        Raises `NoCurrentKeyError` while no key is current, `StateBackendError` while no namespace is current or for a
        key group of another subtask, `SerializationError` for a key that does not fit.
        """
        key, key_group = self.context.key, self.context.key_group
        if key == self._last_key and key_group == self._key_group:
            return self._address
        # What stands for 'no current key' and 'no current namespace' says so when it is hashed.
        hash(key)
        self._key_groups.require(key_group)
        self._address = (key_group, *self._key_to_bytes(key))
        self._last_key, self._key_group = key, key_group
        return self._address

    def encode(self, serializer: TypeSerializer[T], value: T) -> bytes:
        """The bytes of a value; raises `SerializationError`, naming the state and the path in the value."""
        try:
            return serializer.to_bytes(value)
        except SerializationError as error:
            raise error.within(f"state {self.name!r}") from error

    def encode_user_key(self, serializer: TypeSerializer[T], key: T) -> bytes:
        """The bytes of a key of a map, as `encode`; None is refused even if the serializer would write it."""
        if key is None:
            raise SerializationError(f"state {self.name!r}", ("None cannot be a key of a map state",))
        return self.encode(serializer, key)

    def encode_user_value(self, serializer: TypeSerializer[T], key: Any, value: T) -> bytes:
        """The bytes of a value of a map, as `encode`; an error names the key too."""
        try:
            return self.encode(serializer, value)
        except SerializationError as error:
            raise error.at(f"{{{shown(key)}}}") from error

    def checked_elements(self, elements: Iterable[T]) -> list[T]:
        """The elements to add to a list, as a list; None among them is refused, with its place."""
        checked = list(elements)
        for position, element in enumerate(checked):
            if element is None:
                raise null_element(f"state {self.name!r}", position)
        return checked

    def decode(self, serializer: TypeSerializer[T], data: bytes) -> T:
        """The value of stored bytes; raises `StateRestoreError`, naming the state, if they are not the serializer's."""
        try:
            return serializer.from_bytes(data)
        except Exception as error:
            raise unreadable_entry(f"state {self.name!r}", serializer, error) from error


def _entry_key_encoder(
    key_serializer: TypeSerializer[Any], namespace_serializer: TypeSerializer[Any], where: str
) -> Callable[[Any], tuple[bytes, bytes]]:
    """A function from what stands for key and namespace in a key context to their bytes."""
    key_to_bytes = _part_encoder(key_serializer, f"{where}, the current key")
    if has_namespaces(namespace_serializer):
        namespace_to_bytes = _part_encoder(namespace_serializer, f"{where}, the namespace")
        return lambda pair: (key_to_bytes(pair[0]), namespace_to_bytes(pair[1]))
    void = namespace_serializer.to_bytes(VOID_NAMESPACE)
    return lambda key: (key_to_bytes(key), void)


def _part_encoder(serializer: TypeSerializer[Any], where: str) -> Callable[[Any], bytes]:
    if not serializer.equal_values_have_equal_bytes:
        # The bytes stand for the value already.
        return bytes

    def to_bytes(value: Any) -> bytes:
        try:
            return serializer.to_bytes(value)
        except SerializationError as error:
            raise error.within(where) from error

    return to_bytes
