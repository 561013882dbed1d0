"""Entry keys: the dict keys that represent keys and namespaces, and their conversion from and to bytes.

A value represents itself if equal values have equal bytes. Otherwise its bytes represent it: two NaNs are unequal in
Python, but are one key. The entry key of a state with namespaces is a pair, for the key and the namespace.

Values are encoded when they are passed in and decoded when they are read. Three properties follow: an invalid value is
rejected before anything changes; a caller's object is never shared with the state; and a value equals what its bytes
contain from the first read on.

`ClosedEntries` replaces the entries of a handle after its backend is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from operator import is_
from typing import Any, Final, TypeVar

from snapshots.errors import SerializationError, format_value
from statebackend.state.canonical import Address
from statebackend.state.errors import StateBackendClosedError, null_element, unreadable_entry
from statebackend.state.internal_states import HandleContext
from statebackend.state.key_context import has_namespaces
from statebackend.state.key_groups import KeyGroupRange
from statebackend.state.value_forms import compile_exact
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE


class ClosedEntries:
    """Rejects every access to a closed state with an error that names the state."""

    def __init__(self, name: str) -> None:
        self._name = name

    def _reject(self, *_: Any) -> Any:
        raise StateBackendClosedError(
            f"state {self._name!r} is closed: state handles live for one epoch and are made again in open()"
        )

    get = __getitem__ = __setitem__ = __contains__ = __len__ = __iter__ = _reject


T = TypeVar("T")


def encoded(state_name: str, serializer: TypeSerializer[T], value: T) -> bytes:
    """Encode a value; raise `SerializationError` with the state and the path in the value."""
    try:
        return serializer.to_bytes(value)
    except SerializationError as error:
        raise error.within(f"state {state_name!r}") from error


def encoded_user_key(state_name: str, serializer: TypeSerializer[T], key: T) -> bytes:
    """Encode a key of a map like `encoded`; None is rejected even if the serializer accepts it."""
    if key is None:
        raise SerializationError(f"state {state_name!r}", ("None cannot be a key of a map state",))
    return encoded(state_name, serializer, key)


def encoded_user_value(state_name: str, serializer: TypeSerializer[T], key: Any, value: T) -> bytes:
    """Encode a value of a map like `encoded`; an error also names the key."""
    try:
        return encoded(state_name, serializer, value)
    except SerializationError as error:
        raise error.at(f"{{{format_value(key)}}}") from error


def checked_elements(state_name: str, elements: Iterable[T]) -> list[T]:
    """Return the elements to add to a list, as a list; an error for None names its position."""
    checked = list(elements)
    if any(map(is_, checked, repeat(None))):
        position = next(place for place, element in enumerate(checked) if element is None)
        raise null_element(f"state {state_name!r}", position)
    return checked


def decoded(state_name: str, serializer: TypeSerializer[T], data: bytes) -> T:
    """Decode stored bytes; raise `StateRestoreError` with the state if another serializer wrote them."""
    try:
        return serializer.from_bytes(data)
    except Exception as error:
        raise unreadable_entry(f"state {state_name!r}", serializer, error) from error


_NOTHING: Final[Any] = object()


def _itself(value: Any) -> Any:
    return value


class KeyForm:
    """The form of one kind of key in a dict; without a serializer, its bytes."""

    __slots__ = ("from_bytes", "is_object", "serializer", "to_bytes")

    def __init__(self, serializer: TypeSerializer[Any] | None) -> None:
        self.serializer = serializer
        self.is_object = False
        self.to_bytes: Callable[[Any], bytes] = _itself
        self.from_bytes: Callable[[bytes], Any] = _itself
        """Converts the bytes of a key to its entry key."""
        if serializer is not None and serializer.equal_values_have_equal_bytes:
            self.is_object = True
            # Keys were checked when they were passed in, so the codec need not check them.
            self.to_bytes = serializer.codec.write
            self.from_bytes = serializer.from_bytes

    def is_like(self, other: KeyForm) -> bool:
        """Whether both have the same form of keys."""
        return not (self.is_object or other.is_object) or self.serializer == other.serializer

    def to_key(self, entry_key: Any) -> Any:
        """Convert an entry key to the key."""
        if self.is_object or self.serializer is None:
            return entry_key
        return self.serializer.from_bytes(entry_key)

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """Return a function that raises `SerializationError` for an entry key that cannot be written."""
        return compile_exact(self.serializer, describe) if self.is_object and self.serializer is not None else _itself

    def compile_entry_key(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """Return a function that converts a key to its entry key; it rejects None and invalid keys."""
        if self.serializer is None:
            return _itself
        exact = compile_exact(self.serializer, describe, reject_none=True)
        if self.is_object:
            return exact
        to_bytes = self.serializer.to_bytes
        return lambda key: to_bytes(exact(key))


class EntryKeys:
    """Converts entry keys of a state to the bytes of key and namespace, and back; without serializers, pairs of bytes.

    ``namespace_form`` also exists if the state has no namespaces.
    """

    __slots__ = ("from_bytes", "is_namespaced", "key_form", "namespace_form", "to_bytes")

    def __init__(
        self, key_serializer: TypeSerializer[Any] | None, namespace_serializer: TypeSerializer[Any] | None
    ) -> None:
        keys = self.key_form = KeyForm(key_serializer)
        namespaces = self.namespace_form = KeyForm(namespace_serializer)
        self.is_namespaced = namespace_serializer is None or has_namespaces(namespace_serializer)
        self.to_bytes: Callable[[Any], tuple[bytes, bytes]]
        self.from_bytes: Callable[[bytes, bytes], Any]
        key_to_bytes, key_from_bytes = keys.to_bytes, keys.from_bytes
        if namespace_serializer is None or self.is_namespaced:
            namespace_to_bytes, namespace_from_bytes = namespaces.to_bytes, namespaces.from_bytes
            self.to_bytes = lambda pair: (key_to_bytes(pair[0]), namespace_to_bytes(pair[1]))
            self.from_bytes = lambda key, namespace: (key_from_bytes(key), namespace_from_bytes(namespace))
        else:
            void = namespace_serializer.to_bytes(VOID_NAMESPACE)
            self.to_bytes = lambda key: (key_to_bytes(key), void)
            self.from_bytes = lambda key, _: key_from_bytes(key)

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        """The key serializer if keys are used as entry keys unchanged, else None."""
        return self.key_form.serializer if self.key_form.is_object and not self.is_namespaced else None

    def is_like(self, other: Any) -> bool:
        """Whether both have the same form of entry keys."""
        return (
            isinstance(other, EntryKeys)
            and self.key_form.is_like(other.key_form)
            and self.namespace_form.is_like(other.namespace_form)
        )

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """Return a function that raises `SerializationError` for an entry key that cannot be written."""
        keys, namespaces = self.key_form.compile_check(describe), self.namespace_form.compile_check(describe)
        if not self.is_namespaced:
            return keys
        return lambda pair: (keys(pair[0]), namespaces(pair[1]))


class CurrentAddress:
    """The address of the current key and namespace as bytes. Every access needs it, so it is encoded once per key.

    For stores that address entries by these bytes. A store with another form of address compiles its own function.
    """

    __slots__ = ("_address", "_check", "_context", "_key_group", "_key_groups", "_last_key", "_to_bytes")

    def __init__(
        self,
        context: HandleContext,
        key_serializer: TypeSerializer[Any],
        namespace_serializer: TypeSerializer[Any],
        key_groups: KeyGroupRange,
        state_name: str,
    ) -> None:
        self._context = context
        self._key_groups = key_groups
        keys = EntryKeys(key_serializer, namespace_serializer)
        self._check = keys.compile_check(lambda: f"state {state_name!r}, current key")
        self._to_bytes = keys.to_bytes
        self._last_key: Any = _NOTHING
        self._key_group = -1
        self._address: Address = (-1, b"", b"")

    def __call__(self) -> Address:
        """Return key group, and the bytes of key and namespace.

        Raises `NoCurrentKeyError` without a current key, `StateBackendError` without a current namespace or for a key
        group of another subtask, and `SerializationError` for an invalid key.
        """
        key, key_group = self._context.key, self._context.key_group
        if key == self._last_key and key_group == self._key_group:
            return self._address
        # Hashing the placeholders for 'no current key' and 'no current namespace' raises an error.
        hash(key)
        self._key_groups.require(key_group)
        self._address = (key_group, *self._to_bytes(self._check(key)))
        self._last_key, self._key_group = key, key_group
        return self._address
