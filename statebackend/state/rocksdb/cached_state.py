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
from typing import Any, Final, NoReturn, Protocol

from attrs import define, field

from statebackend.state.entry_keys import ClosedEntries, decoded, encoded
from statebackend.state.internal_states import HandleContext, InternalState
from statebackend.state.rocksdb.composite_key import RawKeys
from statebackend.state.rocksdb.engine import Scan
from typeserializers.kernel.type_serializer import TypeSerializer

DEFAULT_CACHE_BYTES: Final = 128 << 20
MIN_CACHE_BYTES: Final = 1

ENTRY_BYTES: Final = 256
"""What an entry of a cache takes up beside its bytes: the containers, and the objects of key and raw key."""


class CacheMemory:
    """What the caches of one backend hold, and its share."""

    __slots__ = ("__weakref__", "budget_bytes", "held_bytes", "limit_bytes")

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.limit_bytes = budget_bytes
        self.held_bytes = 0


class _Shares:
    """The backends of one process that are open."""

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
    """The share of a backend whose process may hold so many bytes; to be closed with `close_cache_memory`."""
    global _shares
    if _shares.process != os.getpid():
        # The backends of the parent are not this process's, and its lock may never be released here.
        _shares = _Shares()
    memory = CacheMemory(budget_bytes)
    with _shares.lock:
        _shares.open.add(memory)
        _shares.divide()
    return memory


def close_cache_memory(memory: CacheMemory) -> None:
    """Gives a share back to the others; may be called twice."""
    if _shares.process == os.getpid():
        with _shares.lock:
            _shares.open.discard(memory)
            _shares.divide()


Change = tuple[bytes, "bytes | None"]
"""A raw key with its new value, or None for a deletion."""

Changes = dict[bytes, "bytes | None"]
"""What changed, by raw key. The garbage collector need not look at it, as it does at 100,000 tuples."""

UNKNOWN: Final[Any] = object()
"""Stands for what is stored under a raw key that nobody has looked up."""


@define
class Drained:
    """Changes to be written out, in any order, each raw key once, and what is stored under them, as far as that is
    known, else `UNKNOWN`.

    ``digest`` is by how much the digest of the content changes, from a state that has worked it out itself; then every
    change is one, and nothing has to be looked up.
    """

    keys: list[bytes] = field(factory=list)
    values: list[bytes | None] = field(factory=list)
    stored: list[Any] = field(factory=list)
    digest: int | None = None

    @classmethod
    def from_changes(cls, changes: Changes, stored: Changes | None = None, digest: int | None = None) -> Drained:
        """The same of dicts; ``stored`` may have fewer keys."""
        keys = list(changes)
        known = [UNKNOWN] * len(keys) if not stored else [stored.get(key, UNKNOWN) for key in keys]
        return cls(keys, list(changes.values()), known, digest)


class StoredRows(Protocol):
    """What is written out of one state, as its handle reads it; its table gives the handle another when they move."""

    @property
    def get(self) -> Callable[[bytes], Any]:
        """The value of a raw key, or None. What it raises goes to `reading_failed`."""

    def get_all(self, raw_keys: list[bytes]) -> list[bytes | None]:
        """The values of raw keys, or None; quickest if the keys are sorted. Needs no `reading_failed`."""

    def scan(self, from_key: bytes) -> Scan:
        """All entries from a raw key on, in order, as they are at the time of the call."""

    def scan_prefix(self, prefix: bytes) -> Scan:
        """All entries whose raw key begins with ``prefix``; otherwise like `scan`."""

    def scan_prefix_from(self, prefix: bytes, rest: bytes) -> Scan:
        """The entries of `scan_prefix` from ``prefix`` and ``rest`` on."""

    def reading_failed(self, error: Exception) -> NoReturn:
        """Raises what an exception of `get` is to be."""


class WriteBackCache(Protocol):
    """What a backend asks of everything that holds changes between two barriers: a state handle, or a queue."""

    name: str
    stored_rows: StoredRows

    @property
    def cache_misses(self) -> int | None:
        """The accesses that had to look into the stored rows; None if they are not counted."""

    @property
    def holds_counted_bytes(self) -> bool:
        """Whether writing it out frees bytes that are counted (`CacheMemory`)."""

    def drain(self) -> Drained:
        """What changed since the last call, or a part of it; the cache is empty after an empty one."""

    def close(self) -> None:
        """Makes every later access an error."""


@define(eq=False)
class CacheBounds:
    """How much the caches of a backend hold: of each state so many entries, of all so many bytes.

    ``write_out`` empties the cache of one state, ``relieve`` those of all.
    """

    entries: int
    memory: CacheMemory
    write_out: Callable[[WriteBackCache], None]
    relieve: Callable[[], None]


class CachedState(InternalState):
    """The cache of one state, over the rows that are written out."""

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
        """The part of what the caches of the backend hold that is this state's."""
        self.cache_misses = 0
        """The accesses that had to look into the stored rows."""

    @property
    def holds_counted_bytes(self) -> bool:
        """Whether anything is in the cache."""
        return bool(self._entries)

    @property
    def key_context(self) -> HandleContext:
        return self._context

    @abstractmethod
    def drain(self) -> Drained:
        """What changed since the last call, or a part of it; the cache is empty after an empty one."""

    def hold(self, size_bytes: int) -> None:
        """Counts bytes that were taken into the cache; writes all caches out if there are too many.

        To be called when an access has done everything else, since the cache may be empty afterwards.
        """
        self.held_bytes += size_bytes
        memory = self._memory
        memory.held_bytes += size_bytes
        if memory.held_bytes > memory.limit_bytes:
            self._bounds.relieve()

    def forget(self) -> None:
        """Empties the cache."""
        self._entries = {}
        self._memory.held_bytes -= self.held_bytes
        self.held_bytes = 0

    def stored(self, raw_key: bytes) -> bytes | None:
        """What is stored under a raw key."""
        try:
            stored: bytes | None = self.stored_rows.get(raw_key)
        except Exception as error:
            self.stored_rows.reading_failed(error)
        return stored

    def current_prefix(self) -> bytes:
        """The raw key of the current key and namespace."""
        return self.raw_keys.prefix(self._context.key, self._context.key_group)

    def describe(self) -> str:
        """The state, for messages."""
        return f"state {self.name!r}"

    def close(self) -> None:
        """Makes every later access an error."""
        self._entries = ClosedEntries(self.name)

    def encode(self, serializer: TypeSerializer[Any], value: Any) -> bytes:
        """The bytes of a value; an error names the state."""
        return encoded(self.name, serializer, value)

    def decode(self, serializer: TypeSerializer[Any], data: bytes) -> Any:
        """The value of stored bytes; an error names the state."""
        return decoded(self.name, serializer, data)
