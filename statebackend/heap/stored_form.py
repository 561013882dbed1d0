"""In what form the heap keeps values and keys.

Values of an immutable type are kept as *objects*: reading one costs a dict look-up. A value of a mutable type must be
copied on its way in and out, and checked on its way in; its bytes are both at once, so it is kept *encoded*. It then
takes less memory than the object, a snapshot has nothing left to encode, and what a caller does to its own object
cannot reach the state.

Keys stand for themselves where equal keys have equal bytes, else their bytes stand for them (two NaNs are one key).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from migration.schema_migration import SchemaMigration
from statebackend.keyed.exact_values import compile_exact
from typeserializers.kernel.type_serializer import TypeSerializer
from typeserializers.scalars.void import VOID_NAMESPACE, VoidNamespaceSerializer

Load = Callable[[bytes, int], tuple[Any, int]]
"""From the bytes of a row at a position to the stored form, and the position behind them."""


class StoredForm:
    """The form of the rows of one state: ``serializer`` is its storage serializer."""

    __slots__ = ("is_encoded", "load", "serializer", "write")

    def __init__(self, serializer: TypeSerializer[Any], is_encoded: bool) -> None:
        self.serializer = serializer
        self.is_encoded = is_encoded
        self.write: Callable[[Any], bytes] = _itself if is_encoded else serializer.codec.write
        self.load: Load = _whole if is_encoded else serializer.codec.read

    def load_migrated(self, migration: SchemaMigration[Any]) -> Load:
        """Loads rows of before a migration: directly from old bytes to the new object, or to the new bytes.

        An object is checked as an update would be, because a custom pair of serializers may pass the old one through.
        """
        if self.is_encoded:
            return migration.transcode
        read, exact = migration.read, compile_exact(self.serializer, lambda: "the migrated value")

        def read_and_check(data: bytes, position: int) -> tuple[Any, int]:
            value, end = read(data, position)
            return exact(value), end

        return read_and_check


class RawStoredForm(StoredForm):
    """Rows that stay bytes, for states that nobody has registered."""

    __slots__ = ()

    def __init__(self) -> None:
        self.is_encoded = True
        self.write = _itself
        self.load = _whole


def _itself(stored: bytes) -> bytes:
    return stored


def _whole(data: bytes, position: int) -> tuple[bytes, int]:
    return data, len(data)


class KeyForm:
    """How one kind of key stands in a dict."""

    __slots__ = ("is_object", "serializer", "to_bytes")

    def __init__(self, serializer: TypeSerializer[Any]) -> None:
        self.serializer = serializer
        self.is_object = serializer.equal_values_have_equal_bytes
        # Keys were checked when they came in, so the bare codec will do.
        self.to_bytes: Callable[[Any], bytes] = serializer.codec.write if self.is_object else _itself

    def is_like(self, other: KeyForm) -> bool:
        """Whether keys stand in a dict in the same way in both."""
        return not (self.is_object or other.is_object) or self.serializer == other.serializer

    def from_bytes(self, data: bytes) -> Any:
        """The entry key of the bytes of a key."""
        return self.serializer.from_bytes(data) if self.is_object else data

    def to_key(self, entry_key: Any) -> Any:
        """The key that an entry key stands for."""
        return entry_key if self.is_object else self.serializer.from_bytes(entry_key)

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """A function that raises `SerializationError` for an entry key that cannot be written."""
        return compile_exact(self.serializer, describe) if self.is_object else _itself

    def compile_entry_key(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """A function from a given key to its entry key; refuses None and what does not fit."""
        exact = compile_exact(self.serializer, describe, refuse_none=True)
        if self.is_object:
            return exact
        to_bytes = self.serializer.to_bytes
        return lambda key: to_bytes(exact(key))


class RawKeyForm(KeyForm):
    """Keys that stay bytes, for states that nobody has registered."""

    __slots__ = ()

    def __init__(self) -> None:
        self.is_object = False
        self.to_bytes = _itself


class EntryKeys:
    """From the entry keys of a state to the bytes of key and namespace, and back."""

    __slots__ = ("_forms", "_is_namespaced", "from_bytes", "to_bytes")

    def __init__(self, keys: KeyForm, namespace_serializer: TypeSerializer[Any]) -> None:
        namespaces = KeyForm(namespace_serializer)
        self._forms = (keys, namespaces)
        self.to_bytes: Callable[[Any], tuple[bytes, bytes]]
        self.from_bytes: Callable[[bytes, bytes], Any]
        self._is_namespaced = not isinstance(namespace_serializer, VoidNamespaceSerializer)
        if not self._is_namespaced:
            key_to_bytes, key_from_bytes = keys.to_bytes, keys.from_bytes
            void = namespace_serializer.to_bytes(VOID_NAMESPACE)
            self.to_bytes = lambda key: (key_to_bytes(key), void)
            self.from_bytes = lambda key, _: key_from_bytes(key)
        else:
            self._use_pairs(keys, namespaces)

    @property
    def plain_key_serializer(self) -> TypeSerializer[Any] | None:
        """The serializer of the keys where each key is its own entry key, else None."""
        key = self._forms[0]
        return key.serializer if key.is_object and not self._is_namespaced else None

    def is_like(self, other: EntryKeys) -> bool:
        """Whether entry keys look the same in both."""
        return all(form.is_like(others) for form, others in zip(self._forms, other._forms, strict=True))

    def compile_check(self, describe: Callable[[], str]) -> Callable[[Any], Any]:
        """A function that raises `SerializationError` for an entry key that cannot be written."""
        keys, namespaces = (form.compile_check(describe) for form in self._forms)
        if not self._is_namespaced:
            return keys
        return lambda pair: (keys(pair[0]), namespaces(pair[1]))

    def _use_pairs(self, keys: KeyForm, namespaces: KeyForm) -> None:
        self.to_bytes = lambda pair: (keys.to_bytes(pair[0]), namespaces.to_bytes(pair[1]))
        self.from_bytes = lambda key, namespace: (keys.from_bytes(key), namespaces.from_bytes(namespace))


class RawEntryKeys(EntryKeys):
    """Pairs of bytes, for states that nobody has registered."""

    __slots__ = ()

    def __init__(self) -> None:
        self._forms = (RawKeyForm(), RawKeyForm())
        self._is_namespaced = True
        self._use_pairs(*self._forms)
