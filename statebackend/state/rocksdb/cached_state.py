"""The write-back cache that all kinds of RocksDB state share, and the memory that the caches of a process may hold.

A key that is used a hundred times in an epoch is read once and written once. Each access goes to a dict of live entries
first. At the barrier `drain` returns the changes, and the cache starts empty. An update encodes its value at once, so a
value that does not fit is rejected and a caller's later changes have no effect. Values of immutable types are returned
as they are (`statebackend.state.value_forms`).

The backends of a process share one budget equally, so that many backends hold no more than a single one. The shares
change when a backend is opened or closed. A backend above its share writes out at its next access.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import abstractmethod
from collections.abc import Callable
from itertools import repeat
from typing import Any, Final, NoReturn, Protocol

from attrs import define, field

from statebackend.state.composite_key import RawKeys
from statebackend.state.entry_keys import ClosedEntries, decoded, encoded
from statebackend.state.internal_states import HandleContext, InternalState
from statebackend.state.rocksdb.engine import Scan
from typeserializers.kernel.type_serializer import TypeSerializer

DEFAULT_CACHE_BYTES: Final = 128 << 20
MIN_CACHE_BYTES: Final = 1

ENTRY_BYTES: Final = 256
"""The estimated bytes of a cache entry without its data: the containers, and the objects of key and raw key."""


class CacheMemory:
    """The bytes that the caches of one backend hold, and its share."""

    __slots__ = ("__weakref__", "budget_bytes", "held_bytes", "limit_bytes")

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.limit_bytes = budget_bytes
        self.held_bytes = 0


class _Shares:
    """The open backends of one process."""

    def __init__(self) -> None:
        self.process = os.getpid()
        self.lock = threading.Lock()
        self.open: weakref.WeakSet[CacheMemory] = weakref.WeakSet()

    def divide(self) -> None:
        sharing = list(self.open)
        for memory in sharing:
            memory.limit_bytes = max(memory.budget_bytes // len(sharing), 1)


_shares = _Shares()


def open_cache_memory(budget_bytes: int) -> CacheMemory:
    """Open the share of a backend in a process budget; `close_cache_memory` releases it."""
    global _shares
    if _shares.process != os.getpid():
        # The backends of the parent are not open here, and its lock may never be released in this process.
        _shares = _Shares()
    memory = CacheMemory(budget_bytes)
    with _shares.lock:
        _shares.open.add(memory)
        _shares.divide()
    return memory


def close_cache_memory(memory: CacheMemory) -> None:
    """Release a share; may be called twice."""
    if _shares.process == os.getpid():
        with _shares.lock:
            _shares.open.discard(memory)
            _shares.divide()


Change = tuple[bytes, "bytes | None"]
"""A raw key with its new value, or None for a deletion."""

Changes = dict[bytes, "bytes | None"]
"""Changed values by raw key. A dict costs the garbage collector less than 100,000 tuples."""

UNKNOWN: Final[Any] = object()
"""Marks the stored value of a raw key that was not looked up."""


@define
class Drained:
    """Changes to write, in any order, each raw key once, and the stored values: `UNKNOWN` if not looked up.

    ``digest`` is the change of the content's digest, if the state computes it itself. Then every change is effective,
    and no stored value is looked up.
    """

    keys: list[bytes] = field(factory=list)
    values: list[bytes | None] = field(factory=list)
    stored: list[Any] = field(factory=list)
    digest: int | None = None

    @classmethod
    def from_changes(cls, changes: Changes, stored: Changes | None = None, digest: int | None = None) -> Drained:
        """Convert dicts; ``stored`` may have fewer keys."""
        keys = list(changes)
        known = [UNKNOWN] * len(keys) if not stored else list(map(stored.get, keys, repeat(UNKNOWN)))
        return cls(keys, list(changes.values()), known, digest)


class StoredRows(Protocol):
    """The written rows of one state, for its handle. The table replaces it when the rows move."""

    @property
    def get(self) -> Callable[[bytes], Any]:
        """The value of a raw key, or None. Its exceptions are passed to `reading_failed`."""

    def get_all(self, raw_keys: list[bytes]) -> list[bytes | None]:
        """The values of raw keys, or None; fastest if the keys are sorted. Its exceptions need no `reading_failed`."""

    def keys(self, from_key: bytes, end: bytes, limit: int) -> list[bytes]:
        """The first raw keys from ``from_key`` on and before ``end``, in order; at most ``limit``."""

    def scan(self, from_key: bytes, end: bytes | None = None) -> Scan:
        """All entries from a raw key on and before ``end``, in order, as of the time of the call."""

    def scan_prefix(self, prefix: bytes) -> Scan:
        """All entries whose raw key starts with ``prefix``; otherwise like `scan`."""

    def scan_prefix_from(self, prefix: bytes, rest: bytes) -> Scan:
        """The entries of `scan_prefix` from ``prefix`` and ``rest`` on."""

    def reading_failed(self, error: Exception) -> NoReturn:
        """Raise the error for an exception of `get`."""


class WriteBackCache(Protocol):
    """The interface of everything that holds changes between two barriers: a state handle, or a queue."""

    name: str
    stored_rows: StoredRows

    @property
    def cache_misses(self) -> int | None:
        """The accesses that had to read stored rows; None if they are not counted."""

    @property
    def holds_counted_bytes(self) -> bool:
        """Whether writing it out frees bytes that are counted (`CacheMemory`)."""

    def drain(self) -> Drained:
        """Return the changes since the last call, or a part of them; an empty result means that the cache is empty."""

    def close(self) -> None:
        """Make every later access raise an error."""


@define(eq=False)
class CacheBounds:
    """The limits of a backend's caches: entries per state, and bytes of all states.

    ``write_out`` empties the cache of one state, ``write_out_all`` the caches of all.
    """

    entries: int
    memory: CacheMemory
    write_out: Callable[[WriteBackCache], None]
    write_out_all: Callable[[], None]


class CachedState(InternalState):
    """The cache of one state over its written rows."""

    __slots__ = (
        "_bounds",
        "_context",
        "_entries",
        "_max_entries",
        "_memory",
        "cache_misses",
        "held_bytes",
        "name",
        "raw_keys",
        "stored_rows",
    )

    def __init__(
        self,
        name: str,
        context: HandleContext,
        raw_keys: RawKeys,
        stored_rows: StoredRows,
        bounds: CacheBounds,
    ) -> None:
        self.name = name
        self.raw_keys = raw_keys
        self.stored_rows = stored_rows
        self._context = context
        self._entries: Any = {}
        self._bounds = bounds
        self._max_entries = bounds.entries
        self._memory = bounds.memory
        self.held_bytes = 0
        """The bytes that this state holds, of the bytes of the backend's caches."""
        self.cache_misses = 0
        """The accesses that had to read stored rows."""

    @property
    def holds_counted_bytes(self) -> bool:
        """Whether anything is in the cache."""
        return bool(self._entries)

    @property
    def key_context(self) -> HandleContext:
        return self._context

    @abstractmethod
    def drain(self) -> Drained:
        """Return the changes since the last call, or a part of them; an empty result means that the cache is empty."""

    def hold(self, size_bytes: int) -> None:
        """Count bytes that were added to the cache; write out all caches if they are too large.

        Call it at the end of an access, since the cache may be empty afterwards.
        """
        self.held_bytes += size_bytes
        memory = self._memory
        memory.held_bytes += size_bytes
        if memory.held_bytes > memory.limit_bytes:
            self._bounds.write_out_all()

    def forget(self) -> None:
        """Empty the cache."""
        self._entries = {}
        self._memory.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def stored(self, raw_key: bytes) -> bytes | None:
        """The stored value of a raw key."""
        try:
            stored: bytes | None = self.stored_rows.get(raw_key)
        except Exception as error:
            self.stored_rows.reading_failed(error)
        return stored

    def current_prefix(self) -> bytes:
        """The raw key of the current key and namespace."""
        return self.raw_keys.prefix(self._context.key, self._context.key_group)

    def describe(self) -> str:
        """The state's name for messages."""
        return f"state {self.name!r}"

    def close(self) -> None:
        """Make every later access raise an error."""
        self._entries = ClosedEntries(self.name)

    def encode(self, serializer: TypeSerializer[Any], value: Any) -> bytes:
        """Encode a value; an error names the state."""
        return encoded(self.name, serializer, value)

    def decode(self, serializer: TypeSerializer[Any], data: bytes) -> Any:
        """Decode stored bytes; an error names the state."""
        return decoded(self.name, serializer, data)
