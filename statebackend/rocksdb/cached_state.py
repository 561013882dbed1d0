"""What all kinds of RocksDB state share: a write-back cache between two barriers.

A state touched a hundred times in an epoch is read once and written once. Each access goes to a dict of live entries
first; at the barrier `drain` gives what changed, and the cache starts empty. A value is encoded at the moment of the
update: that is what refuses a value that does not fit, and what keeps a mutable value that the caller goes on changing
from leaking in. Values of immutable types are handed out as they are, once they are what their bytes say (see
`statebackend.exact_values`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from snapshots.errors import SerializationError
from statebackend.closed_entries import ClosedEntries
from statebackend.errors import unreadable_entry
from statebackend.internal_states import InternalState
from statebackend.key_context import AnyKeyContext
from statebackend.rocksdb.composite_key import RawKeys
from statebackend.rocksdb.store import ColumnFamily
from typeserializers.type_serializer import TypeSerializer

Change = tuple[bytes, "bytes | None"]
"""A raw key with its new value, or None for a deletion."""

Changes = dict[bytes, "bytes | None"]
"""What changed, by raw key. The garbage collector need not look at it, as it does at 100,000 tuples."""


class WriteBackCache(Protocol):
    """What a backend asks of everything that holds changes between two barriers: a state handle, or a queue."""

    name: str
    column_family: ColumnFamily

    def drain(self) -> Changes:
        """What changed since the last call, or a part of it, in no order; the cache is empty after an empty one."""

    def close(self) -> None:
        """Makes every later access an error."""


class CachedState(InternalState):
    """The cache of one state, bound to the column family that its entries live in."""

    __slots__ = ("_context", "_entries", "_spill", "_spill_size", "cache_misses", "column_family", "name", "raw_keys")

    def __init__(
        self,
        name: str,
        context: AnyKeyContext,
        raw_keys: RawKeys,
        column_family: ColumnFamily,
        spill: Callable[[WriteBackCache], None],
        spill_size: int,
    ) -> None:
        self.name = name
        self.raw_keys = raw_keys
        self.column_family = column_family
        self._context = context
        self._entries: Any = {}
        self._spill = spill
        self._spill_size = spill_size
        self.cache_misses = 0
        """The accesses that had to look into the column family."""

    @property
    def key_context(self) -> AnyKeyContext:
        return self._context

    @abstractmethod
    def drain(self) -> Changes:
        """What changed since the last call, or a part of it, in no order; the cache is empty after an empty one."""

    def admit(self, entry: Any) -> Any:
        """Puts an entry for the current key into the cache, writing the cache out first if it is full."""
        if len(self._entries) >= self._spill_size:
            self._spill(self)
        self._entries[self._context.key] = entry
        return entry

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
        try:
            return serializer.to_bytes(value)
        except SerializationError as error:
            raise error.within(self.describe()) from error

    def decode(self, serializer: TypeSerializer[Any], data: bytes) -> Any:
        """The value of stored bytes; an error names the state."""
        try:
            return serializer.from_bytes(data)
        except Exception as error:
            raise unreadable_entry(self.describe(), serializer, error) from error
