"""Value state on RocksDB: one row per key and namespace.

Values of immutable types are cached as objects and encoded once, at the barrier. The update checks that they can be
written and are exact (`statebackend.state.value_forms`). Values of mutable types are cached as bytes, so a caller's
later changes have no effect.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

from snapshots.errors import StateFormatError
from statebackend.state.errors import StateBackendError
from statebackend.state.rocksdb.cached_state import ENTRY_BYTES, UNKNOWN, CachedState, Drained
from statebackend.state.row_value_state import RowValueState
from statebackend.state.value_forms import compile_exact, compile_size, exact_or_none_lines
from statebackend.state.value_state import InternalValueState
from typeserializers.kernel.code_generation import GeneratedFunction
from typeserializers.kernel.type_serializer import TypeSerializer

T = TypeVar("T")

_KEPT, _RAW_KEY, _IS_DIRTY, _STORED, _SIZE = range(5)

_raw_key_of, _stored_of, _size_of = itemgetter(_RAW_KEY), itemgetter(_STORED), itemgetter(_SIZE)


class RocksDBValueState(CachedState, InternalValueState[T]):
    """An entry of the cache is ``[cached value or None, raw key, is dirty, stored value, bytes counted for it]``."""

    __slots__ = ("_entry_bytes", "_read", "_serializer")

    def __init__(self, serializer: TypeSerializer[T], *cache: Any) -> None:
        super().__init__(*cache)
        self._serializer = serializer
        self._read = serializer.codec.read
        self._entry_bytes = ENTRY_BYTES + 2 * max(serializer.length, 0)

    @abstractmethod
    def kept_form(self, value: T, encoded: bytes) -> Any:
        """The cached form of a stored value."""

    def clear(self) -> None:
        self.keep(None)

    def keep(self, kept: Any, size_bytes: int = 0) -> None:
        """Cache the value of the current key; ``size_bytes`` are its bytes beyond the fixed size of an entry."""
        entry = self._entries.get(self._context.key)
        if entry is None:
            raw_key = self.raw_keys.prefix(self._context.key, self._context.key_group)
            self._admit([kept, raw_key, True, UNKNOWN, self._entry_bytes + size_bytes])
            return
        entry[_KEPT] = kept
        entry[_IS_DIRTY] = True
        if size_bytes:
            grown = self._entry_bytes + size_bytes - entry[_SIZE]
            if grown > 0:
                entry[_SIZE] += grown
                self.hold(grown)

    def load(self) -> list[Any]:
        """Read the entry of the current key into the cache."""
        context = self._context
        raw_key = self.raw_keys.prefix(context.key, context.key_group)
        try:
            encoded = self.stored_rows.get(raw_key)
        except Exception as error:
            self.stored_rows.reading_failed(error)
        self.cache_misses += 1
        entry = self._entry_of(raw_key, encoded)
        # The rest is `_admit`, without the call.
        if len(self._entries) >= self._max_entries:
            self._bounds.write_out(self)
        self._entries[context.key] = entry
        memory = self._memory
        memory.held_bytes += entry[_SIZE]
        if memory.held_bytes > memory.limit_bytes:
            self._bounds.write_out_all()
        return entry

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        room = self._max_entries - len(self._entries)
        if room < len(keys) or not self.raw_keys.takes_keys:
            return
        entries, entry_key, prefix = self._entries, self._context.entry_key, self.raw_keys.prefix
        places = [(entry_key(key), key_group) for key, key_group in zip(keys, key_groups, strict=True)]
        try:
            missing = {prefix(place, key_group): place for place, key_group in places if place not in entries}
        except (StateFormatError, StateBackendError):
            # A key cannot be written; its access reports it.
            return
        ordered = sorted(missing)
        memory = self._memory
        for raw_key, encoded in zip(ordered, self.stored_rows.get_all(ordered), strict=True):
            try:
                entry = self._entry_of(raw_key, encoded)
            except StateBackendError:
                # Damaged bytes; the access reports them.
                continue
            if memory.held_bytes + entry[_SIZE] > memory.limit_bytes:
                return
            self.cache_misses += 1
            memory.held_bytes += entry[_SIZE]
            entries[missing[raw_key]] = entry

    def _entry_of(self, raw_key: bytes, encoded: bytes | None) -> list[Any]:
        """The cache entry of a stored value."""
        if encoded is None:
            return [None, raw_key, False, None, self._entry_bytes]
        # Decoding here finds damaged bytes at the first access, whatever the type.
        try:
            value, end = self._read(encoded, 0)
        except Exception:
            end = -1
        if end != len(encoded):
            value = self.decode(self._serializer, encoded)
        return [self.kept_form(value, encoded), raw_key, False, encoded, self._entry_bytes + 2 * len(encoded)]

    def _admit(self, entry: list[Any]) -> None:
        """Add an entry for the current key to the cache; write out first if the cache is full."""
        if len(self._entries) >= self._max_entries:
            self._bounds.write_out(self)
        self._entries[self._context.key] = entry
        memory = self._memory
        memory.held_bytes += entry[_SIZE]
        if memory.held_bytes > memory.limit_bytes:
            self._bounds.write_out_all()

    def dirty_entries(self) -> list[list[Any]]:
        """The entries to write out."""
        return [entry for entry in self._entries.values() if entry[_IS_DIRTY]]

    def drained(self, dirty: list[list[Any]], values: list[bytes | None]) -> Drained:
        """Empty the cache, and return the entries to write out."""
        self.held_bytes = sum(map(_size_of, self._entries.values()))
        self.forget()
        return Drained(list(map(_raw_key_of, dirty)), values, list(map(_stored_of, dirty)))


class RocksDBObjectValueState(RocksDBValueState[T]):
    """Values of an immutable type, kept as objects; `create_value_state` makes a subclass with a generated `update`."""

    __slots__ = ("_default", "_exact", "_size_of")

    exact_value = "self._exact((value, now_ms))[0]"
    _is_sized: ClassVar[bool]

    def __init__(self, serializer: TypeSerializer[T], default: T | None, *cache: Any) -> None:
        super().__init__(serializer, *cache)
        self._exact = compile_exact(serializer, self.describe)
        self._size_of = compile_size(serializer)
        self._default = default

    def value(self) -> T | None:
        entry = self._entries.get(self._context.key)
        if entry is None:
            entry = self.load()
        value: T | None = entry[_KEPT]
        return self._default if value is None else value

    @classmethod
    def emit_read_stored(cls, function: GeneratedFunction) -> list[str]:
        return [
            "entry = self._entries.get(self._context.key)",
            "if entry is None: entry = self.load()",
            f"stored = entry[{_KEPT}]",
        ]

    @classmethod
    def emit_write_stored(cls, function: GeneratedFunction) -> list[str]:
        return _write_lines(cls._is_sized, "stored")

    def keep_sized(self, value: T | None) -> None:
        """Set a value of variable size for the current key."""
        assert self._size_of is not None
        # Bytes are counted twice, because writing out the cache copies them.
        self.keep(value, 0 if value is None else 2 * self._size_of(value))

    def kept_form(self, value: T, encoded: bytes) -> Any:
        return value

    def drain(self) -> Drained:
        write, dirty = self._serializer.codec.write, self.dirty_entries()
        return self.drained(dirty, [None if entry[_KEPT] is None else write(entry[_KEPT]) for entry in dirty])


class RocksDBEncodedValueState(RocksDBValueState[T]):
    """Values of a mutable type, kept as bytes."""

    __slots__ = ("_encoded_default",)

    def __init__(self, serializer: TypeSerializer[T], default: T | None, *cache: Any) -> None:
        super().__init__(serializer, *cache)
        self._encoded_default = None if default is None else self.encode(serializer, default)

    def value(self) -> T | None:
        entry = self._entries.get(self._context.key)
        if entry is None:
            entry = self.load()
        encoded = self._encoded_default if entry[_KEPT] is None else entry[_KEPT]
        return None if encoded is None else self._read(encoded, 0)[0]

    def update(self, value: T | None) -> None:
        encoded = None if value is None else self.encode(self._serializer, value)
        self.keep(encoded, 0 if encoded is None else len(encoded))

    def kept_form(self, value: T, encoded: bytes) -> Any:
        return encoded

    def drain(self) -> Drained:
        dirty = self.dirty_entries()
        return self.drained(dirty, [entry[_KEPT] for entry in dirty])


class RocksDBRowValueState(CachedState, RowValueState[T]):
    """Values for bulk access: the cache maps raw keys to bytes, so that a batch is a few operations on dicts.

    No stored row has a namespace with larger bytes than ``last_namespace``, which is None if it is not known. So a new
    window needs no look-up. ``keep_last_namespace`` receives it whenever it changes.
    """

    __slots__ = (
        "_changed",
        "_encoded_default",
        "_keep_last_namespace",
        "_last_cached_namespace",
        "_last_keys",
        "_last_namespace",
        "_serializer",
        "_stored",
    )

    def __init__(
        self,
        last_namespace: bytes | None,
        keep_last_namespace: Callable[[bytes], None],
        serializer: TypeSerializer[T],
        default: T | None,
        *cache: Any,
    ) -> None:
        super().__init__(*cache)
        self._last_namespace = last_namespace
        self._last_cached_namespace = b""
        self._keep_last_namespace = keep_last_namespace
        self._serializer = serializer
        self._encoded_default = None if default is None else self.encode(serializer, default)
        self._stored: dict[bytes, bytes | None] = {}
        self._changed: dict[bytes, None] = {}
        self._last_keys = []

    def write_rows(self, raw_keys: Sequence[bytes], rows: Sequence[bytes | None]) -> None:
        self._make_room(len(raw_keys))
        self._last_cached_namespace = max(self._last_cached_namespace, self._namespace())
        self._entries.update(zip(raw_keys, rows, strict=True))
        self._changed.update(dict.fromkeys(raw_keys))
        # Bytes are counted twice, because writing out the cache copies them.
        self.hold(ENTRY_BYTES * len(raw_keys) + 2 * sum([len(row) for row in rows if row is not None]))

    def read_ahead(self, keys: Sequence[Any], key_groups: Sequence[int]) -> None:
        self.read_rows(self.raw_keys.prefixes(keys, key_groups, self._context.entry_key))

    def drain(self) -> Drained:
        entries = self._entries
        drained = Drained.from_changes({raw_key: entries[raw_key] for raw_key in self._changed}, self._stored)
        if self._last_namespace is not None and self._last_cached_namespace > self._last_namespace:
            self._last_namespace = self._last_cached_namespace
            self._keep_last_namespace(self._last_namespace)
        self.forget()
        return drained

    def forget(self) -> None:
        super().forget()
        self._stored, self._changed = {}, {}

    def read_rows(self, raw_keys: Sequence[bytes]) -> list[bytes | None]:
        entries = self._entries
        missing: Sequence[bytes] = [raw_key for raw_key in raw_keys if raw_key not in entries]
        if missing:
            self._make_room(len(missing))
            entries = self._entries
            if len(entries) == 0:
                missing = raw_keys
            found: list[bytes | None]
            if self._last_namespace is not None and self._namespace() > self._last_namespace:
                found = [None] * len(missing)
            else:
                # Callers often have sorted keys, and a dict keeps their order.
                missing = sorted(dict.fromkeys(missing))
                found = self.stored_rows.get_all(missing)
                self.cache_misses += len(missing)
            entries.update(zip(missing, found, strict=True))
            self._stored.update(zip(missing, found, strict=True))
        rows = list(map(entries.__getitem__, raw_keys))
        if missing:
            self.hold(ENTRY_BYTES * len(missing) + 2 * sum([len(row) for row in rows if row is not None]))
        return rows

    def _namespace(self) -> bytes:
        return self.raw_keys.namespace_bytes(self._context.namespace)

    def _make_room(self, count: int) -> None:
        """Write out if the cache has no room for this many entries."""
        if self._entries and len(self._entries) + count > self._max_entries:
            self._bounds.write_out(self)


def create_value_state(serializer: TypeSerializer[T], default: T | None, *cache: Any) -> RocksDBValueState[T]:
    """Create the value state for the type."""
    if not serializer.is_immutable_type:
        return RocksDBEncodedValueState(serializer, default, *cache)
    form: type[RocksDBObjectValueState[T]] = _object_value_state(serializer)
    return form(serializer, default, *cache)


@functools.lru_cache(maxsize=256)
def _object_value_state(serializer: TypeSerializer[Any]) -> type[RocksDBObjectValueState[Any]]:
    """Make a class with an `update` that inlines the checks of the serializer; a call would double its cost."""
    function = GeneratedFunction("update", "self, value")
    is_sized = compile_size(serializer) is not None
    lines = exact_or_none_lines(serializer, function, none="pass") + _write_lines(is_sized, "value")
    body = {"__slots__": (), "update": function.compile(lines), "_is_sized": is_sized}
    return type("RocksDBObjectValueState", (RocksDBObjectValueState,), body)


def _write_lines(is_sized: bool, value: str) -> list[str]:
    """Lines that set the value of the current key."""
    if is_sized:
        return [f"self.keep_sized({value})"]
    return [
        "entry = self._entries.get(self._context.key)",
        f"if entry is None: self.keep({value})",
        "else:",
        f"    entry[{_KEPT}] = {value}",
        f"    entry[{_IS_DIRTY}] = True",
    ]
